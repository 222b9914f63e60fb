"""Files of torch and pickles, read as data: nothing that a file contains is ever executed."""

from __future__ import annotations

import io
import mmap
import reprlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from zoo.common.reading.archives import data_start, open_checked
from zoo.common.reading.budget import Budget, check_shape
from zoo.common.reading.errors import UnsafeFileError
from zoo.common.reading.unpickle import Machine
from zoo.common.reading.values import Stub

# First pickle of torch's format before 1.6 and the version that follows it (torch.serialization).
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_VERSION = 1001

STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}

_ZIP_MARK = b"PK\x03\x04"
_STEPS_PER_ENTRY = 20  # what reading a zip's directory takes, in opcodes
_BYTES_PER_STEP = 1024  # the same of copying an embedded file


def read_torch(path: Path, mapped: bool = False) -> Any:
    """Read a torch file or a pickle as plain data.

    Memory stays below `budget.BYTES_PER_BYTE` + 1 times the file and `budget.BYTES_FREE`; what asks for more, or for
    more than `budget.MAX_STEPS`, is refused.

    Args:
        path: torch zip file, torch file of the format before 1.6, or plain pickle.
        mapped: leave the tensors of a zip file on disk until they are used, and their checksums unread.

    Returns:
        The file's object; tensors (on the CPU) and numpy arrays are real, every foreign class is a `Stub`.

    Raises:
        UnsafeFileError: the file asks to run code, is a bomb, or is of a kind that cannot be read as data.
        ValueError: the file is damaged or of no known kind.
        OSError: it cannot be opened.
    """
    try:
        budget = Budget(path.stat().st_size)
        content = _read(path, budget, mapped)
        check_shape(content, budget)
    except UnsafeFileError as error:
        raise UnsafeFileError(f"{path}: {error}; nothing of the file was executed") from error
    except (MemoryError, OSError):
        raise
    except Exception as error:
        # Random bytes make a pickle machine fail in every way there is; all mean the same to the user.
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: neither a torch nor a pickle file, or an incomplete one ({reason})") from error
    return content


def _read(path: Path, budget: Budget, mapped: bool) -> Any:
    with path.open("rb") as file:
        zipped = file.read(4) == _ZIP_MARK
        if not zipped:
            # A mapped file hands out what is there; a buffered one allocates what a length claims before reading.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
                return _read_stream(stream, budget)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if mapped else None
        return _read_zip(file, budget, mapping)


