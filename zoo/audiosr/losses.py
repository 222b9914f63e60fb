"""Named loss terms of the diffusion and of the autoencoder; recipes list them, a user's own included."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.audio.analysis.spectral import multi_resolution_stft
from zoo.audiosr.diffusion.samplers import row_noise
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.nets.denoiser import Denoiser, concat
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.blocks.autoencoder import kl_divergence
from zoo.common.checks import check_at_least, check_one_of, check_positive, check_within
from zoo.common.tensors import sample_uniforms

Distance = Literal["l1", "l2"]
Known = Sequence[tuple[int, float]]
"""Diffusion step and place of the crop of each item."""
_DISTANCES = {"l1": functional.l1_loss, "l2": functional.mse_loss}


@dataclass
class Step:
    """What the terms of the diffusion compare."""

    output: Tensor  # of the net, (B, C, H, W) float32: v or the noise
    target: Tensor  # what the output should be
    noisy: Tensor  # latents at t
    latent: Tensor  # clean ones, in the scale that the net sees
    t: Tensor  # diffusion steps (B,)
    place: Tensor  # where an item is cropped, (B,) in [0, 1), from the first to the last place
    diffusion: CosineDiffusion
    scale: Tensor  # of the latents, scalar
    autoencoder: FrozenAutoencoder
    features: MelFeatures
    vocoder: FrozenVocoder | None = None  # mels to waveforms; None without one
    known: Known | None = None  # `t` and `place` on the host; None asks the device for them
    _waveforms: dict[tuple[float, int], tuple[Tensor, Tensor] | None] = field(default_factory=dict)

    @cached_property
    def predicted_latent(self) -> Tensor:
        """Clean latents (B, C, H, W) that the output means."""
        return self.diffusion.to_x0(self.noisy, self.output, self.t)

    def waveforms(self, most_time: float, crop_frames: int) -> tuple[Tensor, Tensor] | None:
        """Predicted and true latents, decoded, of the items below a share of the diffusion's steps; None without such.

        The waveforms are (R, 1, T) of crops of so many mel frames; terms that ask alike share the work.
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
    """What the terms of the autoencoder compare."""

    mel: Tensor  # log-mels (B, 1, F, n_mels)
    decoded: Tensor
    moments: Tensor  # of the latents, see `AutoencoderKL.encode`


class LossTerm(nn.Module, ABC):
    """A term of a weighted sum, known by its name in the recipe.

    Args:
        weight: of the term; 0 leaves it out.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        check_at_least(0, weight=weight)
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

    Source: Salimans and Ho, "Progressive Distillation" (2022), section 4, for v.
    """

    def __init__(self, distance: Distance = "l2", weight: float = 1.0) -> None:
        super().__init__(weight)
        check_one_of(_DISTANCES, distance=distance)
        self.distance = _DISTANCES[distance]

    def forward(self, step: Step) -> Tensor:
        """Mean over all elements."""
        return self.distance(step.output, step.target)


class CleanLatent(DiffusionTerm):
    """Mean squared error of the clean latents that the net's output means.

    Where the net predicts v it is `Latent` weighted by the share of noise in the power of what the net sees, so that a
    short training is not spent on telling a little noise from fine detail. Not for nets that predict noise: at the last
    step of the process the weight would be infinite.

    Source: Salimans and Ho, "Progressive Distillation" (2022), section 4, the error of x.
    """

    def forward(self, step: Step) -> Tensor:
        """Mean over all elements."""
        return functional.mse_loss(step.predicted_latent, step.latent)


class Spectral(DiffusionTerm):
    """Base of the terms on waveforms, decoded from crops of the items with little noise.

    Of much noise the predicted latents are a blur that no waveform belongs to. The other items count as zero, so that
    the value does not depend on how a batch is cut.

    Args:
        most_time: share of the diffusion's steps below which an item takes part, in (0, 1].
        crop_frames: mel frames that are decoded of each.
    """

    def __init__(self, most_time: float = 0.1, crop_frames: int = 64, weight: float = 1.0) -> None:
        super().__init__(weight)
        check_positive(most_time=most_time)
        check_within(0, 1, most_time=most_time)
        check_at_least(1, crop_frames=crop_frames)
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
    """

    def __init__(self, distance: Distance = "l1", weight: float = 1.0) -> None:
        super().__init__(weight)
        check_one_of(_DISTANCES, distance=distance)
        self.distance = _DISTANCES[distance]

    def forward(self, step: AutoencoderStep) -> Tensor:
        """Mean over all elements."""
        return self.distance(step.decoded.float(), step.mel.float())


class KL(AutoencoderTerm):
    """Divergence of the latents' Gaussians from the standard normal, per latent."""

    def forward(self, step: AutoencoderStep) -> Tensor:
        """Mean over all latents."""
        return mean_kl(step.moments)


