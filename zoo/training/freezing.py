"""Freezing parts of a module by the names of their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn


def freeze(module: nn.Module, groups: Sequence[str]) -> dict[str, int]:
    """Freeze groups of parameters, and put submodules without trainable parameters in eval mode.

    A group is a prefix of parameter names ending at a dot (`encoder` means `encoder.*`), a full name, or a glob
    (`blocks.[0-3].*`, `*.bias`). Returns the number of weights of each; one that matches nothing is a ValueError.
    """
    counts = {}
    parameters = dict(module.named_parameters())
    for group in groups:
        names = [name for name in parameters if name.startswith(f"{group}.") or fnmatchcase(name, group)]
        matches = [parameters[name] for name in names]
        if not matches:
            prefixes = ", ".join(dict.fromkeys(name.split(".")[0] for name in parameters))
            raise ValueError(
                f"freeze: group {group!r} matches no parameter of {type(module).__name__}; names begin with: {prefixes}"
            )
        for parameter in matches:
            parameter.requires_grad_(False)
        counts[group] = sum(parameter.numel() for parameter in matches)
    set_frozen_eval(module)
    return counts


def set_frozen_eval(module: nn.Module) -> None:
    """Put the topmost submodules without trainable parameters in eval mode: no dropout, no running statistics."""
    parameters = list(module.parameters())
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        module.eval()
        return
    for child in module.children():
        set_frozen_eval(child)
