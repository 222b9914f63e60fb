"""Read checkpoints of other projects as data: nothing that a file contains is imported or executed.

torch's weights-only unpickler does the reading. It calls registered classes only; every other class or function that a
file names is registered as an inert `Record` for the time of the reading.
"""

from __future__ import annotations

import math
import pickle
import re
import tarfile
import threading
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch._weights_only_unpickler import get_globals_in_pkl

EXPANSION_FACTOR, EXPANSION_BYTES = 3, 2**27  # a zip file may unpack to so many times its size, and so much more
LEGACY_PICKLES = 4  # of a file from before torch 1.6: magic number, version, byte order, content

# Codes of numpy dtypes whose elements are numbers or fixed text. An array of objects or of fields can read memory that
# is not its own once a file sets its flags.
_PLAIN_DTYPE = re.compile(r"[<>|=]?(?:[?biufcSUV]\d{0,9})")
_LOCK = threading.Lock()  # torch's list of registered classes belongs to the process


class UnsafeFileError(ValueError):
    """A file that asks to run code, or that unpacks to far more than its own size."""


class Record:
    """Inert stand-in for an object, class or function of another project."""

    path: ClassVar[str] = ""  # dotted name as the file writes it, `fm.FMScheduler`
    args: tuple[Any, ...] = ()  # that it would have been called with
    state: Any = None  # what the attributes of the object would have become, commonly a dict

    def __new__(cls, *args: Any) -> Record:
        """Record a call, with or without the constructor."""
        record = super().__new__(cls)
        record.args = args
        return record

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str, default: Any = None) -> Any:
        """Return the attribute `name` of the recorded object, or `default` where it has none."""
        return self.state.get(name, default) if isinstance(self.state, Mapping) else default


