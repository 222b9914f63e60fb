"""One Lightning trainer and one command line for six systems of audio, images, reinforcement learning and language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.runs.load import load

__version__ = "0.2.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    """Import `load` on first use, so that `import zoo` and `zoo --help` do not import torch."""
    if name == "load":
        from zoo.runs.load import load

        return load
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")
