"""Periodic activations between a band-limited doubling of the rate and its way back, so that they add no aliases."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.tensors import promote_to_float32

TAPS, RATIO = 12, 2
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
    """An activation at a multiple of the rate, between two low-pass filters; the ends are replicated.

    Computed in float32, also under autocast: bfloat16's eight bits are too few for the sine.

    Args:
        act: element-wise activation of (B, C, T).
        ratio: of the rates.
        up_taps: taps of the filter before the activation; the one after it has `down_taps`.

    Source: BigVGAN, section 3.2 (Lee et al., 2023); StyleGAN3 (Karras et al., 2021).
    """

    up_phases: Tensor
    down_filter: Tensor

    def __init__(self, act: nn.Module, ratio: int = RATIO, up_taps: int = TAPS, down_taps: int = TAPS) -> None:
        super().__init__()
        self.act, self.ratio = act, ratio
        taps = kaiser_sinc(0.5 / ratio, 0.6 / ratio, up_taps) * ratio
        padding = up_taps // ratio - 1
        # samples that are cut from the left of the transposed convolution, here phases of a plain one
        cut = padding * ratio + (up_taps - ratio) // 2
        low, high = math.ceil((cut - up_taps + 1) / ratio), (ratio - 1 + cut) // ratio
        phases = torch.zeros(ratio, 1, high - low + 1)
        for phase in range(ratio):
            for position in range(low, high + 1):
                tap = phase + cut - ratio * position
                if 0 <= tap < up_taps:
                    phases[phase, 0, position - low] = taps[tap]
        self.up_padding = (padding - low, high - padding)
        self.down_padding = (down_taps // 2 - (down_taps % 2 == 0), down_taps // 2)
        self.register_buffer("up_phases", phases, persistent=False)
        self.register_buffer(
            "down_filter", kaiser_sinc(0.5 / ratio, 0.6 / ratio, down_taps)[None, None], persistent=False
        )
        self.reach = max(
            (self.down_padding[0] + ratio - 1) // ratio + self.up_padding[0],
            (self.down_padding[1]) // ratio + self.up_padding[1],
        )

    def forward(self, x: Tensor) -> Tensor:
        """Activate (B, C, T)."""
        with torch.autocast(x.device.type, enabled=False):
            return self.down(self.act(self.up(promote_to_float32(x)))).to(x.dtype)

    def up(self, x: Tensor) -> Tensor:
        """Raise the rate: (B, C, T) to (B, C, T * ratio)."""
        single = F.pad(x.flatten(0, 1)[:, None], self.up_padding, mode="replicate")
        phases = F.conv1d(single, self.up_phases)  # (B * C, ratio, T)
        return phases.transpose(1, 2).reshape(*x.shape[:-1], -1)

    def down(self, x: Tensor) -> Tensor:
        """Lower the rate: (B, C, T) to (B, C, ceil(T / ratio))."""
        single = F.pad(x.flatten(0, 1)[:, None], self.down_padding, mode="replicate")
        return F.conv1d(single, self.down_filter, stride=self.ratio).reshape(*x.shape[:-1], -1)


def kaiser_sinc(cutoff: float, half_width: float, taps: int) -> Tensor:
    """Make a low-pass filter (taps,) float32 whose taps sum to one: a sinc under a Kaiser window.

    Cut-off (0 to 0.5) and half the width of the transition band are in cycles per sample. Source: Kaiser (1974).
    """
    half = taps // 2
    attenuation = 2.285 * (half - 1) * math.pi * 4 * half_width + 7.95
    if attenuation > 50:
        beta = 0.1102 * (attenuation - 8.7)
    elif attenuation >= 21:
        beta = 0.5842 * (attenuation - 21) ** 0.4 + 0.07886 * (attenuation - 21)
    else:
        beta = 0.0
    window = torch.kaiser_window(taps, periodic=False, beta=beta)
    time = torch.arange(taps) - half + (0.5 if taps % 2 == 0 else 0.0)
    filtered = 2 * cutoff * window * torch.sinc(2 * cutoff * time)
    return filtered / filtered.sum()
