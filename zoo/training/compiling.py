"""Compiling modules in place, without ending a run where that fails."""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
from torch import nn

log = logging.getLogger(__name__)

Mode = Literal["default", "reduce-overhead", "max-autotune"]


def compile_in_place(module: nn.Module, mode: Mode = "default", fullgraph: bool = False) -> None:
    """Let a module run compiled; names in checkpoints stay as they are.

    Where the first call cannot be compiled (no C++ compiler, an unsupported operation) the reason is logged once and
    the module stays uncompiled.

    Args:
        fullgraph: refuse breaks of the graph; one then counts as a failure.
    """
    module._compiled_call_impl = _Guarded(module, mode, fullgraph)


class _Guarded:
    """The compiled call of a module, given up for the plain one when its first run fails."""

    def __init__(self, module: nn.Module, mode: Mode, fullgraph: bool) -> None:
        self.module = module
        self.compiled = torch.compile(module._call_impl, mode=mode, fullgraph=fullgraph)
        self.works = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            result = self.compiled(*args, **kwargs)
        except Exception as error:  # compilers and their back ends raise anything
            if self.works:  # it ran before, so what fails now is the input or the device
                raise
            reason = " ".join(str(error).split())[:300]
            log.warning("%s is not compiled: %s: %s", type(self.module).__name__, type(error).__name__, reason)
            self.module._compiled_call_impl = None
            return self.module(*args, **kwargs)
        self.works = True
        return result
