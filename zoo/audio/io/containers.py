"""Find how many samples an audio file holds without decoding it: libsndfile trusts headers and estimates lengths.

Sources: RIFF and RF64 chunks (EBU Tech 3306); Ogg pages (RFC 3533, section 6); FLAC (RFC 9639, sections 8 and 9); MPEG
frame headers (ISO/IEC 11172-3, 2.4.1.3); ID3v2 (id3.org, version 2.4) and APEv2 tags.
"""

from __future__ import annotations

import io
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_UNKNOWN_LENGTH = 2**63 - 1  # of a file in libsndfile, which then decodes up to the end instead of estimating
_STREAMED_SIZES = (range(0x7FFF0000, 0x80010000), range(0xFFFF0000, 0x100000000))  # of a wav written into a pipe
_TRAILERS = (b"TAG", b"ID3", b"APETAGEX", b"LYRICS")
_ZERO_BLOCK = 1 << 16  # bytes compared together
_OGG_BEGIN, _OGG_END = 2, 4  # flags of a stream's first and last page
_FLAC_LONGEST_FRAME = 1 << 18  # bytes, where STREAMINFO does not say
_FLAC_BLOCKS = {1: 192, **{2 + n: 576 << n for n in range(4)}, **{8 + n: 256 << n for n in range(8)}}  # samples by code
_MPEG_SCAN = 1 << 16  # bytes in front of the first frame
_MPEG_1_LAYER_2 = (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)  # kbit/s
_MPEG_1_LAYER_3 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG_2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MPEG_RATES = (44100, 48000, 32000)


class ContainerError(ValueError):
    """A file whose samples libsndfile would not read completely; the message is the cause without the file's name."""


@dataclass(frozen=True)
class Layout:
    """Position of the audio in a file, and corrections of its header for libsndfile.

    Attributes:
        start: first byte behind the tags in front.
        end: byte behind the last one before the tags at the end.
        samples: samples per channel; None where libsndfile counts right.
        patches: bytes that replace wrong ones of the header, by their offset.
    """

    start: int
    end: int
    samples: int | None = None
    patches: Mapping[int, bytes] = field(default_factory=dict)


class LayoutFile:
    """The bytes of a file as its layout describes them; soundfile reads them by these methods."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._file = path.open("rb")
        self._layout = layout
        self._position = 0

    def tell(self) -> int:
        """Return the next byte to read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the next byte to read."""
        size = self._layout.end - self._layout.start
        if self._layout.samples is not None and offset == 0:
            size = _UNKNOWN_LENGTH  # soundfile asks for the length; a negative offset reads the tags at the end
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: size}[whence]
        return self._position

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes."""
        first = self._layout.start + self._position
        if first >= self._layout.end:
            return b""
        self._file.seek(first)
        content = bytearray(self._file.read(min(count, self._layout.end - first)))
        for offset, patch in self._layout.patches.items():
            for index, value in enumerate(patch, start=offset - first):
                if 0 <= index < len(content):
                    content[index] = value
        self._position += len(content)
        return bytes(content)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def inspect_container(path: Path, scan: bool = True) -> Layout:
    """Find the audio of a wav, flac, ogg, opus or mp3 file; other containers are left to libsndfile.

    Args:
        scan: look through all of a flac file for a second one behind the first, which reads as many bytes as decoding.

    Raises:
        ContainerError: the file is empty, a web page, cut, joined of several, or its header is wrong.
    """
    size = path.stat().st_size
    if size == 0:
        raise ContainerError("is empty (0 bytes)")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:64].lstrip()[:1] == b"<":
            raise ContainerError("is a text or web page, not audio (a failed download?)")
        start = _skip_id3(data, 0)
        end = _strip_trailers(data, size)
        magic = data[start : start + 12]
        if magic[:4] in (b"RIFF", b"RF64") and magic[8:] == b"WAVE":
            return _inspect_wav(data, size)
        if magic[:4] == b"OggS":
            _check_ogg(data, start, end)
            return Layout(start, end)
        if magic[:4] == b"fLaC":
            return _inspect_flac(data, start, end, scan)
        if magic[:4] == b"FORM" and len(magic) > 8 and struct.unpack(">I", magic[4:8])[0] + 8 > size:
            raise ContainerError("cut, the AIFF header promises more bytes than the file holds")
        junk = _MPEG_SCAN if start or path.suffix.lower() == ".mp3" else 1
        first = _find_mpeg_frame(data, start, end, junk)
        return Layout(0, size) if first is None else _inspect_mpeg(data, first, end)


