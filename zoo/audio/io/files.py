"""Audio files read with checks and written atomically: wav, flac, ogg, opus and mp3 through libsndfile.

libsndfile reads a cut wav or ogg file without an error and estimates the length of some mp3 files; here such a file
gives all its samples or one `AudioFileError` that names it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import soundfile

from zoo.common.atomic_files import temporary_path
from zoo.common.checks import check_positive

log = logging.getLogger(__name__)

_FORMATS = {
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".ogg": ("OGG", "VORBIS"),
    ".opus": ("OGG", "OPUS"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
}
RESULT_SUBTYPE = "PCM_24"  # of what nets make: quiet recordings stay precise
FULL_BAND_SHARE = 0.9  # of the rate that is asked for
_WAV_BYTES = 2**32 - 4096  # that the length in a header can say, and the header
_INTEGER_BITS = {"PCM_S8": 8, "PCM_U8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32}

AUDIO_SUFFIXES: tuple[str, ...] = tuple(_FORMATS)
_UNSUPPORTED_SUFFIXES = (
    *(".3gp", ".aac", ".aif", ".aifc", ".aiff", ".alac", ".amr", ".ape", ".au", ".caf", ".m4a", ".m4b", ".mka", ".mp2"),
    *(".mp4", ".oga", ".ra", ".rf64", ".sph", ".w64", ".webm", ".wma", ".wv"),
)
BLOCK_SAMPLES = 1 << 18
_STREAMED_BYTES = 0x7FFF0000  # a wav header with a larger size was written into a pipe
_UNKNOWN_SAMPLES = 1 << 62
_START_BYTES = 28  # that hold the length of a container
_OGG_PAGE_BYTES, _OGG_END = 65307, 4  # longest page; flag of the last one


class AudioFileError(ValueError):
    """A file that is damaged or no audio; the message is one line naming the file and the cause."""


@dataclass(frozen=True)
class AudioInfo:
    """Header of an audio file; `samples` are those of each channel."""

    sample_rate: int
    channels: int
    samples: int

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.samples / self.sample_rate


def info(path: str | os.PathLike[str]) -> AudioInfo:
    """Read and check the header of an audio file without decoding it: `samples` is what `read` returns if it can."""
    with _open(Path(path)) as handle:
        return AudioInfo(handle.samplerate, handle.channels, handle.frames)


def read(path: str | os.PathLike[str]) -> tuple[np.ndarray, int]:
    """Read a file: audio (C, T) float32, integers over full scale, and the sample rate in Hz."""
    path = Path(path)
    with _open(path) as handle:
        return np.ascontiguousarray(_decode(handle, path, 0, handle.frames).T), handle.samplerate


def read_mono(path: str | os.PathLike[str], sample_rate: int | None = None) -> np.ndarray:
    """Read a file as one channel (T,) float32, the mean of its channels, resampled where a rate is given."""
    audio, rate = read(path)
    mono = audio[0] if len(audio) == 1 else audio.mean(axis=0, dtype=np.float32)
    if sample_rate is None or sample_rate == rate:
        return mono
    from zoo.audio.io.resample import resample_array  # imports torch, which header checks and writers do not need

    resampled = resample_array(mono, rate, sample_rate)
    if not len(resampled):
        raise AudioFileError(f"{path}: too short for one sample at {sample_rate} Hz")
    return resampled


def check_band(path: str | os.PathLike[str], sample_rate: int) -> None:
    """Refuse a file (AudioFileError) whose rate is so low that its upper band is empty; 44.1 kHz pass at 48 kHz."""
    rate = info(path).sample_rate
    if rate < FULL_BAND_SHARE * sample_rate:
        raise AudioFileError(f"{path}: sampled at {rate} Hz, so it has no upper band at {sample_rate} Hz")


def read_blocks(path: str | os.PathLike[str], block_samples: int) -> Iterator[np.ndarray]:
    """Stream a file in blocks (C, n) float32, the last of which may be shorter, with the same checks as `read`."""
    path = Path(path)
    check_positive(block_samples=block_samples)
    with _open(path) as handle:
        for start in range(0, handle.frames, block_samples):
            block = _decode(handle, path, start, min(block_samples, handle.frames - start))
            yield np.ascontiguousarray(block.T)


class AudioWriter:
    """Writes an audio file piece by piece; the file appears under its name when the block ends without an error.

    Args:
        path: target; the suffix picks the container. Missing parent folders are made.
        subtype: libsndfile's sample format; None takes the container's usual one (PCM_16, VORBIS, ...).

    Raises:
        ValueError: unknown suffix, or a subtype or rate that the container cannot hold.
    """

    def __init__(
        self, path: str | os.PathLike[str], sample_rate: int, channels: int, subtype: str | None = "PCM_16"
    ) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in _FORMATS:
            raise ValueError(f"{self.path}: unknown audio suffix, expected one of {', '.join(AUDIO_SUFFIXES)}")
        container, usual = _FORMATS[self.path.suffix.lower()]
        self._subtype = usual if subtype is None or container in ("OGG", "MP3") else subtype
        self._channels = channels
        self._samples = 0
        sample_bytes = _INTEGER_BITS.get(self._subtype, 64 if self._subtype == "DOUBLE" else 32) // 8
        self._max_samples = _WAV_BYTES // (channels * sample_bytes) if container == "WAV" else sys.maxsize
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = temporary_path(self.path)
        try:
            self._handle = soundfile.SoundFile(
                self._temporary, "w", sample_rate, channels, self._subtype, format=container
            )
        except (soundfile.SoundFileError, ValueError) as error:
            self._temporary.unlink(missing_ok=True)
            kind = f"{container} {self._subtype} with {channels} channels at {sample_rate} Hz"
            raise ValueError(f"{self.path}: cannot write {kind} ({_reason(error)})") from error

    def write(self, audio: np.ndarray) -> None:
        """Append samples (T,) or (C, T); all but FLOAT and DOUBLE files are clipped to [-1, 1] and rounded."""
        audio = np.atleast_2d(np.asarray(audio, dtype=np.float32))
        if audio.ndim != 2 or len(audio) != self._channels:
            raise ValueError(f"{self.path}: expected {self._channels} channels (C, T), got shape {audio.shape}")
        if not np.isfinite(audio).all():
            raise ValueError(f"{self.path}: refusing to write NaN or infinite samples")
        if self._samples + audio.shape[1] > self._max_samples:
            raise ValueError(f"{self.path}: a wav file holds 4 GiB, {self._max_samples} samples here; cut the input")
        for first in range(0, audio.shape[1], BLOCK_SAMPLES):  # libsndfile's vorbis encoder overflows on long arrays
            self._handle.write(_quantize(audio[:, first : first + BLOCK_SAMPLES], self._subtype).T)
        self._samples += audio.shape[1]

    def __enter__(self) -> AudioWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._handle.close()
            if kind is None and self._samples == 0:
                raise ValueError(f"{self.path}: nothing was written, an audio file needs at least one sample")
            # an encoder may lose its last block on a full disk when it closes, without an error
            if kind is None and soundfile.info(os.fspath(self._temporary)).frames != self._samples:
                raise OSError(f"{self.path}: not all of {self._samples} samples arrived, is the disk full?")
            if kind is None:
                os.replace(self._temporary, self.path)
        except soundfile.SoundFileError as failure:
            raise OSError(f"{self.path}: writing failed, is the disk full? ({_reason(failure)})") from failure
        finally:
            self._temporary.unlink(missing_ok=True)
        if isinstance(error, soundfile.SoundFileError):
            raise OSError(f"{self.path}: writing failed, is the disk full? ({_reason(error)})") from error


def _quantize(audio: np.ndarray, subtype: str) -> np.ndarray:
    """Clip for every bounded format; round integers ourselves because libsndfile truncates towards minus infinity."""
    if subtype in ("FLOAT", "DOUBLE"):
        return audio
    if subtype not in _INTEGER_BITS:
        return np.clip(audio, -1.0, 1.0)
    bits = _INTEGER_BITS[subtype]
    scale = 2.0 ** (bits - 1)
    steps = np.clip(np.rint(audio.astype(np.float64) * scale), -scale, scale - 1)
    return (steps * 2.0 ** (32 - bits)).astype(np.int32)


def write(path: str | os.PathLike[str], audio: np.ndarray, sample_rate: int, subtype: str | None = None) -> None:
    """Write audio (T,) or (C, T) atomically, see `AudioWriter`."""
    audio = np.atleast_2d(np.asarray(audio))
    with AudioWriter(path, sample_rate, len(audio), subtype) as writer:
        writer.write(audio)


def find_audio_files(path: str | os.PathLike[str]) -> list[Path]:
    """List the files below a folder, sorted, or the one file given; one warning says which are left out and why.

    Hidden files are ignored; links to files are followed, links to folders are not. One file of another suffix is a
    ValueError.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if not path.is_dir():
        if path.suffix.lower() not in AUDIO_SUFFIXES:
            raise ValueError(f"{path}: expected a file ending in {', '.join(AUDIO_SUFFIXES)}")
        return [path]
    paths: list[Path] = []
    skipped: dict[str, list[str]] = defaultdict(list)

    def skip_folder(error: OSError) -> None:
        skipped["unreadable folder"].append(str(error.filename))

    for folder, folders, names in os.walk(path, onerror=skip_folder):
        skipped["linked folder"] += filter(os.path.islink, (os.path.join(folder, name) for name in folders))
        for name in names:
            full, suffix = os.path.join(folder, name), os.path.splitext(name)[1].lower()
            if name[0] == "." or suffix not in (*AUDIO_SUFFIXES, *_UNSUPPORTED_SUFFIXES):
                continue
            if suffix in _UNSUPPORTED_SUFFIXES:
                skipped[suffix].append(full)
            elif not os.path.isfile(full):
                skipped["broken link"].append(full)
            elif _printable(full) != full:
                skipped["name that is not UTF-8"].append(full)
            else:
                paths.append(Path(full))
    reasons = [f"{len(each)} {reason} ({_printable(min(each))})" for reason, each in sorted(skipped.items()) if each]
    if reasons:
        _warn_once(
            f"{_printable(os.fspath(path))}: left out {', '.join(reasons)}; convert other formats to wav or flac, "
            "links to folders are not followed"
        )
    return sorted(paths)


