"""Named loss terms of the diffusion and of the autoencoder; recipes list them, a user's own included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.audio.spectral import multi_resolution_stft
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.features import MelFeatures
from zoo.audiosr.parts import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.vae import kl

Distance = Literal["l1", "l2"]
Known = Sequence[tuple[int, float]]
"""Diffusion step and place of the crop of each item."""
_DISTANCES = {"l1": functional.l1_loss, "l2": functional.mse_loss}


@dataclass
class Step:
    """What the terms of the diffusion compare.

    Args:
        output: of the net, (B, C, H, W) float32: v or the noise.
        target: what it should be.
        noisy: latents at diffusion step t.
        latent: clean ones, in the scale that the net sees.
        t: diffusion steps (B,).
        place: where an item is cropped, (B,) in [0, 1), from the first to the last place.
        diffusion: the process.
        scale: of the latents, scalar.
        autoencoder: decodes latents.
        features: waveforms to mels.
        vocoder: mels to waveforms; None without one.
        known: `t` and `place` on the host; None asks the device for them.
    """

    output: Tensor
    target: Tensor
    noisy: Tensor
    latent: Tensor
    t: Tensor
    place: Tensor
    diffusion: CosineDiffusion
    scale: Tensor
    autoencoder: FrozenAutoencoder
    features: MelFeatures
    vocoder: FrozenVocoder | None = None
    known: Known | None = None
    _waveforms: dict[tuple[float, int], tuple[Tensor, Tensor] | None] = field(default_factory=dict)

    @cached_property
    def predicted_latent(self) -> Tensor:
        """Clean latents (B, C, H, W) that the output means."""
        return self.diffusion.to_x0(self.noisy, self.output, self.t)

    def waveforms(self, most_time: float, crop_frames: int) -> tuple[Tensor, Tensor] | None:
        """Predicted and true latents of the items with little noise, decoded; terms that ask alike share the work.

        Args:
            most_time: items below this share of the diffusion's steps, 0 to 1.
            crop_frames: length of the crop that is decoded, in mel frames.

        Returns:
            Waveforms (R, 1, T) of both, or None where no item has so little noise.

        Raises:
            ValueError: when there is no vocoder.
        """
        key = (most_time, crop_frames)
        if key not in self._waveforms:
            limit = np.float32(most_time * self.diffusion.steps)
            known = self.known or list(zip(self.t.tolist(), self.place.tolist(), strict=True))
            places = {row: place for row, (t, place) in enumerate(known) if t < limit}
            self._waveforms[key] = self._decoded(places, crop_frames) if places else None
        return self._waveforms[key]

    def _decoded(self, places: dict[int, float], crop_frames: int) -> tuple[Tensor, Tensor]:
        if self.vocoder is None:
            raise ValueError("a loss on waveforms needs model.init_args.vocoder")
        length = max(1, min(crop_frames // self.autoencoder.factor, self.latent.shape[2]))
        choices = np.float32(self.latent.shape[2] - length + 1)
        starts = {row: int(np.float32(place) * choices) for row, place in places.items()}
        found, wanted = (
            self.vocoder(self._mels(torch.stack([latents[row, :, a : a + length] for row, a in starts.items()])))
            for latents in (self.predicted_latent, self.latent)
        )
        return found.float(), wanted.float().detach()

    def _mels(self, latents: Tensor) -> Tensor:
        return self.autoencoder.decode(latents / self.scale)


@dataclass
class AutoencoderStep:
    """What the terms of the autoencoder compare.

    Args:
        mel: log-mels (B, 1, F, n_mels).
        decoded: the autoencoder's, same shape.
        moments: of the latents, see `Autoencoder.encode`.
    """

    mel: Tensor
    decoded: Tensor
    moments: Tensor


class LossTerm(nn.Module, ABC):
    """A term of a weighted sum, known by its name in the recipe.

    Args:
        weight: of the term; 0 leaves it out.

    Raises:
        ValueError: when the weight is negative.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        if weight < 0:
            raise ValueError(f"{type(self).__name__}: the weight is at least 0, not {weight}")
        self.weight = weight


class DiffusionTerm(LossTerm):
    """Base of the terms of `DiffusionTask`."""

    @abstractmethod
    def forward(self, step: Step) -> Tensor:
        """Mean over the items of a step, not weighted: a scalar."""


class AutoencoderTerm(LossTerm):
    """Base of the terms of `AutoencoderTask`."""

    @abstractmethod
    def forward(self, step: AutoencoderStep) -> Tensor:
        """Mean over the items of a step, not weighted: a scalar."""


