"""A pickle machine that knows data only: no name of the file is ever looked up, imported or called.

A global of the stream stays a name (`Stub`). Calling one either rebuilds plain data through a function of this file
(tensors, numpy arrays, containers) or yields another `Stub` that records the arguments. Overriding `find_class` alone
is not enough: Python's BUILD sets attributes on whatever lies on the stack, classes and functions included.

A few bytes of a stream can ask for much: each opcode is paid for from a `Budget` that the file's size determines.
"""

from __future__ import annotations

import pickle
import reprlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from zoo.common.reading.budget import Budget, check_keys
from zoo.common.reading.errors import UnsafeFileError
from zoo.common.reading.values import BUILDERS, COPIES_BYTES, DTYPES, HASHES, TAKES_PAIRS, Stub, fill_array

# The machine could not call these anyway; a file that asks for them is an attack, and saying so helps more than a Stub.
HOSTILE_MODULES = frozenset(
    "os posix nt subprocess sys runpy importlib shutil pty socket ctypes webbrowser code pickle multiprocessing".split()
)
HOSTILE_NAMES = frozenset(
    f"builtins.{name}" for name in "exec eval compile open __import__ breakpoint input delattr setattr".split()
) | {"torch.hub.load", "torch.load", "torch.serialization.load", "torch.jit.load", "numpy.load"}

MAX_NAME = 1000  # characters of module and class

_ENTRY = 128  # bytes of an entry in a dict or set just after it grew


