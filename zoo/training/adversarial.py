"""Adversarial losses over several sub-discriminators, their balance, and the interface that discriminators share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from zoo.common.reading.unpickle import at_least_float32

_LEAST_NORM = 1e-12

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
        (1 - at_least_float32(on_real)).square().mean() + at_least_float32(on_fake).square().mean()
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
    return torch.stack([(1 - at_least_float32(scores)).square().mean() for scores, _ in fake]).sum()


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
        (at_least_float32(map_real.detach()) - at_least_float32(map_fake)).abs().mean()
        for (_, maps_real), (_, maps_fake) in zip(real, fake, strict=True)
        for map_real, map_fake in zip(maps_real, maps_fake, strict=True)
    ]
    return torch.stack(terms).sum()


def hinge_discriminator_loss(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Hinge loss of a discriminator: real scores above 1, generated ones below -1; arguments and sums as above.

    Source: Lim and Ye, "Geometric GAN" (2017); Vocos, section 3.4 (Siuzdak, 2023).
    """
    terms = [
        (1 - at_least_float32(on_real)).clamp(min=0).mean() + (1 + at_least_float32(on_fake)).clamp(min=0).mean()
        for (on_real, _), (on_fake, _) in zip(real, fake, strict=True)
    ]
    return torch.stack(terms).sum()


def hinge_adversarial_loss(fake: Sequence[Output]) -> Tensor:
    """Hinge loss of the generator as Vocos has it: scores below 1 count by their distance, others not.

    Source: Vocos, section 3.4 (Siuzdak, 2023).
    """
    return torch.stack([(1 - at_least_float32(scores)).clamp(min=0).mean() for scores, _ in fake]).sum()


def r1_penalty(discriminator: Discriminator, real: Tensor) -> Tensor:
    """Half the squared norm of the gradient of the scores' sum in real waveforms (B, 1, T), mean over items.

    In float32 also under autocast: the squares of a half-precision gradient overflow.

    Source: Mescheder et al., "Which Training Methods for GANs do actually Converge?" (2018), equation 9; the weight is
        its gamma.
    """
    with torch.autocast(real.device.type, enabled=False):
        real = at_least_float32(real.detach()).requires_grad_()
        total = torch.stack([scores.sum() for scores, _ in discriminator(real)]).sum()
        (gradient,) = torch.autograd.grad(total, real, create_graph=True)
    return 0.5 * gradient.square().flatten(1).sum(1).mean()


LOSSES = {
    "least_squares": (discriminator_loss, adversarial_loss),
    "hinge": (hinge_discriminator_loss, hinge_adversarial_loss),
}
"""Losses of discriminator and generator by the name that recipes give."""


class LossBalancer:
    """Gives each of a generator's losses its share of the gradient, whatever the scale of the loss.

    The gradient of each loss with respect to the generated audio is divided by the moving average of its norm (of an
    item, the mean over the batch). The loss weights then say shares, and only their ratios count. Other than in the
    original, norms are those of an item's own loss, so that the step depends neither on the batch size nor on how the
    batch is spread over chunks and processes.

    Args:
        total_norm: norm of an item's gradient at which the shares add up, above 0.
        decay: of the moving averages, a batch, 0 to below 1.

    Attributes:
        averages: of each loss the weighted sum of its norms and the sum of their weights, (2,), on its device.

    Source: EnCodec, section 3.4 (Défossez et al., 2022).
    """

    def __init__(self, total_norm: float = 1.0, decay: float = 0.999) -> None:
        if not total_norm > 0 or not 0 <= decay < 1:
            raise ValueError(f"total_norm must be above 0 and decay 0 to below 1, found {total_norm} and {decay}")
        self.total_norm, self.decay = total_norm, decay
        self.averages: dict[str, Tensor] = {}

    def gradients(self, losses: Mapping[str, Tensor], audio: Tensor) -> dict[str, Tensor]:
        """Differentiate each loss, a mean over the batch, with respect to the audio (B, 1, T).

        Raises:
            ValueError: for a loss that does not depend on it.
        """
        found = {}
        for number, (key, loss) in enumerate(losses.items(), start=1):
            keep = number < len(losses)
            if (
                loss.grad_fn is None
                or (gradient := torch.autograd.grad(loss, audio, retain_graph=keep, allow_unused=True)[0]) is None
            ):
                raise ValueError(f"balancer: {key} does not depend on the generated audio: leave the balancer out")
            found[key] = gradient
        return found

    def norms(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Norm of an item's gradient of its own loss, the mean over the batch, (losses,) in their order."""
        return torch.stack([len(each) * each.flatten(1).norm(dim=1).mean() for each in gradients.values()])

    def factors(self, norms: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, Tensor]:
        """Take a batch's norms () into the averages; what each gradient is to be multiplied by."""
        shares = sum(weights[key] for key in norms)
        factors = {}
        for key, norm in norms.items():
            before = self.averages[key].to(norm) if key in self.averages else norm.new_zeros(2)
            after = self.decay * before + torch.stack([norm, torch.ones_like(norm)])
            # a batch that fails must not stay in the averages
            total, weight = self.averages[key] = torch.where(norm.isfinite(), after, before)
            factors[key] = self.total_norm * weights[key] / shares / (total / weight + _LEAST_NORM)
        return factors
