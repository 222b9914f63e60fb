"""One Lightning trainer and one command line for six systems of audio, images, reinforcement learning and language."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.cli.build_run import build
    from zoo.common.registry import register
    from zoo.runs.load import load, load_net

__version__ = "0.2.0"
__all__ = ["__version__", "build", "load", "load_net", "register"]
_MODULES = {
    "build": "zoo.cli.build_run",
    "load": "zoo.runs.load",
    "load_net": "zoo.runs.load",
    "register": "zoo.common.registry",
}


def __getattr__(name: str) -> Any:
    """Import a function or a package on first use, so that `import zoo` and `zoo --help` do not import torch."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    from zoo.common.registry import PACKAGES

    if f"zoo.{name}" in PACKAGES:
        return importlib.import_module(f"zoo.{name}")
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the functions, and the packages with classes for recipes."""
    from zoo.common.registry import PACKAGES

    return [*__all__, *(package.removeprefix("zoo.") for package in PACKAGES)]
