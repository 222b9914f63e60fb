"""Training of the autoencoder in whose latents a flow then runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.blocks.autoencoder import AutoencoderKL, kl_divergence, sample_posterior
from zoo.common.checks import check_at_least
from zoo.flow import rendering
from zoo.flow.process.sampling import noise
from zoo.training.resume import item_seed
from zoo.training.task import OptimizerCallable, SingleOptimizerTask

LATENT = 0  # what is drawn for an item: its latent, from the moments


class AutoencoderTask(SingleOptimizerTask):
    """Images to Gaussian latents and back: mean absolute error, and a little of the KL divergence.

    The data are those of a flow (`zoo.flow.ImageData`), whose noise and labels play no part. A flow takes the run as
    `zoo.flow.FrozenAutoencoder` with its folder for `source`.

    Args:
        net: encoder and decoder.
        kl: weight of the divergence from a standard normal, in nats summed over an image's latent.

    Source: Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models" (2022), whose weight is 1e-6;
    without its perceptual and adversarial terms.
    """

    inference_class = "zoo.flow.Reconstructor"
    inference_modules = ("net",)

    def __init__(self, net: AutoencoderKL, optimizer: OptimizerCallable, *, kl: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(optimizer, **kwargs)
        check_at_least(0, kl=kl)
        self.net = net
        self.kl = kl

    def on_fit_start(self) -> None:
        """Compile both halves in place when asked for: they are what is called."""
        if self.compile_modules:
            self.net.encoder.compile()
            self.net.decoder.compile()

    def prepare_training_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the noise of the latents, each item's from its seed."""
        if "noise" in batch:
            return batch
        height, width = (side // self.net.factor for side in batch["x1"].shape[-2:])
        seeds = [item_seed(seed, 0, LATENT) for seed in batch["seeds"]]
        return {**batch, "noise": noise(seeds, (self.net.latent_channels, height, width))}

    def terms(self, images: Tensor, noise: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """The loss and its terms for images (B, C, H, W), and their reconstructions.

        Args:
            noise: of the latents; None takes their means.
        """
        moments = self.net.encode(images)
        latents = moments.chunk(2, dim=1)[0] if noise is None else sample_posterior(moments, noise)
        made = self.net.decode(latents)
        l1, divergence = (made - images).abs().float().mean(), kl_divergence(moments).mean()
        return {"loss": l1 + self.kl * divergence, "l1": l1, "kl": divergence}, made

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss of latents drawn."""
        batch = self.prepare_training_batch(batch)
        terms, _ = self.terms(batch["x1"], batch["noise"])
        self.log_terms("train", terms, batch_size=len(batch["x1"]))
        return terms["loss"]

    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """The same of the latents' means; nothing is random."""
        return self.terms(batch["x1"], None)[0], len(batch["x1"])

    def log_samples(self, batches: list[Any], last: bool) -> None:
        """Show held-out images above their reconstructions."""
        images = torch.cat([batch["x1"] for batch in batches])[: self.sample_settings.items]
        with self.trainer.precision_plugin.val_step_context():
            made = self.terms(images, None)[1].float()
        rows = [("held-out images", images), ("reconstructed", made)]
        pixels = [(title, rendering.to_pixels(each)) for title, each in rows]
        self.write_media("image", "val/samples", rendering.titled_rows(pixels))
