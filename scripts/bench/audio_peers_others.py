"""Generators of other packages, of given sizes; nothing else is imported, so that a start of theirs can be measured."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor, nn


class VocosPackage(nn.Module):
    """Backbone and head of the package vocos.

    Args:
        sizes: arguments of our `Vocos`.
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        models, heads = (import_module(f"vocos.{name}") for name in ("models", "heads"))  # nothing here depends on it
        names = ("in_channels", "dim", "intermediate_dim", "layers")
        self.backbone = models.VocosBackbone(*(sizes[key] for key in names))
        self.head = heads.ISTFTHead(*(sizes[key] for key in ("dim", "n_fft", "hop_length", "padding")))

    def forward(self, frames: Tensor) -> Tensor:
        """Audio (B, T) of frames (B, in_channels, F)."""
        return self.head(self.backbone(frames))


class TransformersPackage(nn.Module):
    """HiFi-GAN of transformers (SpeechT5's).

    Args:
        sizes: arguments of our `Generator`.
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

        names = ("upsample_rates", "upsample_kernel_sizes", "resblock_kernel_sizes", "resblock_dilation_sizes")
        config = SpeechT5HifiGanConfig(
            model_in_dim=sizes["in_channels"], upsample_initial_channel=sizes["initial_channels"],
            normalize_before=False, **{name: sizes[name] for name in names},
        )  # fmt: skip
        self.net = SpeechT5HifiGan(config)

    def forward(self, frames: Tensor) -> Tensor:
        """Audio (B, T) of frames (B, in_channels, F)."""
        return self.net(frames.transpose(1, 2))
