"""What foreign files are read into: plain data, and records of what is none."""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch

from zoo.common.reading.errors import UnsafeFileError

_DTYPE_NAMES = """float16 float32 float64 bfloat16 half float double int8 int16 int32 int64 uint8 short int long bool
uint16 uint32 uint64 complex64 complex128 float8_e4m3fn float8_e5m2"""
DTYPES = {f"torch.{name}": getattr(torch, name) for name in _DTYPE_NAMES.split()}

# Codes of numpy dtypes whose elements are numbers or fixed text; "O" (objects) and structured ones are not data to us.
_PLAIN_DTYPE = re.compile(r"[<>|=]?([?biufcSUV]\d{0,9})")
MAX_DIMENSIONS = 64  # as numpy and torch


@dataclass(eq=False, repr=False)
class Stub:
    """Inert record that stands for an object, class or function of a foreign file.

    Args:
        path: dotted name as the file writes it, `fm.FMScheduler`.
        args: arguments it would have been called with; `()` for a bare class or function.
        state: what the object's attributes would have become, commonly a dict; None without any.
        elements: what would have been appended or added.
        entries: what would have been set by key.
    """

    path: str
    args: tuple[Any, ...] = ()
    state: Any = None
    elements: list[Any] = field(default_factory=list)
    entries: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Stub({self.path})"

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        """Record a value that would have been appended or added."""
        self.elements.append(value)

    add = append

    def get(self, name: str, default: Any = None) -> Any:
        """Return the recorded attribute `name`, or `default` where the state has none."""
        return self.state.get(name, default) if isinstance(self.state, Mapping) else default


def _tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> torch.Tensor:
    """Rebuild a strided tensor; gradient flags and hooks are dropped. `as_strided` checks the bounds."""
    for given in (size, stride):
        _check_shape(given)
    return torch.as_strided(storage, tuple(size), tuple(stride), storage.storage_offset() + offset)


def _tensor_v3(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *rest: Any) -> torch.Tensor:
    return _tensor(storage.view(rest[2]), offset, size, stride)


def _parameter(data: torch.Tensor, *_: Any) -> torch.Tensor:
    return data


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding.replace("-", "") != "latin1":
        raise UnsafeFileError(f"text encoding {encoding!r}, expected latin1")
    return text.encode("latin1")


def _bytes(value: Any = b"", encoding: str = "latin1") -> bytes:
    """Rebuild bytes; `bytes(n)` would allocate n, so integers are refused."""
    if isinstance(value, int):
        raise UnsafeFileError(f"it asks for {value} zero bytes")
    return _latin1(value, encoding) if isinstance(value, str) else bytes(value)


def _check_shape(shape: Any) -> None:
    if not isinstance(shape, tuple | list) or len(shape) > MAX_DIMENSIONS:
        raise UnsafeFileError(f"a shape or stride is no list of at most {MAX_DIMENSIONS} numbers")


def _dtype(record: Any) -> np.dtype:
    code = record.args[0] if isinstance(record, Stub) and record.path == "numpy.dtype" and record.args else record
    match = _PLAIN_DTYPE.fullmatch(code) if isinstance(code, str) else None
    if match is None or not np.dtype(match[1]).itemsize:  # elements without bytes make arrays of any size
        raise UnsafeFileError(f"numpy dtype {code!r}; only numbers and fixed text are data")
    order = record.state[1] if isinstance(record.state, tuple) and record.state[1] in ("<", ">") else "="
    return np.dtype(order + match[1])


def _checked_raw(raw: Any, dtype: np.dtype, count: int) -> bytes:
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    if not isinstance(raw, bytes | bytearray) or len(raw) != count * dtype.itemsize:
        raise ValueError(f"numpy data of {count} x {dtype} does not have {count * dtype.itemsize} bytes")
    return bytes(raw)


def _empty_array(*_: Any) -> np.ndarray:
    return np.ndarray((0,), np.int8)


def fill_array(array: np.ndarray, state: tuple[Any, ...]) -> None:
    """Give an empty array its state `(version, shape, dtype, Fortran order, bytes)`."""
    _, shape, record, fortran, raw = state
    _check_shape(shape)
    dtype = _dtype(record)
    raw = _checked_raw(raw, dtype, math.prod(shape))
    array.__setstate__((1, tuple(shape), dtype, bool(fortran), raw))  # type: ignore[arg-type]


def _scalar(record: Any, raw: Any) -> Any:
    dtype = _dtype(record)
    return np.frombuffer(_checked_raw(raw, dtype, 1), dtype)[0]


def _buffer_array(raw: Any, record: Any, shape: Sequence[int], order: str, *_: Any) -> np.ndarray:
    dtype = _dtype(record)
    _check_shape(shape)
    flat = np.frombuffer(_checked_raw(raw, dtype, math.prod(shape)), dtype)
    return flat.reshape(tuple(shape), order="F" if order == "F" else "C").copy()


PATHLIB = ("pathlib", "pathlib._local")  # Python 3.13 names the second
POSIX_PATHS = ("PosixPath", "PurePosixPath", "Path", "PurePath")
BUILDERS: dict[str, Callable[..., Any]] = {
    **{f"builtins.{kind.__name__}": kind for kind in (dict, list, tuple, set, frozenset, bool, float, complex)},
    "builtins.int": lambda value=0: int(value),
    "builtins.long": lambda value=0: int(value),
    "builtins.bytes": _bytes,
    "builtins.bytearray": lambda *args: bytearray(_bytes(*args)),
    "_codecs.encode": _latin1,
    "collections.OrderedDict": OrderedDict,
    "collections.Counter": Counter,
    "collections.defaultdict": lambda *_: {},
    "collections.deque": lambda entries=(), *_: list(entries),
    **{f"{module}.{name}": PurePosixPath for module in PATHLIB for name in POSIX_PATHS},
    **{f"{module}.{name}": PureWindowsPath for module in PATHLIB for name in ("WindowsPath", "PureWindowsPath")},
    "torch.Size": lambda size=(): (
        torch.Size(list(map(int, size))) if isinstance(size, tuple | list) else Stub("torch.Size")
    ),
    "torch.device": torch.device,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "numpy._core.multiarray._reconstruct": _empty_array,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.numeric._frombuffer": _buffer_array,
}
HASHES = frozenset(
    f"{place}.{name}"
    for place, names in (("builtins", "dict set frozenset"), ("collections", "OrderedDict Counter"))
    for name in names.split()
)
TAKES_PAIRS = frozenset({"builtins.dict", "collections.OrderedDict"})
COPIES_BYTES = frozenset(
    {"builtins.bytes", "builtins.bytearray", "_codecs.encode"}
    | {path for path in BUILDERS if path.startswith("numpy.")}
)