def _read_embedded(data: bytes, budget: Budget) -> Any:
    """Read a torch file embedded in a pickle, as tensors of plain pickles are."""
    budget.build(0, steps=len(data) // _BYTES_PER_STEP)
    stream = io.BytesIO(data)
    return _read_zip(stream, budget, None) if data.startswith(_ZIP_MARK) else _read_stream(stream, budget)


def _read_zip(file: IO[bytes], budget: Budget, mapping: mmap.mmap | None) -> Any:
    """Read torch's format since 1.6: a zip of one pickle and a file per storage."""
    with open_checked(file) as archive:
        names = {entry.filename: entry for entry in archive.infolist()}
        budget.build(0, steps=_STEPS_PER_ENTRY * len(names))
        if any(name.endswith("/constants.pkl") for name in names):
            raise UnsafeFileError("a TorchScript archive holds code; save its state_dict() with torch.save instead")
        roots = [name.removesuffix("data.pkl") for name in names if name.split("/")[1:] == ["data.pkl"]]
        if len(roots) != 1:
            raise UnsafeFileError(f"a zip file with {len(roots)} data.pkl is no torch file")
        root = roots[0]
        order = archive.read(f"{root}byteorder").decode("latin1") if f"{root}byteorder" in names else "little"
        _check_order(order)

        def allocate(key: str, dtype: torch.dtype, count: int) -> torch.Tensor:
            entry = names[f"{root}data/{key}"]
            return _zip_storage(archive, file, entry, mapping, dtype, count)

        storages = _Storages(allocate, budget)
        pickled = io.BytesIO(archive.read(f"{root}data.pkl"))
        return Machine(pickled, budget, storages.find, _read_embedded).load()


class _Storages:
    """The storages of a file by key, each made once.

    Args:
        allocate: makes a flat tensor from key, dtype and number of values.
    """

    def __init__(self, allocate: Callable[[str, torch.dtype, int], torch.Tensor], budget: Budget) -> None:
        self.allocate = allocate
        self.budget = budget
        self.made: dict[str, torch.Tensor] = {}

    def find(self, identifier: Any) -> torch.Tensor:
        """The storage of a persistent id `("storage", type, key, location, count, …)`."""
        dtype, key, count = _storage_identifier(identifier)
        if key not in self.made:
            self.budget.build(count * dtype.itemsize)
            self.made[key] = self.allocate(key, dtype, count)
        view = identifier[5] if len(identifier) > 5 else None
        return self.made[key] if view is None else self.made[key][view[1] : view[1] + view[2]]


def _read_stream(stream: io.BytesIO | mmap.mmap, budget: Budget) -> Any:
    """Read a plain pickle, or torch's format before 1.6: header pickles, the object, then the bytes of its storages."""
    size = stream.seek(0, io.SEEK_END) or stream.tell()
    stream.seek(0)
    if stream.read(262)[257:262] == b"ustar":
        raise UnsafeFileError("torch files from before 2017 (tar) are not read; save it anew with the original code")
    stream.seek(0)

    def load(storage: Callable[[Any], torch.Tensor] = _refuse_storage) -> Any:
        return Machine(stream, budget, storage, _read_embedded).load()

    first = load()
    if type(first) is not int or first != LEGACY_MAGIC:
        return first
    version = load()
    if version != LEGACY_VERSION:
        raise ValueError(f"torch file version {version!r}, expected {LEGACY_VERSION}")
    _check_order("little" if load().get("little_endian", True) else "big")

    def allocate(key: str, dtype: torch.dtype, count: int) -> torch.Tensor:
        claimed = sum(entry.nbytes for entry in storages.made.values()) + count * dtype.itemsize
        if claimed > size:
            raise ValueError(f"its storages claim {claimed} bytes, the file has {size}")
        return torch.zeros(count, dtype=dtype)

    storages = _Storages(allocate, budget)
    result = load(storages.find)
    for key in load():
        flat = storages.made[key]
        count = int.from_bytes(stream.read(8), "little")
        if count != flat.numel():
            raise ValueError(f"storage {key!r} has {count} elements, its header says {flat.numel()}")
        raw = bytearray(stream.read(flat.nbytes))
        if len(raw) != flat.nbytes:
            raise ValueError(f"storage {key!r} ends early")
        if count:
            flat.copy_(torch.frombuffer(raw, dtype=flat.dtype))
    return result


def _check_order(order: str) -> None:
    if order != sys.byteorder:
        raise ValueError(f"its byte order is {order!r}, this machine's {sys.byteorder!r}")


def _refuse_storage(identifier: Any) -> torch.Tensor:
    raise UnsafeFileError(
        f"it refers to the external object {reprlib.repr(identifier)}, which a plain pickle cannot hold"
    )


def _storage_identifier(identifier: Any) -> tuple[torch.dtype, str, int]:
    if not isinstance(identifier, tuple) or len(identifier) < 5 or identifier[0] != "storage":
        raise UnsafeFileError(f"it refers to an unknown external object {reprlib.repr(identifier)}")
    kind, key, count = identifier[1], identifier[2], identifier[4]
    dtype = STORAGE_DTYPES.get(kind.path.rpartition(".")[2]) if isinstance(kind, Stub) else None
    if dtype is None or type(count) is not int or count < 0 or not isinstance(key, str):
        raise UnsafeFileError(f"it refers to an unknown storage {reprlib.repr(identifier)}")
    return dtype, key, count


def _zip_storage(
    archive: zipfile.ZipFile,
    file: IO[bytes],
    entry: zipfile.ZipInfo,
    mapping: mmap.mmap | None,
    dtype: torch.dtype,
    count: int,
) -> torch.Tensor:
    if entry.file_size != count * dtype.itemsize:
        raise ValueError(f"{entry.filename} has {entry.file_size} bytes, expected {count} x {dtype.itemsize}")
    if not count:
        return torch.empty(0, dtype=dtype)
    if mapping is not None:
        return torch.frombuffer(mapping, dtype=dtype, count=count, offset=data_start(file, entry))
    return torch.frombuffer(bytearray(archive.read(entry)), dtype=dtype)
