"""Periodic activations between a band-limited doubling of the rate and its way back, so that they add no aliases."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.tensors import promote_to_float32

TAPS = 12
CUTOFF, HALF_WIDTH = 0.25, 0.3  # cycles per sample: of the filter, and of half its transition band
REACH = 6  # samples on each side that an activated one depends on
_EPS = 1e-9


class Snake(nn.Module):
    """x + sin^2(a x) / b, per channel; b is a in Snake, and another parameter in SnakeBeta.

    Args:
        separate: SnakeBeta.
        log_scale: the parameters are logarithms, and begin at 0 instead of 1.

    Source: Ziyin et al., "Neural Networks Fail to Learn Periodic Functions" (2020); BigVGAN, section 3.2.
    """

    def __init__(self, channels: int, separate: bool = True, log_scale: bool = True) -> None:
        super().__init__()
        self.log_scale = log_scale
        start = torch.zeros if log_scale else torch.ones
        self.alpha = nn.Parameter(start(channels))
        self.beta = nn.Parameter(start(channels)) if separate else None

    def forward(self, x: Tensor) -> Tensor:
        """Activate (B, C, T)."""
        scales: tuple[Tensor, Tensor] = (self.alpha, self.alpha if self.beta is None else self.beta)
        alpha, beta = (scale.exp() for scale in scales) if self.log_scale else scales
        return x + torch.sin(x * alpha[:, None]).square() / (beta[:, None] + _EPS)


class AntiAliasedActivation(nn.Module):
    """An activation at twice the rate, between two low-pass filters of 12 taps; the ends are replicated.

    Computed in float32, also under autocast: bfloat16's eight bits are too few for the sine.

    Args:
        act: element-wise activation of (B, C, T).

    Source: BigVGAN, section 3.2 (Lee et al., 2023); StyleGAN3 (Karras et al., 2021).
    """

    up_phases: Tensor
    down_filter: Tensor

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act
        taps = low_pass_filter()
        # those of a transposed convolution that make the even samples, and those that make the odd ones
        even, odd = 2 * taps.flip(0)[::2], 2 * taps.flip(0)[1::2]
        phases = torch.stack([F.pad(even, (0, 1)), F.pad(odd, (1, 0))])[:, None]
        self.register_buffer("up_phases", phases, persistent=False)
        self.register_buffer("down_filter", taps[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Activate (B, C, T)."""
        with torch.autocast(x.device.type, enabled=False):
            return self.down(self.act(self.up(promote_to_float32(x)))).to(x.dtype)

    def up(self, x: Tensor) -> Tensor:
        """Double the rate: (B, C, T) to (B, C, 2 * T)."""
        single = F.pad(x.flatten(0, 1)[:, None], (TAPS // 4, TAPS // 4), mode="replicate")
        phases = F.conv1d(single, self.up_phases)  # (B * C, 2, T)
        return phases.transpose(1, 2).reshape(*x.shape[:-1], -1)

    def down(self, x: Tensor) -> Tensor:
        """Halve the rate: (B, C, T) to (B, C, ceil(T / 2))."""
        single = F.pad(x.flatten(0, 1)[:, None], (TAPS // 2 - 1, TAPS // 2), mode="replicate")
        return F.conv1d(single, self.down_filter, stride=2).reshape(*x.shape[:-1], -1)


def low_pass_filter() -> Tensor:
    """Make a low-pass filter (12,) float32 whose taps sum to one: a sinc under a Kaiser window.

    Source: Kaiser (1974), whose rule for the window is that of an attenuation above 50 dB.
    """
    attenuation = 2.285 * (TAPS // 2 - 1) * math.pi * 4 * HALF_WIDTH + 7.95
    window = torch.kaiser_window(TAPS, periodic=False, beta=0.1102 * (attenuation - 8.7))
    time = torch.arange(TAPS) - TAPS // 2 + 0.5
    filtered = 2 * CUTOFF * window * torch.sinc(2 * CUTOFF * time)
    return filtered / filtered.sum()
