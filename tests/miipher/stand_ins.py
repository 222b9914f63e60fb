"""Nets that stand in for an encoder and a vocoder where only lengths, chunks and levels matter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.hifigan.nets.generator import Generator
from zoo.miipher.inference.restorer import Restorer
from zoo.miipher.nets.families import valid_mask
from zoo.miipher.options import RestoreOptions

HOP = 320


class LocalEncoder(nn.Module):
    """Two convolutions: a frame sees its hop, 40 samples more on each side, and two frames on each side."""

    sample_rate, hop_samples = 16000, HOP

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.dim = dim
        self.wave = nn.Conv1d(1, dim, 400, stride=HOP, padding=40)
        self.mix = nn.Conv1d(dim, dim, 5, padding=2)

    def frames(self, samples: Any) -> Any:
        return -(-samples // HOP)

    def forward(self, waveform: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is not None:
            waveform = waveform * valid_mask(lengths, waveform.shape[1])
        x = torch.tanh(self.wave(nn.functional.pad(waveform, (0, -waveform.shape[1] % HOP))[:, None]))
        return torch.tanh(self.mix(x)).transpose(1, 2)


def vocoder(dim: int = 8, channels: int = 16) -> Generator:
    """160 samples per frame: 8 kHz."""
    return Generator(
        dim, channels, (10, 4, 4), (20, 8, 8), "2", resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 2),)
    )


def restorer(**settings: Any) -> Restorer:
    """A restorer of random nets that gives 8 kHz."""
    torch.manual_seed(0)
    return Restorer(LocalEncoder(), vocoder(), 8000, RestoreOptions(**settings)).eval()
