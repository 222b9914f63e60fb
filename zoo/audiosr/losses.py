"""Loss terms of the diffusion and of the autoencoder, which recipes list by name, and the diffusion's objective."""

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
from zoo.audiosr.diffusion import CosineDiffusion, row_noise
from zoo.audiosr.nets.denoiser import Denoiser, concat
from zoo.audiosr.nets.features import MelFeatures
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.blocks.autoencoder import kl_divergence
from zoo.common.checks import check_at_least, check_one_of, check_positive, check_within
from zoo.common.tensors import sample_uniforms

Distance = Literal["l1", "l2"]
_DISTANCES = {"l1": functional.l1_loss, "l2": functional.mse_loss}

log = logging.getLogger(__name__)


class StepNoise(NamedTuple):
    """Random numbers of a training step, each item's from its own seed."""

    times: Tensor  # diffusion steps (B,) int64
    noise: Tensor  # of the diffusion (B, C, H, W)
    posterior: Tensor  # of the autoencoder's posterior (B, C, H, W)
    keep_condition: Tensor  # (B,) bool, False where the condition is dropped
    positions: Tensor  # of crops (B,) in [0, 1), from the first to the last


def sample_step_noise(seeds: Sequence[int], shape: Sequence[int], steps: int, dropout: float) -> StepNoise:
    """Sample random numbers on the CPU, by a seed for each item, for latents (C, H, W) of a diffusion's `steps`."""
    time, drop, position = sample_uniforms(seeds, 3)
    noises = row_noise(seeds, shape)
    return StepNoise((time * steps).long(), next(noises), next(noises), drop >= dropout, position.float())


