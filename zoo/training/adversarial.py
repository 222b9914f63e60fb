"""Adversarial losses over several sub-discriminators, and the base of discriminators.

All losses are float32 scalars: means inside a sub-discriminator, sums over sub-discriminators.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.common.tensors import promote_to_float32

Output = tuple[Tensor, list[Tensor]]
"""Output of one sub-discriminator: scores (B, N) and its feature maps, the post-convolution output last."""


class Discriminator(nn.Module):
    """Base of all waveform discriminators: a set of sub-discriminators side by side, each with its own output."""

    discriminators: nn.ModuleList

    def forward(self, x: Tensor) -> list[Output]:
        """Score waveforms (B, 1, T), float, -1 to 1; return one output per sub-discriminator."""
        return [discriminator(x) for discriminator in self.discriminators]


def discriminator_loss(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Compute the least-squares loss of a discriminator: real scores towards 1, generated ones towards 0.

    Source: HiFi-GAN, equation 1 (Kong et al., 2020).
    """
    pairs = zip(_scores(real), _scores(fake), strict=True)
    return torch.stack([(1 - on_real).square().mean() + on_fake.square().mean() for on_real, on_fake in pairs]).sum()


def adversarial_loss(fake: Sequence[Output]) -> Tensor:
    """Compute the least-squares loss of the generator: generated scores towards 1.

    Source: HiFi-GAN, equation 2 (Kong et al., 2020).
    """
    return torch.stack([(1 - scores).square().mean() for scores in _scores(fake)]).sum()


def feature_matching_loss(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Compute the mean absolute distance of feature maps, summed over all maps; real ones are detached.

    Source: HiFi-GAN, equation 4 (Kong et al., 2020), without its factor 2, which is a loss weight.
    """
    terms = [
        (promote_to_float32(map_real.detach()) - promote_to_float32(map_fake)).abs().mean()
        for (_, maps_real), (_, maps_fake) in zip(real, fake, strict=True)
        for map_real, map_fake in zip(maps_real, maps_fake, strict=True)
    ]
    return torch.stack(terms).sum()


def hinge_discriminator_loss(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Compute the hinge loss of a discriminator: real scores above 1, generated ones below -1.

    Source: Lim and Ye, "Geometric GAN" (2017); Vocos, section 3.4 (Siuzdak, 2023).
    """
    pairs = zip(_scores(real), _scores(fake), strict=True)
    terms = [(1 - on_real).clamp(min=0).mean() + (1 + on_fake).clamp(min=0).mean() for on_real, on_fake in pairs]
    return torch.stack(terms).sum()


def hinge_adversarial_loss(fake: Sequence[Output]) -> Tensor:
    """Compute the hinge loss of the generator as Vocos has it: scores below 1 count by their distance, others not.

    Source: Vocos, section 3.4 (Siuzdak, 2023).
    """
    return torch.stack([(1 - scores).clamp(min=0).mean() for scores in _scores(fake)]).sum()


def _scores(outputs: Sequence[Output]) -> list[Tensor]:
    return [promote_to_float32(scores) for scores, _ in outputs]


LOSSES = {
    "least_squares": (discriminator_loss, adversarial_loss),
    "hinge": (hinge_discriminator_loss, hinge_adversarial_loss),
}
"""Losses of discriminator and generator by the name that recipes give."""