def _skip_id3(data: mmap.mmap, start: int) -> int:
    """The byte behind the ID3v2 tags that begin at `start`."""
    while data[start : start + 3] == b"ID3" and len(data) >= start + 10:
        flags, *sizes = data[start + 5 : start + 10]
        start += 10 + sum(value << shift for value, shift in zip(sizes, (21, 14, 7, 0), strict=True))
        start += 10 if flags & 16 else 0  # a footer
    return start


def _skip_tag(data: mmap.mmap, start: int) -> int:
    """The byte behind an ID3v1 or ID3v2 tag between the frames of files that were joined."""
    return start + 128 if data[start : start + 3] == b"TAG" else _skip_id3(data, start)


def _strip_trailers(data: mmap.mmap, end: int) -> int:
    """The byte behind the audio: ID3v1 and APEv2 tags at the end are none."""
    if end >= 128 and data[end - 128 : end - 125] == b"TAG":
        end -= 128
    if end >= 32 and data[end - 32 : end - 24] == b"APETAGEX":
        size, _, flags = struct.unpack("<3I", data[end - 20 : end - 8])
        end -= size + (32 if flags & 1 << 31 else 0)
    return max(end, 0)


def _is_padding(data: mmap.mmap, start: int, end: int) -> bool:
    """Whether all bytes are zero."""
    blocks = range(start, end, _ZERO_BLOCK)
    return not any(data[first : min(end, first + _ZERO_BLOCK)].strip(b"\0") for first in blocks)


def _inspect_wav(data: mmap.mmap, size: int) -> Layout:
    position, large = 12, None
    while position + 8 <= size:
        name, length = struct.unpack("<4sI", data[position : position + 8])
        if name == b"ds64" and position + 24 <= size:
            large = struct.unpack("<Q", data[position + 16 : position + 24])[0]
        if name == b"data":
            break
        position += 8 + length + length % 2
    else:
        return Layout(0, size)  # no samples: libsndfile refuses the file itself
    first = position + 8
    if length == 0xFFFFFFFF and large is not None:
        length = large
    elif any(length in sizes for sizes in _STREAMED_SIZES) and length > size - first:
        return Layout(0, size, patches={position + 4: b"\xff" * 4})
    elif length == 0 and size > first and not _is_chunk(data, first, size):
        return Layout(0, size, patches={position + 4: b"\xff" * 4})
    riff = struct.unpack("<I", data[4:8])[0] + 8
    if length > size - first and (riff > size or large is not None):
        raise ContainerError(f"cut, the WAV header promises {first + length - size} more bytes than the file holds")
    _check_chunks(data, first + length, size, length)
    return Layout(0, size)


def _is_chunk(data: mmap.mmap, position: int, end: int | None = None) -> bool:
    """Whether a RIFF chunk begins here and, where `end` is given, ends there or before."""
    header = data[position : position + 8]
    if len(header) < 8 or not all(32 <= value < 127 for value in header[:4]):
        return False
    return end is None or position + 8 + struct.unpack("<I", header[4:])[0] <= end


def _check_chunks(data: mmap.mmap, position: int, size: int, length: int) -> None:
    """Refuse samples behind those that the header of a wav counts."""
    position += length % 2 if not _is_chunk(data, position) else 0  # some writers leave the padding out
    while position < size and _is_chunk(data, position):
        name, length = struct.unpack("<4sI", data[position : position + 8])
        if name in (b"RIFF", b"RF64"):
            raise ContainerError("two WAV files joined; split them or encode them again as one")
        if data[position : position + 8].startswith(_TRAILERS):
            return
        position += 8 + length + length % 2
    if position < size and not _is_padding(data, position, size) and data[position : position + 3] not in _TRAILERS:
        raise ContainerError(
            f"the WAV header does not count the last {size - position} bytes: a wrong header, or files joined"
        )


