"""The feature cleaner: a frozen backbone whose adapted features of degraded speech approach those of clean speech."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.miipher.nets.adapters import ParallelAdapters
from zoo.miipher.nets.backbone import Backbone


class Cleaner(nn.Module):
    """A backbone with adapters.

    Args:
        backbone: frozen; its weights are not written into checkpoints.
        adapters: what trains beside the backbone.
    """

    def __init__(self, backbone: Backbone, adapters: ParallelAdapters) -> None:
        super().__init__()
        self.backbone = backbone
        self.adapters = adapters
        adapters.install(backbone)
        self.dim, self.sample_rate, self.hop_samples = backbone.dim, backbone.sample_rate, backbone.hop_samples

    def frames(self, samples: Any) -> Any:
        """Frames of a clip of so many samples (an int or an integer tensor)."""
        return self.backbone.frames(samples)

    def forward(self, waveform: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Cleaned features (B, frames(T), dim) of waveforms (B, T) at 16 kHz; see `Backbone.forward`."""
        return self.backbone(waveform, lengths)

    def target(self, waveform: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Features (B, frames(T), dim) of the plain backbone, by the same weights."""
        with self.adapters.disabled():
            return self.backbone(waveform, lengths)


Encoder = Backbone | Cleaner