class Latent(DiffusionTerm):
    """Distance of the net's output to its target, v or the noise.

    Args:
        distance: "l2" (mean squared error) or "l1".
        weight: of the term.

    Source: Salimans and Ho, "Progressive Distillation" (2022), section 4, for v.
    """

    def __init__(self, distance: Distance = "l2", weight: float = 1.0) -> None:
        super().__init__(weight)
        self.distance = _DISTANCES[_known(distance)]

    def forward(self, step: Step) -> Tensor:
        """Mean over all elements."""
        return self.distance(step.output, step.target)


class Spectral(DiffusionTerm):
    """Base of the terms on waveforms, decoded from crops of the items with little noise.

    Of much noise the predicted latents are a blur that no waveform belongs to. The other items count as zero, so that
    the value does not depend on how a batch is cut.

    Args:
        most_time: share of the diffusion's steps below which an item takes part, in (0, 1].
        crop_frames: mel frames that are decoded of each.
        weight: of the term.

    Raises:
        ValueError: when a number is out of its range.
    """

    def __init__(self, most_time: float = 0.1, crop_frames: int = 64, weight: float = 1.0) -> None:
        super().__init__(weight)
        if not 0 < most_time <= 1 or crop_frames < 1:
            raise ValueError(
                f"{type(self).__name__}: most_time lies in (0, 1] and crop_frames is at least 1, found {most_time} and "
                f"{crop_frames}"
            )
        self.most_time = most_time
        self.crop_frames = crop_frames

    def forward(self, step: Step) -> Tensor:
        """Mean over all items."""
        pair = step.waveforms(self.most_time, self.crop_frames)
        if pair is None:
            return step.output.sum() * 0.0
        with torch.autocast(step.output.device.type, enabled=False):
            return self.compare(*pair, step.features) * (len(pair[0]) / len(step.output))

    @abstractmethod
    def compare(self, found: Tensor, wanted: Tensor, features: MelFeatures) -> Tensor:
        """Mean distance of waveforms (R, 1, T)."""


class MelL1(Spectral):
    """Mean absolute difference of log-mels."""

    def compare(self, found: Tensor, wanted: Tensor, features: MelFeatures) -> Tensor:
        """Mean distance of waveforms (R, 1, T)."""
        return functional.l1_loss(features(found), features(wanted))


class MultiResolutionSTFT(Spectral):
    """Spectral convergence and L1 of log-magnitudes at three resolutions."""

    def compare(self, found: Tensor, wanted: Tensor, features: MelFeatures) -> Tensor:
        """Mean distance of waveforms (R, 1, T)."""
        return multi_resolution_stft(found, wanted)


class Reconstruction(AutoencoderTerm):
    """Distance of a decoded log-mel to the true one.

    Args:
        distance: "l1" or "l2" (mean squared error).
        weight: of the term.
    """

    def __init__(self, distance: Distance = "l1", weight: float = 1.0) -> None:
        super().__init__(weight)
        self.distance = _DISTANCES[_known(distance)]

    def forward(self, step: AutoencoderStep) -> Tensor:
        """Mean over all elements."""
        return self.distance(step.decoded.float(), step.mel.float())


class KL(AutoencoderTerm):
    """Divergence of the latents' Gaussians from the standard normal, per latent."""

    def forward(self, step: AutoencoderStep) -> Tensor:
        """Mean over all latents."""
        return kl(step.moments).mean()


def weighted_sum(terms: dict[str, Tensor], losses: nn.ModuleDict) -> Tensor:
    """The sum that is minimised.

    Args:
        terms: values by name.
        losses: the terms of these names.

    Returns:
        A scalar.
    """
    return torch.stack([cast(LossTerm, losses[name]).weight * value for name, value in terms.items()]).sum()


def checked(losses: dict[str, LossTerm]) -> nn.ModuleDict:
    """The terms that have a weight.

    Raises:
        ValueError: when none has, or a name is no identifier.
    """
    for name in losses:
        if not name.isidentifier() or name == "loss":
            raise ValueError(f"losses: {name!r} cannot name a term; use letters, digits and _, and not `loss`")
    used = {name: term for name, term in losses.items() if term.weight}
    if not used:
        raise ValueError("losses: no term has a weight")
    return nn.ModuleDict(used)


def _known(distance: str) -> str:
    if distance not in _DISTANCES:
        raise ValueError(f"distance is one of {', '.join(_DISTANCES)}, not {distance!r}")
    return distance