@dataclass
class DiffusionStep:
    """What the terms of the diffusion compare."""

    output: Tensor  # of the net, (B, C, H, W) float32: v or the noise
    target: Tensor  # what the output should be
    noisy: Tensor  # latents at `times`
    latent: Tensor  # clean ones, in the scale that the net sees
    times: Tensor  # diffusion steps (B,)
    positions: Tensor  # of crops (B,), see `StepNoise`
    diffusion: CosineDiffusion
    scale: Tensor  # of the latents, scalar
    autoencoder: FrozenAutoencoder
    features: MelFeatures
    vocoder: FrozenVocoder | None = None  # mels to waveforms; None without one
    _waveforms: dict[tuple[float, int], tuple[Tensor, Tensor] | None] = field(default_factory=dict)

    @cached_property
    def predicted_latent(self) -> Tensor:
        """Clean latents (B, C, H, W) that the output means."""
        return self.diffusion.to_x0(self.noisy, self.output, self.times)

    @cached_property
    def _times_and_positions(self) -> list[list[float]]:
        """Diffusion steps and crop positions on the host, by one transfer."""
        return torch.stack([self.times.float(), self.positions]).tolist()

    def waveforms(self, max_time: float, crop_frames: int) -> tuple[Tensor, Tensor] | None:
        """Decode crops of the items below a share of the steps, as predicted and true waveforms (R, 1, T), or None.

        Terms with equal arguments share them.
        """
        key = (max_time, crop_frames)
        if key not in self._waveforms:
            limit = np.float32(max_time * self.diffusion.steps)
            items = zip(*self._times_and_positions, strict=True)
            positions = {row: position for row, (time, position) in enumerate(items) if time < limit}
            self._waveforms[key] = self._decode_crops(positions, crop_frames) if positions else None
        return self._waveforms[key]

    def _decode_crops(self, positions: dict[int, float], crop_frames: int) -> tuple[Tensor, Tensor]:
        if self.vocoder is None:
            raise ValueError("a loss on waveforms needs model.init_args.vocoder")
        length = max(1, min(crop_frames // self.autoencoder.factor, self.latent.shape[2]))
        last = self.latent.shape[2] - length
        starts = {row: min(int(np.float32(position) * (last + 1)), last) for row, position in positions.items()}
        crops = (
            torch.stack([latents[row, :, start : start + length] for row, start in starts.items()])
            for latents in (self.predicted_latent, self.latent)
        )
        predicted, true = (self.vocoder(self.autoencoder.decode(crop / self.scale)) for crop in crops)
        return predicted.float(), true.float().detach()


@dataclass
class AutoencoderStep:
    """What the terms of the autoencoder compare."""

    mel: Tensor  # log-mels (B, 1, F, n_mels)
    decoded: Tensor
    moments: Tensor  # of the latents, see `AutoencoderKL.encode`


class LossTerm(nn.Module, ABC):
    """A term of a weighted sum.

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
    def forward(self, step: DiffusionStep) -> Tensor:
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

    def forward(self, step: DiffusionStep) -> Tensor:
        """Mean over all elements."""
        return self.distance(step.output, step.target)


class CleanLatent(DiffusionTerm):
    """Mean squared error of the clean latents that the net's output means.

    Of v it is `Latent` weighted by the share of noise in the net's input: short trainings then learn less from steps
    with little noise. Not for nets that predict noise: the weight of the last step would be infinite.

    Source: Salimans and Ho, "Progressive Distillation" (2022), section 4, the error of x.
    """

    def forward(self, step: DiffusionStep) -> Tensor:
        """Mean over all elements."""
        return functional.mse_loss(step.predicted_latent, step.latent)


class Spectral(DiffusionTerm):
    """Base of the terms on waveforms, decoded from crops of the items with little noise.

    The other items count as zero, so that the value does not depend on how a batch is split.

    Args:
        max_time: share of the diffusion's steps below which an item counts, in (0, 1].
        crop_frames: mel frames decoded of each.
    """

    def __init__(self, max_time: float = 0.1, crop_frames: int = 64, weight: float = 1.0) -> None:
        super().__init__(weight)
        check_positive(max_time=max_time)
        check_within(0, 1, max_time=max_time)
        check_at_least(1, crop_frames=crop_frames)
        self.max_time = max_time
        self.crop_frames = crop_frames

    def forward(self, step: DiffusionStep) -> Tensor:
        """Mean over all items."""
        pair = step.waveforms(self.max_time, self.crop_frames)
        if pair is None:
            return step.output.sum() * 0.0
        with torch.autocast(step.output.device.type, enabled=False):
            return self.compare(*pair, step.features) * (len(pair[0]) / len(step.output))

    @abstractmethod
    def compare(self, predicted: Tensor, true: Tensor, features: MelFeatures) -> Tensor:
        """Mean distance of waveforms (R, 1, T)."""


class MelL1(Spectral):
    """Mean absolute difference of log-mels."""

    def compare(self, predicted: Tensor, true: Tensor, features: MelFeatures) -> Tensor:
        """Mean distance of waveforms (R, 1, T)."""
        return functional.l1_loss(features(predicted), features(true))


class MultiResolutionSTFT(Spectral):
    """Spectral convergence and L1 of log-magnitudes at three resolutions."""

    def compare(self, predicted: Tensor, true: Tensor, features: MelFeatures) -> Tensor:
        """Mean distance of waveforms (R, 1, T)."""
        return multi_resolution_stft(predicted, true)


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
    """Sum values by name, each times the weight of the term of this name: the loss."""
    return torch.stack([cast(LossTerm, losses[name]).weight * value for name, value in terms.items()]).sum()


def validate_losses(losses: dict[str, LossTerm]) -> nn.ModuleDict:
    """Return the terms with a weight; ValueError where there are none or a name is no identifier."""
    for name in losses:
        if not name.isidentifier() or name == "loss":
            raise ValueError(f"losses: {name!r} cannot name a term; use letters, digits and _, and not `loss`")
    weighted = {name: term for name, term in losses.items() if term.weight}
    if not weighted:
        raise ValueError("losses: no term has a weight")
    return nn.ModuleDict(weighted)


class Objective(nn.Module):
    """All terms of the diffusion's loss on one batch."""

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
        times: Tensor,
        noise: Tensor,
        positions: Tensor,
        full_audio: Tensor | None,
    ) -> dict[str, Tensor]:
        """Sum each term over the items, (1,): sums of several devices can be concatenated and added.

        Args:
            latent: clean latents (B, C, H, W) in the net's scale.
            condition: latents of the low-resolution input, likewise.
            times: diffusion steps (B,) int64; like `noise` and `positions` as in `StepNoise`.
            full_audio: log-mel (B, 1, F, n_mels) for the global encoder; None without one.
        """
        step = DiffusionStep(
            *self.predict(latent, condition, times, noise, full_audio), positions, self.diffusion,
            self.net.latent_scale, self.autoencoder, self.features, self.vocoder,
        )  # fmt: skip
        return {name: (term(step) * len(latent)).reshape(1) for name, term in self.losses.items()}

    def predict(
        self, latent: Tensor, condition: Tensor, times: Tensor, noise: Tensor, full_audio: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Run the net; returns output, target, noisy and clean latents (B, C, H, W), and times (B,)."""
        noisy = self.diffusion.add_noise(latent, noise, times)
        output = self.net(concat(noisy, condition), times, full_audio).float()
        return output, self.diffusion.target(latent, noise, times), noisy, latent, times

    def replicate(self, device: torch.device) -> nn.Module:
        """Replicate it on all GPUs of this process by `nn.DataParallel`; with fewer than two return it as it is."""
        count = torch.cuda.device_count() if device.type == "cuda" else 0
        if count < 2:
            log.warning("parallel: dp needs two GPUs and there are %d of them: training on %s alone", count, device)
            return self
        first = device.index or 0
        return nn.DataParallel(self, device_ids=[first, *(index for index in range(count) if index != first)])
