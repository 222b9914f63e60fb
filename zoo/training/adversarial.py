"""Adversarial losses over several sub-discriminators, and the interface that discriminators share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.common.tensors import promote_to_float32

Output = tuple[Tensor, list[Tensor]]
"""What one sub-discriminator returns: scores (B, N) and its feature maps, the post-convolution output last."""


class Discriminator(nn.Module):
    """Base of all waveform discriminators: a set of sub-discriminators, each with its own output."""

    def forward(self, x: Tensor) -> list[Output]:
        """Judge a batch of waveforms.

        Args:
            x: waveforms (B, 1, T), float, -1 to 1.

        Returns:
            One (scores (B, N), feature maps) per sub-discriminator.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")


def discriminator_loss(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Least-squares loss of a discriminator: real scores towards 1, generated ones towards 0.

    Args:
        real: outputs on real audio, one per sub-discriminator.
        fake: outputs on generated audio (detached from the generator), in the same order.

    Returns:
        Scalar: means inside a sub-discriminator, sum over sub-discriminators, float32.

    Source: HiFi-GAN, equation 1 (Kong et al., 2020).
    """
    terms = [
        (1 - promote_to_float32(on_real)).square().mean() + promote_to_float32(on_fake).square().mean()
        for (on_real, _), (on_fake, _) in zip(real, fake, strict=True)
    ]
    return torch.stack(terms).sum()


def adversarial_loss(fake: Sequence[Output]) -> Tensor:
    """Least-squares loss of the generator: generated scores towards 1.

    Args:
        fake: outputs on generated audio, one per sub-discriminator.

    Returns:
        Scalar: means inside a sub-discriminator, sum over sub-discriminators, float32.

    Source: HiFi-GAN, equation 2 (Kong et al., 2020).
    """
    return torch.stack([(1 - promote_to_float32(scores)).square().mean() for scores, _ in fake]).sum()


def feature_matching_loss(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Mean absolute distance of feature maps, summed over all maps (the paper's factor 2 is a loss weight).

    Args:
        real: outputs on real audio; its feature maps are detached.
        fake: outputs on generated audio, in the same order.

    Returns:
        Scalar, float32.

    Source: HiFi-GAN, equation 4 (Kong et al., 2020).
    """
    terms = [
        (promote_to_float32(map_real.detach()) - promote_to_float32(map_fake)).abs().mean()
        for (_, maps_real), (_, maps_fake) in zip(real, fake, strict=True)
        for map_real, map_fake in zip(maps_real, maps_fake, strict=True)
    ]
    return torch.stack(terms).sum()


def hinge_discriminator_loss(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Hinge loss of a discriminator: real scores above 1, generated ones below -1; arguments and sums as above.

    Source: Lim and Ye, "Geometric GAN" (2017); Vocos, section 3.4 (Siuzdak, 2023).
    """
    terms = [
        (1 - promote_to_float32(on_real)).clamp(min=0).mean() + (1 + promote_to_float32(on_fake)).clamp(min=0).mean()
        for (on_real, _), (on_fake, _) in zip(real, fake, strict=True)
    ]
    return torch.stack(terms).sum()


def hinge_adversarial_loss(fake: Sequence[Output]) -> Tensor:
    """Hinge loss of the generator as Vocos has it: scores below 1 count by their distance, others not.

    Source: Vocos, section 3.4 (Siuzdak, 2023).
    """
    return torch.stack([(1 - promote_to_float32(scores)).clamp(min=0).mean() for scores, _ in fake]).sum()


LOSSES = {
    "least_squares": (discriminator_loss, adversarial_loss),
    "hinge": (hinge_discriminator_loss, hinge_adversarial_loss),
}
"""Losses of discriminator and generator by the name that recipes give."""