def _check_ogg(data: mmap.mmap, position: int, end: int) -> None:
    flags, has_begun = 0, False
    if position + 27 > end:
        raise ContainerError("cut, the first Ogg page is incomplete")
    if not data[position + 5] & _OGG_BEGIN:
        raise ContainerError("cut, the beginning of the Ogg stream is missing")
    while data[position : position + 4] == b"OggS":
        segments = data[position + 27 : position + 27 + data[position + 26]] if position + 27 <= end else b""
        page_end = position + 27 + len(segments) + sum(segments)
        if position + 27 > end or len(segments) < data[position + 26] or page_end > end:
            raise ContainerError("cut, the last Ogg page is incomplete")
        flags = data[position + 5]
        if flags & _OGG_BEGIN and has_begun:
            raise ContainerError("several Ogg streams joined; split them or encode them again as one")
        has_begun = has_begun or not flags & _OGG_BEGIN
        position = page_end
    if data.find(b"OggS", position, end) >= 0:
        raise ContainerError(f"damaged, there is no Ogg page at byte {position}")
    if not flags & _OGG_END:
        raise ContainerError("cut, the Ogg stream has no end mark")


def _inspect_flac(data: mmap.mmap, start: int, end: int, scan: bool) -> Layout:
    block_samples = int.from_bytes(data[start + 8 : start + 10], "big")
    longest = int.from_bytes(data[start + 15 : start + 18], "big") or _FLAC_LONGEST_FRAME
    fields = int.from_bytes(data[start + 18 : start + 26], "big")
    first, is_last = start + 4, False
    while not is_last and first + 4 <= end:
        is_last = bool(data[first] & 0x80)
        first += 4 + int.from_bytes(data[first + 1 : first + 4], "big")
    if first + 8 > end:
        raise ContainerError("cut, the FLAC file ends before its first frame")
    if scan and any(data.find(b"fLaC" + block, first, end) > 0 for block in (b"\0\0\0\x22", b"\x80\0\0\x22")):
        raise ContainerError("several FLAC files joined; split them or encode them again as one")
    promised = fields & (1 << 36) - 1
    position = end
    samples = None
    while (
        samples is None and (position := data.rfind(data[first : first + 2], max(first, end - longest), position)) > 0
    ):
        samples = _parse_flac_frame(data[position : position + 16], data[first : first + 4], block_samples)
    if samples is None and promised == 0:
        raise ContainerError("damaged, the FLAC header counts no samples and no frame is at the end")
    if samples is None:
        return Layout(start, end)
    if promised not in (0, samples):
        raise ContainerError(
            f"cut, joined or a wrong header, the FLAC header promises {promised} samples and the last frame ends at "
            f"{samples}"
        )
    # the number of samples stands in the last 36 bits
    return Layout(start, end, patches={} if promised else {start + 18: (fields | samples).to_bytes(8, "big")})


def _parse_flac_frame(header: bytes, first: bytes, block_samples: int) -> int | None:
    """The number of samples up to the end of a FLAC frame; None where none begins.

    Args:
        header: its first 16 bytes, fewer at the end of the file.
        first: those of the first frame of the stream.
    """
    if len(header) < 8 or (header[2] ^ first[2]) & 0x0F or (header[3] ^ first[3]) & 0x0F:
        return None
    number, position = header[4], 5
    if number >= 0x80:  # coded like UTF-8, in up to 7 bytes
        ones = 8 - (~number & 0xFF).bit_length()
        if not 2 <= ones <= 7:
            return None
        number &= 0x7F >> ones
        for value in header[5 : 4 + ones]:
            number = number << 6 | value & 0x3F
        position = 4 + ones
    code = header[2] >> 4
    extra = {6: 1, 7: 2}.get(code, 0)
    samples = _FLAC_BLOCKS.get(code) or int.from_bytes(header[position : position + extra], "big") + 1
    position += extra + {12: 1, 13: 2, 14: 2}.get(header[2] & 0x0F, 0)
    if code == 0 or position >= len(header) or _crc8(header[:position]) != header[position]:
        return None
    return samples + (number if header[1] & 1 else number * block_samples)


