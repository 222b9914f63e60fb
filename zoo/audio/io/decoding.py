"""Opening and decoding audio files, with the checks that libsndfile leaves out: is the file cut, or no audio at all?"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile

BLOCK_SAMPLES = 1 << 18
_UNKNOWN_LENGTH = 1 << 36  # a flac header counts in 36 bits; libsndfile reports 2**63 - 1 where it holds 0
_OGG_PAGE_LIMIT = 65307  # bytes: header 27 + 255 segments + 255 * 255, RFC 3533 section 6
_UNKNOWN_SIZE = 0xFFFFFFFF  # written by encoders that stream into a pipe
_OGG_END_OF_STREAM = 4


class AudioFileError(ValueError):
    """A file that is not sound audio; the message is one line naming the file and the cause."""


class _Sequential(soundfile.SoundFile):
    """soundfile seeks to where it already is after every read, which restarts the mp3 decoder and damages the sound."""

    def seekable(self) -> bool:
        return False


def open_checked(path: Path) -> soundfile.SoundFile:
    """Open a file for reading from its start to its end; it has at least one sample.

    Raises:
        AudioFileError: the file is empty, cut, of unknown length, or no audio.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such audio file")
    cause = _container_fault(path)
    if cause:
        raise AudioFileError(f"{path}: {cause}")
    try:
        handle = _Sequential(path)
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: soundfile takes *.raw for headerless samples
        raise AudioFileError(f"{path}: not an audio file that can be decoded ({reason(error)})") from error
    if handle.frames == 0:
        handle.close()
        raise AudioFileError(f"{path}: holds no samples (zero length, or cut so short that nothing can be decoded)")
    if handle.frames >= _UNKNOWN_LENGTH:
        handle.close()
        raise AudioFileError(f"{path}: the header does not say how long it is (streamed flac); encode it again")
    return handle


def reason(error: Exception) -> str:
    """Say in one line, without the path, what libsndfile complains about."""
    text = str(getattr(error, "error_string", "") or error)
    # The mp3 decoder's words for any header it does not know; the file does exist here.
    return "format not recognised" if "does not exist" in text else text.rstrip(".").replace("\n", " ")


def decode(handle: soundfile.SoundFile, path: Path, samples: int) -> np.ndarray:
    """Decode in blocks, because headers lie about lengths and memory must not follow them.

    Args:
        handle: from `open_checked`, standing where to begin.

    Returns:
        Audio (n, C) float32; n < samples only when the file ends.
    """
    parts: list[np.ndarray] = []
    missing = samples
    while missing > 0:
        try:
            part = handle.read(min(missing, BLOCK_SAMPLES), dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise AudioFileError(f"{path}: damaged or cut, decoding stopped ({reason(error)})") from error
        if len(part) == 0:
            break
        if not np.isfinite(part).all():
            raise AudioFileError(f"{path}: holds NaN or infinite samples")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros((0, handle.channels), np.float32)])


def _container_fault(path: Path) -> str | None:
    """Name what libsndfile accepts silently: an empty file, a web page, a cut wav, ogg or opus file.

    Source: RIFF/RF64 chunk layout (EBU Tech 3306); Ogg page layout (RFC 3533, section 6).
    """
    size = path.stat().st_size
    if size == 0:
        return "is empty (0 bytes)"
    with path.open("rb") as handle:
        head = handle.read(12)
        if head.lstrip()[:1] == b"<":
            return "is a text or web page, not audio (a failed download?)"
        if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
            missing = _missing_wav_bytes(handle, size)
            return f"cut, the header promises {missing} more bytes than the file holds" if missing > 0 else None
        if head[:4] == b"OggS":
            handle.seek(max(0, size - _OGG_PAGE_LIMIT))
            return _ogg_fault(handle.read())
    return None


def _missing_wav_bytes(handle: BinaryIO, size: int) -> int:
    position = 12
    large = None
    while position + 8 <= size:
        handle.seek(position)
        header = handle.read(24)
        name, length = struct.unpack("<4sI", header[:8])
        if name == b"ds64" and len(header) == 24:
            large = struct.unpack("<Q", header[16:24])[0]
        if name == b"data":
            if length == _UNKNOWN_SIZE and large is None:
                return 0
            claimed = large if length == _UNKNOWN_SIZE and large is not None else length
            return position + 8 + claimed - size
        position += 8 + length + length % 2
    return 0  # no data chunk: libsndfile refuses the file itself


def _ogg_fault(tail: bytes) -> str | None:
    start = tail.rfind(b"OggS")
    page = tail[start:]
    if start < 0 or len(page) < 27:
        return "cut, the last page is incomplete"
    segments = page[27 : 27 + page[26]]
    if len(segments) < page[26] or len(page) < 27 + page[26] + sum(segments):
        return "cut, the last page is incomplete"
    if not page[5] & _OGG_END_OF_STREAM:
        return "cut, the stream has no end mark"
    return None