class _Array(np.ndarray):
    """An array that is empty whatever it is called with, and checks the state that fills it; saved as a plain array."""

    def __new__(cls, *_: Any) -> _Array:
        return super().__new__(cls, (0,), np.int8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        dtype = _plain_dtype(dtype)
        is_shape = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if self.size or not is_shape or len(raw) != math.prod(shape) * dtype.itemsize:
            raise UnsafeFileError(f"an array of {dtype} whose shape and bytes do not fit, or which is filled twice")
        super().__setstate__((1, shape, dtype, bool(is_fortran), raw))  # type: ignore[arg-type]

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()


def _plain_dtype(record: Any) -> np.dtype:
    code = record.args[0] if isinstance(record, Record) and record.path == "numpy.dtype" and record.args else None
    if not isinstance(code, str) or not _PLAIN_DTYPE.fullmatch(code) or not np.dtype(code).itemsize:
        raise UnsafeFileError(f"numpy dtype {code!r}; only numbers and fixed text are data")
    is_big_endian = isinstance(record.state, tuple) and record.state[1:2] == (">",)
    return np.dtype(code).newbyteorder(">" if is_big_endian else "<")


def _scalar(dtype: Any, raw: bytes) -> Any:
    return np.frombuffer(raw, _plain_dtype(dtype), 1)[0]


# What a file may call, by name, beside what torch allows; none of it runs code, opens a file or imports.
_BUILDERS: dict[str, Callable[..., Any]] = {
    **{
        f"numpy.{core}.multiarray.{name}": builder
        for core in ("core", "_core")
        for name, builder in (("_reconstruct", _Array), ("scalar", _scalar))
    },
    **{
        f"{module}.{name}": PureWindowsPath if name.endswith("WindowsPath") else PurePosixPath
        for module in ("pathlib", "pathlib._local")  # the second since Python 3.13
        for name in "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath".split()
    },
    "builtins.frozenset": frozenset,
    "builtins.bytes": lambda: b"",  # protocol 2 writes other bytes by _codecs.encode
    "collections.defaultdict": lambda *_: OrderedDict(),
    "collections.deque": lambda entries=(), *_: list(entries),
}


def load_foreign_checkpoint(path: Path | str, mmap: bool = False) -> Any:
    """Read a checkpoint of another project (torch zip or older file, safetensors) as plain data.

    Tensors, on the CPU and with `mmap` left on disk until they are used, and numpy arrays are real. Every foreign
    object is a `Record`, every foreign class or function that is not called a subclass of it.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafeFileError: the file asks to run code or is of a kind that cannot be read as data.
        ValueError: the file is corrupt or of no known kind.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        is_zip = zipfile.is_zipfile(path)
        return _load_torch(path, _pickled_globals(path, is_zip), mmap and is_zip)
    except (UnsafeFileError, pickle.UnpicklingError) as error:
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0]
        raise UnsafeFileError(f"{path}: {reason:.300}; nothing of the file was executed") from error
    except (MemoryError, OSError):
        raise
    except Exception as error:  # damaged files make torch fail in many ways
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        raise ValueError(f"{path}: not a torch or safetensors file, or an incomplete one ({reason})") from error


def _pickled_globals(path: Path, is_zip: bool) -> set[str]:
    """List the classes and functions that a file names."""
    try:
        if is_zip:
            check_archive(path, compressed=False)
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                if any(name.endswith("/constants.pkl") for name in names):
                    raise UnsafeFileError("a TorchScript archive holds code; save its state_dict() with torch.save")
                (pickled,) = (name for name in names if name.split("/")[1:] == ["data.pkl"])
                with archive.open(pickled) as file:
                    return get_globals_in_pkl(file)
        if tarfile.is_tarfile(path):
            raise UnsafeFileError("torch files from before 2017 (tar) are not read; save it again with a later torch")
        with path.open("rb") as file:
            return set().union(*(get_globals_in_pkl(file) for _ in range(LEGACY_PICKLES)))
    except pickle.UnpicklingError as error:
        raise ValueError(f"{error}; torch.save with pickle_protocol=2 writes what is read") from error


def _load_torch(path: Path, names: set[str], mmap: bool) -> Any:
    records = [(type(name.rpartition(".")[2], (Record,), {"path": name}), name) for name in names - _BUILDERS.keys()]
    allowed: list[Any] = [*records, *((builder, name) for name, builder in _BUILDERS.items())]
    with _LOCK:
        registered = torch.serialization.get_safe_globals()  # other libraries' classes must not stand in for ours
        torch.serialization.clear_safe_globals()
        try:
            with torch.serialization.safe_globals(allowed), warnings.catch_warnings(action="ignore"):  # of protocols
                return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        finally:
            torch.serialization.add_safe_globals(registered)


def check_archive(path: Path, compressed: bool = True) -> None:
    """Refuse a zip file that is incomplete or unpacks to far more than its own size, before a library opens it."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
        raise ValueError(f"its zip directory cannot be read ({error})") from error
    if any(entry.compress_size > size for entry in entries):
        raise ValueError("an entry of the zip file is longer than the file")
    if not compressed and any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise UnsafeFileError("its zip entries are compressed, expected none, as torch saves")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > EXPANSION_FACTOR * size + EXPANSION_BYTES:
        raise UnsafeFileError(f"its {size} bytes unpack to {unpacked}; save it without compression")


def to_plain_values(value: Any) -> Any:
    """Turn OmegaConf nodes and namespaces inside a loaded object into dicts, lists and values; other records stay."""
    try:
        return _to_plain(value)
    except RecursionError as error:
        raise UnsafeFileError("its containers nest too deeply or contain one another in a circle") from error


def _to_plain(value: Any) -> Any:
    if isinstance(value, Record) and isinstance(value.state, Mapping):
        if value.path == "argparse.Namespace":
            return _to_plain(value.state)
        keys = [key for key in ("_content", "_val") if value.path.startswith("omegaconf.") and key in value.state]
        return _to_plain(value.state[keys[0]]) if keys else value
    if isinstance(value, Mapping):
        return {key: _to_plain(entry) for key, entry in value.items()}
    return type(value)(map(_to_plain, value)) if type(value) in (list, tuple) else value
