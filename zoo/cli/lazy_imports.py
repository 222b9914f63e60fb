"""What Lightning imports and never uses here, put off until somebody does."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import sys
import types
from typing import Any

CORE = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}


class _Torchmetrics(types.ModuleType):
    """The package without its metrics; the first use of one imports them all."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in CORE:
            _import_utilities()
            return getattr(importlib.import_module(CORE[name]), name)
        loader = self.__spec__.loader if self.__spec__ is not None else None
        if not vars(self).get("_complete") and loader is not None:
            self._complete = True
            loader.exec_module(self)
        if name not in vars(self):
            raise AttributeError(f"module 'torchmetrics' has no attribute {name!r}")
        return vars(self)[name]


def put_off_torchmetrics() -> None:
    """Let a later `import lightning` take two classes of torchmetrics instead of all of it.

    Its package imports transformers, SciPy's signal processing and matplotlib, which cost more processor time than
    torch does. Every other name of it is still there: the first use runs the package's own `__init__`. Only the plots
    of single metrics (`Metric.plot`) find no matplotlib in such a process.
    """
    spec = importlib.util.find_spec("torchmetrics")
    if spec is None or "torchmetrics" in sys.modules:
        return
    module: Any = _Torchmetrics("torchmetrics", "See `zoo.cli.lazy_imports`.")
    module.__spec__, module.__path__, module.__file__ = spec, list(spec.submodule_search_locations or ()), spec.origin
    module._logger = logging.getLogger("torchmetrics")
    module.__version__ = importlib.metadata.version("torchmetrics")
    sys.modules["torchmetrics"] = module


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