def _printable(path: str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


@functools.lru_cache(maxsize=1000)
def _warn_once(message: str) -> None:
    log.warning("%s", message)


class _UnsizedFile(io.FileIO):
    """An mp3 file whose length libsndfile cannot see: it then counts the frames instead of estimating them."""

    _is_at_end = False

    def tell(self) -> int:
        return (1 << 63) - 1 if self._is_at_end else super().tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._is_at_end = whence == io.SEEK_END and offset == 0
        if not self._is_at_end:
            with contextlib.suppress(OSError):  # a damaged tag may lead to before the first byte
                super().seek(offset, whence)
        return self.tell()

    def read(self, size: int | None = -1) -> bytes:
        return b"" if self._is_at_end else super().read(size)


class _NonSeekingFile(soundfile.SoundFile):
    """Decodes from the start: soundfile seeks after every read, which restarts the mp3 decoder and changes samples."""

    def seekable(self) -> bool:
        return False


def _open(path: Path) -> _NonSeekingFile:
    """Open a file of at least one sample for reading from its start to its end."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such audio file")
    if cause := find_truncation(path):
        raise AudioFileError(f"{path}: {cause}")
    try:
        handle = _NonSeekingFile(_UnsizedFile(path) if path.suffix.lower() == ".mp3" else path)
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: soundfile takes *.raw for headerless samples
        raise AudioFileError(f"{path}: not an audio file that can be decoded ({_reason(error)})") from error
    if handle.frames == 0:
        handle.close()
        raise AudioFileError(f"{path}: holds no samples")
    if handle.frames >= _UNKNOWN_SAMPLES:
        handle.close()
        raise AudioFileError(f"{path}: the header does not say how long it is (a FLAC from a pipe): encode it anew")
    return handle


def find_truncation(path: Path) -> str | None:
    """Say that a wav, aiff or ogg file ends too early, which libsndfile does not notice; None in other files.

    Sources: RIFF and RF64 chunks (EBU Tech 3306); Ogg pages (RFC 3533, section 6).
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
        file.seek(max(0, size - _OGG_PAGE_BYTES))
        end = file.read()
    if not start:
        return "is empty"
    if size + 1 < (expected := _promised_bytes(start)):  # some writers count a padding byte that they leave out
        return f"cut, its header promises {expected - size} more bytes"
    if start[:4] == b"OggS":
        page = end[end.rfind(b"OggS") :]
        segments = page[27 : 27 + page[26]] if len(page) > 26 else b""
        if not segments or len(page) < 27 + page[26] + sum(segments):
            return "cut, the last Ogg page is incomplete"
        if not page[5] & _OGG_END:
            return "cut, the Ogg stream has no end mark"
    return None


def _promised_bytes(start: bytes) -> int:
    """How long a file is by the header of its container, 0 where that does not say."""
    magic = start[:4]
    if magic == b"RIFF" and start[8:12] == b"WAVE":
        promised = int.from_bytes(start[4:8], "little") + 8
        return promised if promised < _STREAMED_BYTES else 0
    if magic in (b"RF64", b"BW64"):
        return int.from_bytes(start[20:28], "little") + 8  # in the chunk ds64
    if magic == b"riff":  # Sony's W64
        return int.from_bytes(start[16:24], "little")
    return int.from_bytes(start[4:8], "big") + 8 if magic == b"FORM" else 0  # AIFF


def _reason(error: Exception) -> str:
    """Say in one line, without the path, what libsndfile complains about."""
    text = str(getattr(error, "error_string", "") or error)
    # The mp3 decoder's words for any header it does not know; the file does exist here.
    return "format not recognised" if "does not exist" in text else text.rstrip(".").replace("\n", " ")


def _decode(handle: _NonSeekingFile, path: Path, start: int, samples: int) -> np.ndarray:
    """Decode audio (samples, C) float32 in blocks: headers lie about lengths and memory must not follow them.

    Raises:
        AudioFileError: the file ends before, or holds values that are not finite.
    """
    blocks: list[np.ndarray] = []
    missing = samples
    while missing > 0:
        try:
            block = handle.read(min(missing, BLOCK_SAMPLES), dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise AudioFileError(f"{path}: damaged or cut, decoding stopped ({_reason(error)})") from error
        if len(block) == 0:
            decoded = start + samples - missing
            raise AudioFileError(f"{path}: cut, {decoded} of the {handle.frames} samples of its header are there")
        if not np.isfinite(block).all():
            raise AudioFileError(f"{path}: holds NaN or infinite samples")
        blocks.append(block)
        missing -= len(block)
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