def mean_kl(moments: Tensor) -> Tensor:
    """Divergence of latents' Gaussians from the standard normal, in nats per latent."""
    return kl_divergence(moments).mean() / (moments[0].numel() // 2)


def weighted_sum(terms: dict[str, Tensor], losses: nn.ModuleDict) -> Tensor:
    """The scalar that is minimised: values by name, each times the weight of the term of this name."""
    return torch.stack([cast(LossTerm, losses[name]).weight * value for name, value in terms.items()]).sum()


def checked(losses: dict[str, LossTerm]) -> nn.ModuleDict:
    """The terms that have a weight, of which there must be one; names are identifiers."""
    for name in losses:
        if not name.isidentifier() or name == "loss":
            raise ValueError(f"losses: {name!r} cannot name a term; use letters, digits and _, and not `loss`")
    used = {name: term for name, term in losses.items() if term.weight}
    if not used:
        raise ValueError("losses: no term has a weight")
    return nn.ModuleDict(used)


log = logging.getLogger(__name__)


class Draws(NamedTuple):
    """Random numbers of the items of a batch, each item's from its own seed."""

    t: Tensor  # diffusion steps (B,) int64
    noise: Tensor  # of the diffusion (B, C, H, W)
    posterior: Tensor  # noise that latents are drawn with (B, C, H, W)
    kept: Tensor  # (B,) bool, False where the condition is dropped
    place: Tensor  # of crops (B,) in [0, 1)


def draws(seeds: Sequence[int], shape: Sequence[int], steps: int, dropout: float) -> Draws:
    """Draw what one training step needs, on the CPU, for items with latents of this shape."""
    time, drop, place = sample_uniforms(seeds, 3)
    noises = row_noise(seeds, shape)
    return Draws((time * steps).long(), next(noises), next(noises), drop >= dropout, place.float())


class Objective(nn.Module):
    """All terms of the loss on one batch."""

    def __init__(
        self,
        net: Denoiser,
        diffusion: CosineDiffusion,
        losses: nn.ModuleDict,
        autoencoder: FrozenAutoencoder,
        features: MelFeatures,
        vocoder: FrozenVocoder | None,
    ) -> None:
        super().__init__()
        self.net = net
        self.diffusion = diffusion
        self.losses = losses
        self.autoencoder = autoencoder
        self.features = features
        self.vocoder = vocoder

    def forward(
        self,
        latent: Tensor,
        condition: Tensor,
        t: Tensor,
        noise: Tensor,
        place: Tensor,
        full_audio: Tensor | None,
        known: Known | None = None,
    ) -> dict[str, Tensor]:
        """Run the net and compare.

        Args:
            latent: clean latents (B, C, H, W) in the net's scale.
            condition: latents of the low-resolution input, likewise.
            t: diffusion steps (B,) int64; like `noise`, `place` and `known` as in `Step` and `Draws`.
            full_audio: log-mel (B, 1, F, n_mels) for the global encoder; None without one.

        Returns:
            Sums over the items of each term, (1,): those of several devices can be joined and added.
        """
        noisy = self.diffusion.noised(latent, noise, t)
        output = self.net(concat(noisy, condition), t, full_audio).float()
        return self.compared(output, self.diffusion.target(latent, noise, t), noisy, latent, t, place, known)

    def compared(
        self,
        output: Tensor,
        target: Tensor,
        noisy: Tensor,
        latent: Tensor,
        t: Tensor,
        place: Tensor,
        known: Known | None,
    ) -> dict[str, Tensor]:
        """Sums over the items of each term, (1,); arguments as in `Step`."""
        step = Step(
            output, target, noisy, latent, t, place, self.diffusion, self.net.latent_scale,
            self.autoencoder, self.features, self.vocoder, known,
        )  # fmt: skip
        return {name: (term(step) * len(latent)).reshape(1) for name, term in self.losses.items()}


def replicated(objective: Objective, device: torch.device) -> nn.Module:
    """The objective on all GPUs of this process, the first of them `device`, by `nn.DataParallel`.

    Where there are no two GPUs it is returned as it is, with a message.
    """
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if count < 2:
        log.warning("parallel: dp needs two GPUs and there are %d of them: training on %s alone", count, device)
        return objective
    first = device.index or 0
    return nn.DataParallel(objective, device_ids=[first, *(index for index in range(count) if index != first)])


def check_parts(
    net: Denoiser,
    autoencoder: FrozenAutoencoder,
    features: MelFeatures,
    vocoder: FrozenVocoder | None,
    condition_autoencoder: FrozenAutoencoder | None = None,
) -> None:
    """Compare the sizes of the parts of a diffusion."""
    latents = autoencoder.latent_channels
    given, predicted = net.unet.input_blocks[0], net.unet.out[-1]
    found = (next(given.parameters()).shape[1], next(predicted.parameters()).shape[0])
    if found != (2 * latents, latents):
        raise ValueError(
            f"the autoencoder has {latents} latent channels, so the UNet needs in_channels {2 * latents} and "
            f"out_channels {latents}; found {found[0]} and {found[1]}"
        )
    if condition_autoencoder is not None:
        sizes = [(each.latent_channels, each.factor) for each in (autoencoder, condition_autoencoder)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"autoencoder and condition_autoencoder must have equal latent channels and factors, found {sizes[0]} "
                f"and {sizes[1]}"
            )
    if features.n_mels % (autoencoder.factor * net.unet.factor):
        raise ValueError(
            f"features.n_mels is {features.n_mels}, no multiple of {autoencoder.factor * net.unet.factor}, by which "
            "autoencoder and UNet make the mel smaller"
        )
    if vocoder is not None and (vocoder.hop_length, vocoder.n_mels) != (features.hop_length, features.n_mels):
        raise ValueError(
            f"the vocoder makes {vocoder.hop_length} samples from {vocoder.n_mels} bands, the features have a hop of "
            f"{features.hop_length} and {features.n_mels} bands: they must be equal"
        )
    encoder = net.global_encoder
    if encoder is not None and encoder.n_mels != features.n_mels:
        raise ValueError(f"global_encoder.n_mels is {encoder.n_mels}, features.n_mels is {features.n_mels}")
