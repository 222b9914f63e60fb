"""What Lightning imports and an ordinary fit never uses, put off until somebody does."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import importlib.util
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, ClassVar


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Without the garbage collector, which goes through all that imports make again and again and finds nothing.

    What the first of them made, the modules of every command, later collections leave alone.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _freeze()
        if enabled:
            gc.enable()


@functools.cache
def _freeze() -> None:
    """Once in a process: asking how much is frozen would go through all of it."""
    gc.freeze()


class _PutOff(types.ModuleType):
    """A package that runs its own `__init__` when it is asked for a name that it does not have yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "See `zoo.cli.lazy_imports`.")
        parent = importlib.util.find_spec(name.partition(".")[0])
        spec: Any = PathFinder.find_spec(name, parent.submodule_search_locations if parent and "." in name else None)
        self.__spec__, self.__loader__ = spec, spec.loader
        self.__path__, self.__file__ = list(spec.submodule_search_locations), spec.origin
        self._lock, self._complete = threading.RLock(), False
        sys.modules[name] = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._run_init()
        if name not in vars(self):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return vars(self)[name]

    def _run_init(self) -> None:
        with self._lock:
            if not self._complete:
                self._complete = True
                self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
                self._after_init()

    def _after_init(self) -> None:
        """What a package still has to do then."""


def put_off_imports() -> None:
    """Let a later `import lightning` do without all of torchmetrics and without the front end of torch's compiler.

    Each costs as much processor time as torch does. Every name of them is still there: the first use of another than
    the few that an ordinary fit needs runs the package's own `__init__`.
    """
    for name, put_off in (("torchmetrics", _Torchmetrics), ("torch._dynamo", _Dynamo)):
        if name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is not None:
            put_off(name)


class _Torchmetrics(_PutOff):
    """Its `__init__` imports transformers, SciPy's signal processing and matplotlib; Lightning needs two classes.

    Only the plots of single metrics (`Metric.plot`) find no matplotlib in such a process.
    """

    CORE: ClassVar = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._logger = logging.getLogger(name)
        self.__version__ = importlib.metadata.version(name)

    def __getattr__(self, name: str) -> Any:
        if name not in self.CORE or self._complete:
            return super().__getattr__(name)
        _import_utilities()
        return getattr(importlib.import_module(self.CORE[name]), name)


def _import_utilities() -> None:
    """Import what the two classes need, while matplotlib seems to be missing."""
    if "torchmetrics.utilities" in sys.modules:
        return
    imports: Any = importlib.import_module("lightning_utilities.core.imports")
    version, hidden = imports._version, "matplotlib" not in sys.modules
    modules: Any = sys.modules

    def without_matplotlib(name: str) -> str:
        if name == "matplotlib":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    imports._version = without_matplotlib
    if hidden:
        modules["matplotlib"] = None
    try:
        importlib.import_module("torchmetrics.utilities")  # before `metric`: they import each other
    finally:
        imports._version = version
        imports.package_available.cache_clear()
        if hidden:
            del modules["matplotlib"]


class _Dynamo(_PutOff):
    """Its `__init__` imports SymPy and much of torch, and does nothing for a fit without `torch.compile`.

    Lightning asks whether a module is compiled; optimizers, Lightning and transformers mark functions for a compiler
    that may come. What they ask for is here from the start; the package's own takes its place.
    """

    ALONE = ("torch._dynamo._trace_wrapped_higher_order_op",)  # transformers imports it, and it needs no other of them

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._waiting: list[Callable[[], object]] = []

        class IsCompiled(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return self._complete and isinstance(instance, self.OptimizedModule)

        self.OptimizedModule: Any = IsCompiled("OptimizedModule", (), {})
        self.eval_frame = _EvalFrame(f"{name}.eval_frame")
        self.eval_frame.OptimizedModule = self.OptimizedModule
        self.disable = self._disable
        self.allow_in_graph = functools.partial(self._mark, "allow_in_graph")
        self.assume_constant_result = functools.partial(self._mark, "assume_constant_result")
        self.graph_break = lambda msg="": None
        sys.meta_path.insert(0, _Submodules(self))

    def _mark(self, mark: str, fn: Any) -> Any:
        self._waiting.append(lambda: getattr(self._decorators(), mark)(fn))
        return fn

    def _disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        if fn is None and not recursive:
            return functools.partial(self._disable, recursive=False, **options)
        if not isinstance(fn, types.FunctionType):
            return self._decorators().disable(fn, recursive, **options)
        current: Any = fn

        @functools.wraps(fn)
        def disabled(*args: Any, **kwargs: Any) -> Any:
            return current(*args, **kwargs)

        def disable() -> None:
            nonlocal current
            current = self._decorators().disable(fn, recursive, **options)

        self._waiting.append(disable)
        return disabled

    def _decorators(self) -> Any:
        return importlib.import_module(f"{self.__name__}.decorators")

    def _after_init(self) -> None:
        while self._waiting:
            self._waiting.pop()()


class _EvalFrame(types.ModuleType):
    """Where accelerate looks for `OptimizedModule`, until the submodule is imported."""

    OptimizedModule: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


class _Submodules(MetaPathFinder, Loader):
    """Runs the package's `__init__` before a submodule of it is imported, and takes the one that this imported."""

    def __init__(self, package: _Dynamo) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{self.package.__name__}.") or name in self.package.ALONE:
            return None
        self.package._run_init()
        module = sys.modules.get(name)
        if module is None:
            return None
        module.__spec__ = ModuleSpec(
            name, self, loader_state=module.__spec__
        )  # importlib would run it again by its own
        return module.__spec__

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state  # type: ignore[union-attr]
