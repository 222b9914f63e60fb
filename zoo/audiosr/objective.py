"""The loss of the diffusion as one module, which can run on several devices, and the random numbers that it takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.audiosr.denoiser import Denoiser, concat
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.features import MelFeatures
from zoo.audiosr.losses import Known, Step
from zoo.audiosr.parts import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.samplers import row_noise
from zoo.training.draws import seeded_uniforms

log = logging.getLogger(__name__)


class Draws(NamedTuple):
    """Random numbers of the items of a batch, each item's from its own seed.

    Attributes:
        t: diffusion steps (B,) int64.
        noise: of the diffusion (B, C, H, W).
        posterior: noise that latents are drawn with (B, C, H, W).
        kept: (B,) bool, False where the condition is dropped.
        place: of crops (B,) in [0, 1).
    """

    t: Tensor
    noise: Tensor
    posterior: Tensor
    kept: Tensor
    place: Tensor


def draws(seeds: Sequence[int], shape: Sequence[int], steps: int, dropout: float) -> Draws:
    """Draw what one training step needs, on the CPU.

    Args:
        seeds: of the items.
        shape: of an item's latents.
        steps: of the diffusion.
        dropout: probability that the condition is dropped.
    """
    time, drop, place = seeded_uniforms(seeds, 3)
    noises = row_noise(seeds, shape)
    return Draws((time * steps).long(), next(noises), next(noises), drop >= dropout, place.float())


class Objective(nn.Module):
    """All terms of the loss on one batch.

    Args:
        net: that trains.
        diffusion: the process.
        losses: terms by name.
        autoencoder: decodes latents for the terms that compare sound.
        features: the same terms' mels.
        vocoder: the same terms' waveforms.
    """

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
            t: diffusion steps (B,) int64.
            noise: (B, C, H, W).
            place: of crops (B,).
            full_audio: log-mel (B, 1, F, n_mels) for the global encoder; None without one.
            known: `t` and `place` on the host; None asks the device for them.

        Returns:
            Sums over the items of each term, (1,): those of several devices can be joined and added.
        """
        noisy = self.diffusion.noised(latent, noise, t)
        output = self.net(concat(noisy, condition), t, full_audio).float()
        step = Step(
            output=output,
            target=self.diffusion.target(latent, noise, t),
            noisy=noisy,
            latent=latent,
            t=t,
            place=place,
            diffusion=self.diffusion,
            scale=self.net.latent_scale,
            autoencoder=self.autoencoder,
            features=self.features,
            vocoder=self.vocoder,
            known=known,
        )
        return {name: (term(step) * len(latent)).reshape(1) for name, term in self.losses.items()}


def replicated(objective: Objective, device: torch.device) -> nn.Module:
    """The objective on all GPUs of this process, the first of them `device`.

    Args:
        objective: on `device`.
        device: of the trainer.

    Returns:
        `nn.DataParallel` of it, or itself, with a message, where there are no two GPUs.
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
    """Compare the sizes of the parts of a diffusion.

    Raises:
        ValueError: when two do not fit each other; names both values.
    """
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
