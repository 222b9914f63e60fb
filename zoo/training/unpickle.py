"""A pickle machine that knows data only: no name of the file is ever looked up, imported or called.

A global of the stream stays a name (`Stub`). Calling one either rebuilds plain data through a function of this file
(tensors, numpy arrays, containers) or yields another `Stub` that records the arguments. Overriding `find_class` alone
is not enough: Python's BUILD sets attributes on whatever lies on the stack, classes and functions included.
"""

from __future__ import annotations

import math
import pickle
import re
import reprlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch

_DTYPE_NAMES = """float16 float32 float64 bfloat16 half float double int8 int16 int32 int64 uint8 short int long bool
complex64 complex128 float8_e4m3fn float8_e5m2"""
DTYPES = {f"torch.{name}": getattr(torch, name) for name in _DTYPE_NAMES.split()}

# The machine could not call these anyway; a file that asks for them is an attack, and saying so helps more than a Stub.
HOSTILE_MODULES = frozenset(
    "os posix nt subprocess sys runpy importlib shutil pty socket ctypes webbrowser code pickle multiprocessing".split()
)
HOSTILE_NAMES = frozenset(
    f"builtins.{name}" for name in "exec eval compile open __import__ breakpoint input delattr setattr".split()
) | {"torch.hub.load", "torch.load", "torch.serialization.load", "torch.jit.load", "numpy.load"}

# Codes of numpy dtypes whose elements are numbers or fixed text; "O" (objects) and structured ones are not data to us.
_PLAIN_DTYPE = re.compile(r"[<>|=]?([?biufcSUV]\d*)")


class UnsafeFileError(ValueError):
    """A file asks for something that data never needs; nothing of it was executed."""


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