class Machine(pickle._Unpickler):
    """Run one pickle of `stream` and return data.

    Args:
        stream: binary file at the first byte of the pickle, which never allocates more than it holds.
        storage: turns a persistent id into a flat tensor.
        nested: reads a torch file that is embedded as bytes.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {}
    # Set by the base class while it runs; the type stubs leave them out.
    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(
        self,
        stream: Any,
        budget: Budget,
        storage: Callable[[Any], torch.Tensor],
        nested: Callable[[bytes, Budget], Any],
    ) -> None:
        # Files written by Python 2 keep bytes in their text strings.
        super().__init__(stream, encoding="latin1")
        self.budget = budget
        self.storage = storage
        self.nested = nested

    def find_class(self, module: str, name: str) -> Any:
        """Return the name itself, never what it names."""
        if len(module) + len(name) > MAX_NAME:
            raise UnsafeFileError(f"it names a class in {len(module) + len(name)} characters")
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
            return self.nested(args[0], self.budget)
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
            self._pay_for(path, args)
            result = BUILDERS[path](*args)
            if isinstance(result, torch.Tensor) and result is not args[0]:
                self.budget.view(result)
            return result
        self.budget.build(_ENTRY * len(keywords or ()))
        return Stub(path, args, entries=dict(keywords or {}))

    def _pay_for(self, path: str, args: tuple[Any, ...]) -> None:
        """Pay for what a builder copies out of its arguments, which the stream may have given more than once."""
        for arg in args:
            if isinstance(arg, str | bytes | bytearray | list | tuple | set | frozenset | dict):
                self.budget.build(len(arg) * (1 if path in COPIES_BYTES else _ENTRY))
                if path in HASHES and not isinstance(arg, str | bytes | bytearray):
                    check_keys((entry[0] if path in TAKES_PAIRS and entry else entry for entry in arg), self.budget)

    def _set_items(self, items: Sequence[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict | Stub):
            raise UnsafeFileError(f"it sets entries of a {type(target).__name__}")
        self.budget.build(_ENTRY * (len(items) // 2))
        check_keys(items[::2], self.budget)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key] = value

    def load_setitem(self) -> None:
        """SETITEM: add one entry to a dict or record."""
        value = self.stack.pop()
        self._set_items((self.stack.pop(), value))

    def load_setitems(self) -> None:
        """SETITEMS: add all entries since the mark."""
        self._set_items(self.pop_mark())

    def load_dict(self) -> None:
        """DICT: make one of all entries since the mark."""
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    def load_additems(self) -> None:
        """ADDITEMS: add all since the mark to a set or record."""
        items = self.pop_mark()
        self.budget.build(_ENTRY * len(items))
        check_keys(items, self.budget)
        for item in items:
            self.stack[-1].add(item)

    def load_frozenset(self) -> None:
        """FROZENSET: make one of all since the mark."""
        items = self.pop_mark()
        self.budget.build(_ENTRY * len(items))
        check_keys(items, self.budget)
        self.append(frozenset(items))

    def load_frame(self) -> None:
        """FRAME: a hint for reading ahead, which would copy the stream."""
        self.read(8)

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
            self.budget.build(len(state[4]))
            fill_array(target, state)
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


_SLOTS = 24  # bytes of a reference on the stack and in the list that takes it over
_SEEN = 100  # bytes of what notes that an object was visited
_COSTS = {
    pickle.MARK: 160,
    pickle.EMPTY_LIST: 72 + _SEEN,
    pickle.LIST: 72 + _SEEN,
    pickle.EMPTY_DICT: 80 + _SEEN,
    pickle.DICT: 80 + _SEEN,
    pickle.EMPTY_SET: 232 + _SEEN,
    pickle.FROZENSET: 232 + _SEEN,
    pickle.TUPLE: 72 + _SEEN,
    pickle.TUPLE1: 72 + _SEEN,
    pickle.TUPLE2: 72 + _SEEN,
    pickle.TUPLE3: 72 + _SEEN,
    **dict.fromkeys((pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE), _ENTRY),
    # a record, or a tensor of one's own
    **dict.fromkeys((pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.INST, pickle.OBJ), 600),
    **dict.fromkeys((pickle.REDUCE, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.PERSID, pickle.BINPERSID), 600),
}
_CONSTANTS = (
    *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1, pickle.LONG4),
    *(pickle.FLOAT, pickle.BINFLOAT, pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING),
    *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8),
)
_RECALLS = (pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.DUP)


def _paid(code: bytes, method: Callable[[Any], None]) -> Callable[[Machine], None]:
    """An opcode's method that pays for what it makes."""
    cost = _SLOTS + _COSTS.get(code, 0)

    def constant(machine: Machine) -> None:
        method(machine)
        machine.budget.build(cost + sys.getsizeof(machine.stack[-1]), steps=1)

    def recall(machine: Machine) -> None:
        method(machine)
        machine.budget.build(cost, steps=1)
        if isinstance(machine.stack[-1], torch.Tensor):
            machine.budget.view(machine.stack[-1])

    def other(machine: Machine) -> None:
        machine.budget.build(cost, steps=1)
        method(machine)

    return constant if code in _CONSTANTS else recall if code in _RECALLS else other


_METHODS: dict[bytes, Callable[[Any], None]] = {
    pickle.REDUCE: Machine.load_reduce,
    pickle.NEWOBJ: Machine.load_newobj,
    pickle.NEWOBJ_EX: Machine.load_newobj_ex,
    pickle.BUILD: Machine.load_build,
    pickle.BYTEARRAY8: Machine.load_bytearray8,
    pickle.SETITEM: Machine.load_setitem,
    pickle.SETITEMS: Machine.load_setitems,
    pickle.DICT: Machine.load_dict,
    pickle.ADDITEMS: Machine.load_additems,
    pickle.FROZENSET: Machine.load_frozenset,
    pickle.FRAME: Machine.load_frame,
    pickle.EXT1: Machine.refuse_extension,
    pickle.EXT2: Machine.refuse_extension,
    pickle.EXT4: Machine.refuse_extension,
}
for _number, _method in pickle._Unpickler.dispatch.items():
    _code = bytes([_number])
    Machine.dispatch[_number] = _paid(_code, _METHODS.get(_code, _method))


def at_least_float32(x: Tensor) -> Tensor:
    """Half precisions as float32; float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
