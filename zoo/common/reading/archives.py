"""Zip files of strangers: checked for what they claim before anything reads them."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO

from zoo.common.reading.errors import UnsafeFileError

# A zip's directory is read whole, and each entry becomes an object of some 700 bytes: some 250,000 of them.
MAX_DIRECTORY_BYTES = 2**24
# What compressed entries may unpack to: so much for each byte of the file, and a constant.
EXPANSION_FACTOR = 3
EXPANSION_BYTES = 2**27

_END = struct.Struct("<4sHHHHIIH")
_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
_ENCRYPTED = 1


def open_checked(file: IO[bytes], stored: bool = True) -> zipfile.ZipFile:
    """Open a zip whose entries are what its directory says and share no bytes.

    Readers differ in what they make of overlapping entries, two entries of one name, or bytes around the archive, and
    allocate what an entry claims; so all of these are refused.

    Args:
        file: opened for reading, seekable.
        stored: refuse compressed entries; otherwise they may unpack to `EXPANSION_FACTOR` times the file and
            `EXPANSION_BYTES` more, together.

    Returns:
        The archive, still to be closed.

    Raises:
        UnsafeFileError: it is a bomb, or two readers would read two things.
        ValueError: it is no zip, or cut.
    """
    start = _directory_start(file)
    size = file.seek(0, 2)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"its zip directory cannot be read ({error})") from error
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    if len({entry.filename for entry in entries}) < len(entries):
        raise UnsafeFileError("two entries of its zip archive have one name")
    end = 0
    for entry in entries:
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"the entry {entry.filename[:80]!r} is encrypted or compressed in an unusual way")
        if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
            raise ValueError(f"the entry {entry.filename[:80]!r} has two sizes")
        if entry.header_offset < end:
            raise UnsafeFileError("entries of its zip archive overlap (a zip bomb?)")
        end = data_start(file, entry) + entry.compress_size
    if end > start:
        raise ValueError("a part of its zip archive is longer than the file")
    if stored and any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise UnsafeFileError("its zip archive is compressed, expected no compression, as torch saves (a zip bomb?)")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > EXPANSION_FACTOR * size + EXPANSION_BYTES:
        raise UnsafeFileError(f"its {size} bytes unpack to {unpacked} (a zip bomb?); save it without compression")
    return archive


def check_zip(path: Path) -> None:
    """Check a zip, perhaps compressed, before a library opens it.

    Raises:
        UnsafeFileError: it is a bomb, or two readers would read two things.
        ValueError: it is no zip, or cut.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        open_checked(file, stored=False).close()


def _directory_start(file: IO[bytes]) -> int:
    """Where the directory begins, which must fill the room up to the archive's end exactly."""
    end = file.seek(0, 2) - _END.size
    place = max(end - _LOCATOR.size, 0)
    file.seek(place)
    locator, record = file.read(end - place), file.read(_END.size)
    if end < 0 or len(record) < _END.size or not record.startswith(b"PK\x05\x06") or record[-2:] != b"\0\0":
        raise ValueError("it does not end like a zip archive: it is cut, or something follows")
    *_, length, start, _ = _END.unpack(record)
    if locator.startswith(b"PK\x06\x07"):
        *_, end, _ = _LOCATOR.unpack(locator)
        file.seek(end)
        record = file.read(_END_64.size)
        if end + _END_64.size != place or not record.startswith(b"PK\x06\x06"):
            raise ValueError("its zip archive has no end record where it says so")
        *_, length, start = _END_64.unpack(record)
    if start + length != end:
        raise ValueError("its zip directory is not where it says: something stands before or within the archive")
    if length > MAX_DIRECTORY_BYTES:
        raise UnsafeFileError(f"its zip directory has {length} bytes, at most {MAX_DIRECTORY_BYTES} are read")
    return start


def data_start(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin.

    Raises:
        ValueError: there is no such entry there.
    """
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise ValueError(f"the entry {entry.filename[:80]!r} is not where its zip directory says")
    *_, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    return entry.header_offset + _LOCAL_HEADER.size + name_length + extra_length
