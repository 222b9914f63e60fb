import io
import struct
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
import torch

from zoo.common.reading.archives import data_start, open_checked
from zoo.common.reading.errors import UnsafeFileError


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(5.0), "b": torch.zeros(1000)}, buffer)
    return buffer.getvalue()


def zipped(compression: int = zipfile.ZIP_STORED, size: int = 1000) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("a", bytes(size))
        archive.writestr("b", bytes(size))
    return buffer.getvalue()


def altered(change: Callable[[zipfile.ZipFile], None]) -> bytes:
    """A zip whose directory was changed before it was written."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", bytes(1000))
        archive.writestr("b", bytes(1000))
        change(archive)
    return buffer.getvalue()


def set_of_first(**values: int) -> Callable[[zipfile.ZipFile], None]:
    def change(archive: zipfile.ZipFile) -> None:
        for name, value in values.items():
            setattr(archive.filelist[0], name, value)

    return change


def set_of_second(**values: object) -> Callable[[zipfile.ZipFile], None]:
    def change(archive: zipfile.ZipFile) -> None:
        for name, value in values.items():
            setattr(archive.filelist[1], name, value)

    return change


def test_what_torch_and_numpy_write_is_opened():
    with open_checked(io.BytesIO(saved())) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data/0"))
        entry = archive.getinfo(name)
        start = data_start(io.BytesIO(saved()), entry)
        assert np.frombuffer(saved()[start : start + entry.file_size], np.float32).tolist() == [0, 1, 2, 3, 4]
    for write in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        write(buffer, a=np.zeros(5), b=np.ones((3, 4)))
        assert open_checked(buffer, stored=False).namelist() == ["a.npy", "b.npy"]
    assert open_checked(io.BytesIO(zipped())).namelist() == ["a", "b"]


BOMBS = {
    "one place": (altered(set_of_second(header_offset=0, filename="c")), "overlap"),
    "overlap": (altered(set_of_first(file_size=1200, compress_size=1200)), "overlap"),
    "two sizes": (altered(set_of_first(file_size=10**9)), "two sizes"),
    "beyond the end": (altered(set_of_second(file_size=10**6, compress_size=10**6)), "longer than the file"),
    "one name": (altered(set_of_second(filename="a")), "one name"),
    "encrypted": (altered(set_of_first(flag_bits=1)), "encrypted"),
    "elsewhere": (altered(set_of_first(header_offset=7)), "not where"),
    "compressed": (zipped(zipfile.ZIP_DEFLATED), "compress"),
    "lzma": (zipped(zipfile.ZIP_LZMA), "unusual"),
    "prefix": (b"before" + zipped(), "before or within"),
    "suffix": (zipped() + b"after", "something follows"),
    "comment": (zipped()[:-2] + b"\x02\0PK", "something follows"),
    "cut": (zipped()[:-30], "cut"),
    "empty": (b"", "cut"),
    "html": (b"<html>" * 100, "cut"),
    "record of 64 bits elsewhere": (saved()[:-34] + struct.pack("<Q", 0) + saved()[-26:], "end record"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_others_are_refused(name):
    content, reason = BOMBS[name]
    with pytest.raises(ValueError, match=reason):
        open_checked(io.BytesIO(content))


def test_compressed_entries_may_unpack_to_so_much():
    content = zipped(zipfile.ZIP_DEFLATED)
    assert open_checked(io.BytesIO(content), stored=False).namelist() == ["a", "b"]
    bomb = zipped(zipfile.ZIP_DEFLATED, 2**27)
    with pytest.raises(UnsafeFileError, match="unpack to"):
        open_checked(io.BytesIO(bomb), stored=False)


def test_long_directories_are_not_read(monkeypatch):
    monkeypatch.setattr("zoo.common.reading.archives.MAX_DIRECTORY_BYTES", 50)
    with pytest.raises(UnsafeFileError, match="at most 50"):
        open_checked(io.BytesIO(zipped()))