def _crc8(content: bytes) -> int:
    remainder = 0
    for value in content:
        remainder ^= value
        for _ in range(8):
            remainder = (remainder << 1 ^ (7 if remainder & 0x80 else 0)) & 0xFF
    return remainder


def _parse_mpeg_header(header: bytes) -> tuple[int, int, int] | None:
    """Read the header of a frame of MPEG layer 2 or 3.

    Returns:
        Its bytes, its samples, and the bits that all frames of a stream share; None where no frame begins.
    """
    word = int.from_bytes(header, "big")
    version, layer = word >> 19 & 3, 4 - (word >> 17 & 3)
    bitrate, rate = word >> 12 & 15, word >> 10 & 3
    if len(header) < 4 or word >> 21 != 0x7FF or version == 1 or layer not in (2, 3) or bitrate in (0, 15) or rate == 3:
        return None
    rates = _MPEG_2 if version != 3 else _MPEG_1_LAYER_2 if layer == 2 else _MPEG_1_LAYER_3
    samples = 1152 if version == 3 or layer == 2 else 576
    hertz = _MPEG_RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    is_mono = word >> 6 & 3 == 3
    return samples // 8 * rates[bitrate - 1] * 1000 // hertz + (word >> 9 & 1), samples, word & 0x1E0C00 | is_mono


def _find_mpeg_frame(data: mmap.mmap, start: int, end: int, junk: int) -> int | None:
    """Find the first frame, behind which another one or the end follows, in the first `junk` bytes."""
    position = start
    while 0 <= (position := data.find(b"\xff", position, min(end, start + junk))):
        frame = _parse_mpeg_header(data[position : position + 4])
        if frame is not None:
            behind = position + frame[0]
            following = _parse_mpeg_header(data[behind : behind + 4])
            if behind >= end or (following is not None and following[2] == frame[2]):
                return position
        position += 1
    return None


def _inspect_mpeg(data: mmap.mmap, start: int, end: int) -> Layout:
    """Count the frames, whose headers tell their lengths; a first frame that counts them holds no sound itself."""
    first = _parse_mpeg_header(data[start : start + 4])
    assert first is not None
    _, samples, stream = first
    sizes: dict[bytes, int] = {}
    frames, position = 0, start
    while position + 4 <= end:
        header = data[position : position + 4]
        size = sizes.get(header)
        if size is None:
            frame = _parse_mpeg_header(header)
            if frame is None:
                if (behind := _skip_tag(data, position)) > position:
                    position = behind
                    continue
                if _is_padding(data, position, end):
                    break
                raise ContainerError(f"damaged or joined, there is no MPEG frame at byte {position}")
            if frame[2] != stream:
                raise ContainerError(f"MPEG streams of different kinds joined, another begins at byte {position}")
            size = sizes[header] = frame[0]
        if position + size > end:
            raise ContainerError("cut, the last MPEG frame is incomplete")
        position += size
        frames += 1
    is_tagged, promised = _parse_xing(data[start : start + 64])
    if is_tagged:
        frames -= 1
    if promised is None:
        return Layout(start, end, samples=frames * samples)
    if frames != promised:
        fault = "cut" if frames < promised else "several files joined, or a wrong header"
        raise ContainerError(f"{fault}, the Xing header promises {promised} MPEG frames and {frames} are there")
    return Layout(start, end)


def _parse_xing(frame: bytes) -> tuple[bool, int | None]:
    """Whether a frame is a Xing (VBR) or Info (CBR) header, and the number of frames that it promises."""
    start = max(frame.find(b"Xing"), frame.find(b"Info"))
    if start < 0 or start + 12 > len(frame):
        return False, None
    flags, promised = struct.unpack(">2I", frame[start + 4 : start + 12])
    return True, promised if flags & 1 else None
