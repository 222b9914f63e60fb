"""Layers that look only into the past, and what a stream remembers of it from one piece to the next."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Past(nn.Module):
    """Puts the past in front of a signal: zeros or its first sample at the start, in a stream the last piece's end.

    Args:
        size: samples of the past.
        replicate: the first sample stands for those before it.
    """

    def __init__(self, size: int, replicate: bool = False) -> None:
        super().__init__()
        self.size, self.replicate = size, replicate
        self.keeps = False  # in a stream
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Lengthen (B, C, T) to (B, C, size + T)."""
        if self.kept is not None:
            x = torch.cat([self.kept, x], -1)
        else:
            x = F.pad(x, (self.size, 0), mode="replicate" if self.replicate else "constant")
        if self.keeps:
            self.kept = x[..., x.shape[-1] - self.size :].clone()
        return x


class Overlap(nn.Module):
    """Cuts off what reaches beyond a signal's end; in a stream it is added to the next piece's start.

    Args:
        size: samples beyond the end.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.keeps = False
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Shorten (..., T + size) to (..., T)."""
        end = x.shape[-1] - self.size
        if self.kept is not None:
            x = x + F.pad(self.kept, (0, end))
        if self.keeps:
            self.kept = x[..., end:].clone()
        return x[..., :end]


class CausalConv1d(nn.Conv1d):
    """A convolution over a sample and those before it; the length stays."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel_size: int, dilation: int = 1, **options: Any
    ) -> None:
        super().__init__(channels_in, channels_out, kernel_size, dilation=dilation, **options)
        self.past = Past((kernel_size - 1) * dilation)

    def forward(self, x: Tensor) -> Tensor:
        """Filter (B, C, T)."""
        return super().forward(self.past(x))


class CausalConvTranspose1d(nn.ConvTranspose1d):
    """A transposed convolution without the samples that only the future completes: (B, C, T) to (B, C', T * stride)."""

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int, stride: int) -> None:
        super().__init__(channels_in, channels_out, kernel_size, stride)
        self.overlap = Overlap(kernel_size - stride)

    def forward(self, x: Tensor, output_size: Any = None) -> Tensor:
        """Raise the rate of (B, C, T)."""
        raised = self.overlap(F.conv_transpose1d(x, self.weight, None, self.stride))
        return raised if self.bias is None else raised + self.bias[:, None]


def conv1d(
    channels_in: int, channels_out: int, kernel_size: int, causal: bool = False, dilation: int = 1, **options: Any
) -> nn.Conv1d:
    """Make a convolution that keeps the length, for odd kernels unless causal; its options are those of `nn.Conv1d`."""
    if causal:
        return CausalConv1d(channels_in, channels_out, kernel_size, dilation, **options)
    padding = (kernel_size - 1) * dilation // 2
    return nn.Conv1d(channels_in, channels_out, kernel_size, dilation=dilation, padding=padding, **options)
