"""What every generator of a vocoder is: features in, waveform out, a hop, a context, weight norm that can be folded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from torch import Tensor, nn
from torch.nn.utils import parametrize


class WaveformGenerator(nn.Module):
    """Base of all generators.

    Attributes:
        in_channels: channels of the input frames.
        hop_length: samples per frame.
        receptive_frames: input frames on each side that a frame's samples depend on; None means all.
    """

    in_channels: int
    hop_length: int
    receptive_frames: int | None

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length), -1 to 1, from frames (B, in_channels, F)."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def fuse_(self) -> Self:
        """Fold weight norm into plain weights, in place: faster, but the module cannot be trained on as it was."""
        for name, module in self.named_modules():
            if not name.startswith("conditioner.") and parametrize.is_parametrized(module, "weight"):
                weight = module.weight.detach().clone()
                # torch's remove_parametrizations strips the generated class, which deep copies share
                module.__class__ = type(module).__bases__[0]
                del module.parametrizations
                module.weight = nn.Parameter(weight)
        return self


def upsampled_context(
    rates: Sequence[int], kernels: Sequence[int], reach: int, first_reach: int, last_reach: int
) -> int:
    """Frames on each side that a frame's samples depend on in a chain of transposed convolutions.

    Follows the interval of inputs that the first and last sample of a frame need, from the output backwards.

    Args:
        reach: samples that a stage looks to each side at its own rate.
        first_reach: the same of what comes before the first stage, in frames.
        last_reach: the same of what comes after the last stage.
    """
    first, last = -last_reach, math.prod(rates) - 1 + last_reach
    for rate, kernel in zip(reversed(rates), reversed(kernels), strict=True):
        padding = (kernel - rate) // 2
        first, last = first - reach, last + reach
        first, last = math.ceil((first + padding - kernel + 1) / rate), (last + padding) // rate
    return max(-first, last) + first_reach