class Machine(pickle._Unpickler):
    """Run one pickle of `stream` and return data.

    Args:
        stream: binary file at the first byte of the pickle.
        storage: turns a persistent id into a flat tensor.
        nested: reads a torch file that is embedded as bytes.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    # Set by the base class while it runs; the type stubs leave them out.
    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]

    def __init__(self, stream: Any, storage: Callable[[Any], torch.Tensor], nested: Callable[[bytes], Any]) -> None:
        # Files written by Python 2 keep bytes in their text strings.
        super().__init__(stream, encoding="latin1")
        self.storage = storage
        self.nested = nested

    def find_class(self, module: str, name: str) -> Any:
        """Return the name itself, never what it names."""
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        path = f"{module}.{name}".replace("numpy.core.", "numpy._core.")
        return DTYPES.get(path) or Stub(path)

    def persistent_load(self, pid: Any) -> Any:
        """Return the storage that `pid` stands for."""
        return self.storage(pid)

    def call(self, function: Any, args: Any, keywords: Any = None) -> Any:
        """Rebuild data, or record the call."""
        if not isinstance(function, Stub) or not isinstance(args, tuple):
            raise UnsafeFileError(f"it calls {reprlib.repr(function)}, which is no class or function")
        path = function.path
        if path in HOSTILE_NAMES or path.split(".")[0] in HOSTILE_MODULES:
            raise UnsafeFileError(f"it asks to call {path}{reprlib.repr(args)}, which no data needs")
        if path == "torch.storage._load_from_bytes":
            return self.nested(*args)
        if path == "torch._tensor._rebuild_from_type_v2":
            return self.call(args[0], args[2])
        if path == "copyreg._reconstructor":  # class, base class, what the base class is built from
            return self.call(args[0], () if args[2] is None else (args[2],))
        if path == "copyreg.__newobj__":
            return self.call(args[0], args[1:])
        if path in BUILDERS and not keywords:
            if not path.startswith("torch.") and any(isinstance(arg, torch.Tensor | np.ndarray) for arg in args):
                # A one-element storage can pose as a tensor of any size, which a container would spell out.
                raise UnsafeFileError(f"it makes a {path} of a tensor")
            return BUILDERS[path](*args)
        return Stub(path, args, entries=dict(keywords or {}))

    def _instantiate(self, klass: Any, args: Any) -> None:
        self.append(self.call(klass, tuple(args)))

    def load_reduce(self) -> None:
        """REDUCE: call with positional arguments."""
        args = self.stack.pop()
        self.stack[-1] = self.call(self.stack[-1], args)

    def load_newobj(self) -> None:
        """NEWOBJ: create without calling the constructor."""
        args = self.stack.pop()
        self.append(self.call(self.stack.pop(), args))

    def load_newobj_ex(self) -> None:
        """NEWOBJ_EX: the same with keywords."""
        keywords, args = self.stack.pop(), self.stack.pop()
        self.append(self.call(self.stack.pop(), args, keywords))

    def load_build(self) -> None:
        """BUILD: give an object its state; only records, arrays and state dict metadata take one."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Stub):
            target.state = state
        elif type(target) is np.ndarray:
            _fill_array(target, state)
        elif type(target) is OrderedDict:
            if isinstance(state, dict) and "_metadata" in state:
                target.__dict__["_metadata"] = state["_metadata"]
        elif not isinstance(target, torch.Tensor):
            raise UnsafeFileError(f"it sets attributes of a {type(target).__name__}")

    def load_bytearray8(self) -> None:
        """BYTEARRAY8: read what is there instead of allocating what the file claims."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    def refuse_extension(self) -> NoReturn:
        """EXT1/2/4: codes of a registry that only the writing process had."""
        raise UnsafeFileError("it uses pickle extension codes")


for _code, _method in (
    (pickle.REDUCE, Machine.load_reduce),
    (pickle.NEWOBJ, Machine.load_newobj),
    (pickle.NEWOBJ_EX, Machine.load_newobj_ex),
    (pickle.BUILD, Machine.load_build),
    (pickle.BYTEARRAY8, Machine.load_bytearray8),
    (pickle.EXT1, Machine.refuse_extension),
    (pickle.EXT2, Machine.refuse_extension),
    (pickle.EXT4, Machine.refuse_extension),
):
    Machine.dispatch[_code[0]] = _method


def _tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> torch.Tensor:
    """Rebuild a strided tensor; gradient flags and hooks are dropped. `as_strided` checks the bounds."""
    if not isinstance(size, tuple | list) or not isinstance(stride, tuple | list):
        raise UnsafeFileError("a tensor's size or stride is no list of numbers")
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


def _dtype(record: Any) -> np.dtype:
    code = record.args[0] if isinstance(record, Stub) and record.path == "numpy.dtype" and record.args else record
    match = _PLAIN_DTYPE.fullmatch(code) if isinstance(code, str) else None
    if match is None:
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


def _fill_array(array: np.ndarray, state: tuple[Any, ...]) -> None:
    _, shape, record, fortran, raw = state
    dtype = _dtype(record)
    raw = _checked_raw(raw, dtype, math.prod(shape))
    array.__setstate__((1, tuple(shape), dtype, bool(fortran), raw))  # type: ignore[arg-type]


def _scalar(record: Any, raw: Any) -> Any:
    dtype = _dtype(record)
    return np.frombuffer(_checked_raw(raw, dtype, 1), dtype)[0]


def _buffer_array(raw: Any, record: Any, shape: Sequence[int], order: str, *_: Any) -> np.ndarray:
    dtype = _dtype(record)
    flat = np.frombuffer(_checked_raw(raw, dtype, math.prod(shape)), dtype)
    return flat.reshape(tuple(shape), order="F" if order == "F" else "C").copy()


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
    **{f"pathlib.{name}": PurePosixPath for name in ("PosixPath", "PurePosixPath", "Path", "PurePath")},
    **{f"pathlib.{name}": PureWindowsPath for name in ("WindowsPath", "PureWindowsPath")},
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
