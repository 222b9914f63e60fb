"""What is trained on a frozen backbone: adapters parallel to its feed-forwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.miipher.nets.backbone import Backbone


class _Switch:
    """Shared by all hooks, so that one assignment turns them off."""

    on = True


@dataclass(eq=False)
class _Replace:
    """Replaces a module's output by another module of its input; a copy of the net copies it."""

    module: nn.Module
    switch: _Switch

    def __call__(self, hooked: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return self.module(inputs[0]) if self.switch.on else output


@dataclass(eq=False)
class _Parallel:
    """Adds a module of the first hooked module's input to the output of the last; a copy of the net copies it."""

    module: nn.Module
    switch: _Switch
    x: Tensor | None = None  # between both

    def read(self, first: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Keep the input of the first module."""
        self.x = inputs[0]

    def add(self, last: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Add to the output of the last module."""
        x, self.x = self.x, None
        return output + self.module(x) if self.switch.on else output


class ParallelAdapter(nn.Module):
    """Norm, down, GELU, up, on (B, F, dim); a small gain of the weights starts it near the plain backbone."""

    def __init__(self, dim: int, hidden_dim: int, gain: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.down = nn.Linear(dim, hidden_dim)
        self.up = nn.Linear(hidden_dim, dim)
        for linear in (self.down, self.up):
            nn.init.xavier_uniform_(linear.weight, gain=gain)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the feed-forward output of (B, F, dim)."""
        return self.up(F.gelu(self.down(self.norm(x))))


class ParallelAdapters(nn.Module):
    """One adapter parallel to each block's feed-forward, and trained copies of the blocks' last norms.

    The backbone's tensors stay as they are.

    Args:
        hidden_dim: width between an adapter's two linear layers.
        gain: of their first weights.

    Source: Miipher-2, section 3.2 (He et al., 2022, for parallel adapters); the norms are the reproduction's.
    """

    def __init__(self, hidden_dim: int = 768, gain: float = 0.01) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.gain = gain
        self.switch = _Switch()

    def install(self, backbone: Backbone) -> None:
        """Make one adapter and one norm a block, and hook them into the blocks."""
        front = backbone.front
        self.blocks = nn.ModuleList(ParallelAdapter(backbone.dim, self.hidden_dim, self.gain) for _ in backbone.blocks)
        norms = [getattr(block, front.last_norm) for block in backbone.blocks]
        self.norms = nn.ModuleList(copy.deepcopy(norm).requires_grad_(True) for norm in norms)
        for block, frozen, adapter, norm in zip(backbone.blocks, norms, self.blocks, self.norms, strict=True):
            first, last = (getattr(block, name) for name in front.feed_forward)
            parallel = _Parallel(adapter, self.switch)
            first.register_forward_pre_hook(parallel.read)
            last.register_forward_hook(parallel.add)
            frozen.register_forward_hook(_Replace(norm, self.switch))

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Let the backbone compute as if nothing were installed."""
        self.switch.on = False
        try:
            yield
        finally:
            self.switch.on = True
