"""Training of the autoencoder: reconstruction and KL, with or without discriminators of mel images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.audiosr.losses import AutoencoderStep, AutoencoderTerm, mean_kl, validate_losses, weighted_sum
from zoo.audiosr.nets.features import MelFeatures, crop_to_multiple
from zoo.blocks.autoencoder import AutoencoderKL, posterior_mean, sample_posterior
from zoo.training.adversarial import Discriminator
from zoo.training.gan import GANTask
from zoo.training.task import OptimizerCallable, SingleOptimizerTask, ZooTask, compile_module

Batch = dict[str, Tensor]


class _Stage(ZooTask):
    """Losses of both kinds of training, and a validation that decodes the means of the latents."""

    inference_class = "zoo.audiosr.Reconstructor"
    inference_modules = ("autoencoder", "features")

    autoencoder: AutoencoderKL
    features: MelFeatures

    def _prepare(
        self, autoencoder: AutoencoderKL, features: MelFeatures, losses: Mapping[str, AutoencoderTerm], **options: Any
    ) -> None:
        if features.n_mels % autoencoder.factor:
            raise ValueError(
                f"model.features.n_mels is {features.n_mels}, no multiple of the autoencoder's factor "
                f"{autoencoder.factor}"
            )
        self.autoencoder = autoencoder
        self.features = features
        self.losses = validate_losses({**losses})
        self.media_items: int = options["media_items"]
        self.store_options(options)

    def on_fit_start(self) -> None:
        """Compile encoder and decoder in place with `compile`."""
        if self.compile_modules:
            for half in (self.autoencoder.encoder, self.autoencoder.decoder):
                compile_module(half)

    def _mel(self, batch: Batch) -> Tensor:
        return crop_to_multiple(self.features(batch["high"]), self.autoencoder.factor)

    def _reconstruct(self, batch: Batch) -> AutoencoderStep:
        """Encode `high` (B, 1, T) at the features' rate, sample latents, decode."""
        mel = self._mel(batch)
        moments = self.autoencoder.encode(mel)
        noise = torch.randn_like(posterior_mean(moments))
        return AutoencoderStep(mel, self.autoencoder.decode(sample_posterior(moments, noise)), moments)

    def _terms(self, step: AutoencoderStep) -> dict[str, Tensor]:
        return {name: term(step) for name, term in self.losses.items()}

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Compare whole clips."""
        mel = self._mel(batch)
        moments = self.autoencoder.encode(mel)
        mean = posterior_mean(moments)
        decoded = self.autoencoder.decode(mean).float()
        terms = self._terms(AutoencoderStep(mel, decoded, moments))
        mels = {"target": mel[0, 0].T, "decoded": decoded[0, 0].T}
        self.log_media(stage, batch_idx, lambda: self.write_media("matrices", f"clip{batch_idx}_mel", mels))
        values = {
            "l1": functional.l1_loss(decoded, mel),
            "l2": functional.mse_loss(decoded, mel),
            "kl": mean_kl(moments),
            "latent_std": mean.float().std(),
        }
        return {**values, **terms, "loss": weighted_sum(terms, self.losses)}, len(mel)


class AutoencoderTask(_Stage, SingleOptimizerTask):
    """Stage 1 without discriminators.

    Validation decodes the means of the latents: `l1` and `l2` of the log-mel, `kl` and `latent_std`, terms and `loss`.

    Args:
        autoencoder: log-mel images to latents and back; it trains.
        features: audio to log-mels, part of inference.
        losses: terms by name, such as `recon` and `kl`.
        media_items: validation clips that are plotted.
        chunk_seconds: long files are reconstructed in pieces of this length.

    Source: Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models" (2022), section 3.1.
    """

    def __init__(
        self,
        autoencoder: AutoencoderKL,
        features: MelFeatures,
        losses: dict[str, AutoencoderTerm],
        optimizer: OptimizerCallable,
        *,
        media_items: int = 3,
        chunk_seconds: float = 10.24,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        self._prepare(autoencoder, features, losses, media_items=media_items, chunk_seconds=chunk_seconds)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Reconstruct `high` (B, 1, T) from sampled latents."""
        step = self._reconstruct(batch)
        terms = self._terms(step)
        loss = weighted_sum(terms, self.losses)
        self.log_terms("train", {"loss": loss, **terms}, batch_size=len(step.mel))
        return loss


class AdversarialAutoencoderTask(_Stage, GANTask):
    """Stage 1 with discriminators of mel images; checkpoints name the net as `AutoencoderTask` does.

    Args:
        autoencoder: the net; `optimizer_g` and the like are its own.
        features: audio to log-mels, part of inference.
        losses: terms by name; each is logged as `g/<name>`.
        discriminators: by name, each of mel images (B, 1, F, n_mels).
        loss_weights: of `d/<name>`, `g/adv_<name>` and `g/fm_<name>` of each discriminator.
        media_items: validation clips that are plotted.
        chunk_seconds: long files are reconstructed in pieces of this length.
        kwargs: of GANTask; `step.discriminator_start` is the warm-up.

    Source: Rombach et al. (2022), section 3.1 and appendix G, with least-squares losses.
    """

    def __init__(
        self,
        autoencoder: AutoencoderKL,
        features: MelFeatures,
        losses: dict[str, AutoencoderTerm],
        discriminators: dict[str, Discriminator],
        optimizer_g: OptimizerCallable,
        optimizer_d: OptimizerCallable,
        loss_weights: dict[str, float],
        *,
        media_items: int = 3,
        chunk_seconds: float = 10.24,
        **kwargs: Any,
    ) -> None:
        weights = {**loss_weights, **{f"g/{name}": term.weight for name, term in losses.items() if term.weight}}
        super().__init__(autoencoder, discriminators, optimizer_g, optimizer_d, weights, **kwargs)
        del self.generator  # one name in checkpoints, see the property
        self._prepare(autoencoder, features, losses, media_items=media_items, chunk_seconds=chunk_seconds)

    @property
    def generator(self) -> nn.Module:  # type: ignore[override]
        """The autoencoder, by the name that `GANTask` uses."""
        return self.autoencoder

    def generate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Encode `high` (B, 1, T), sample latents, decode; the batch gets the `moments` that the terms need.

        Returns:
            Decoded and true log-mels (B, 1, F, n_mels).
        """
        step = self._reconstruct(batch)
        batch["moments"] = step.moments
        return step.decoded, step.mel

    def reconstruction(self, fake: Tensor, real: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The terms by their names in `loss_weights`."""
        terms = self._terms(AutoencoderStep(real, fake, batch["moments"]))
        return {f"g/{name}": value for name, value in terms.items()}
