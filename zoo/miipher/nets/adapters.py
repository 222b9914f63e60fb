"""What is trained on a frozen backbone: parallel adapters or LoRA."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.miipher.nets.backbone import Backbone


class AdapterStyle(nn.Module):
    """Base of the ways to adapt a backbone: `install` makes the weights and hooks them into its blocks.

    The backbone's tensors stay as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.switch = _Switch()

    def install(self, backbone: Backbone) -> None:
        """Make the weights and hook them into the blocks; a ValueError where these have no place for the style."""
        raise NotImplementedError(f"{type(self).__name__} defines no install()")

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Let the backbone compute as if nothing were installed."""
        self.switch.on = False
        try:
            yield
        finally:
            self.switch.on = True


class _Switch:
    """Shared by all hooks of a style, so that one assignment turns them off."""

    on = True


@dataclass(eq=False)
class _Hook:
    """Replaces a module's output, or adds to it, by another module of its input; a copy of the net copies it."""

    module: nn.Module
    switch: _Switch
    adds: bool

    def __call__(self, hooked: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if not self.switch.on:
            return output
        return output + self.module(inputs[0]) if self.adds else self.module(inputs[0])


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


class ParallelAdapters(AdapterStyle):
    """One adapter parallel to each block's feed-forward, and trained copies of the blocks' last norms.

    Args:
        hidden_dim: width between an adapter's two linear layers.
        gain: of their first weights.

    Source: Miipher-2, section 3.2 (He et al., 2022, for parallel adapters); the norms are the reproduction's.
    """

    def __init__(self, hidden_dim: int = 768, gain: float = 0.01) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.gain = gain

    def install(self, backbone: Backbone) -> None:
        """Make one adapter and one norm a block."""
        front = backbone.front
        self.blocks = nn.ModuleList(ParallelAdapter(backbone.dim, self.hidden_dim, self.gain) for _ in backbone.blocks)
        norms = [getattr(block, front.last_norm) for block in backbone.blocks]
        self.norms = nn.ModuleList(copy.deepcopy(norm).requires_grad_(True) for norm in norms)
        for block, frozen, adapter, norm in zip(backbone.blocks, norms, self.blocks, self.norms, strict=True):
            getattr(block, front.feed_forward).register_forward_hook(_Hook(adapter, self.switch, adds=True))
            frozen.register_forward_hook(_Hook(norm, self.switch, adds=False))


class LoraAdapters(AdapterStyle):
    """Low-rank updates of the backbone's linear layers, by peft; their weights live inside the backbone.

    Args:
        rank: of the updates: how much each may learn.
        alpha: their scale is alpha / rank.
        targets: last parts of the names of the linear layers.
    """

    def __init__(
        self,
        rank: int = 16,
        alpha: int = 32,
        targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "out_proj", "intermediate_dense", "output_dense"),
    ) -> None:
        super().__init__()
        self.rank = rank
        self.alpha = alpha
        self.targets = tuple(targets)
        self._layers: list[Any] = []

    def install(self, backbone: Backbone) -> None:
        """Wrap the linear layers."""
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.tuners_utils import BaseTunerLayer

        backbone.fingerprint()  # of the weights under their own names, before they are wrapped
        config = LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=list(self.targets))
        try:
            inject_adapter_in_model(config, backbone.model)
        except ValueError as error:
            raise ValueError(f"adapters.targets {', '.join(self.targets)}: {error}") from error
        self._layers = [module for module in backbone.model.modules() if isinstance(module, BaseTunerLayer)]

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Let the backbone compute as if nothing were installed."""
        for layer in self._layers:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer._disable_adapters = False
