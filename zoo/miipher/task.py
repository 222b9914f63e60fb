"""Stage 1 of Miipher-2: training of the feature cleaner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.miipher.losses import TERMS, Reduction, feature_loss
from zoo.miipher.nets.cleaner import Cleaner
from zoo.training.task import OptimizerCallable, SingleOptimizerTask

Batch = dict[str, Any]


class AdapterTask(SingleOptimizerTask):
    """Stage 1: adapted features of degraded speech approach the plain backbone's features of the clean version.

    `val/identity_loss` is the loss without adapters.

    Args:
        encoder: backbone and adapters.
        optimizer: of the adapters.
        loss_weights: of `mae`, `mse` and `sc`.
        reduction: "item" averages over the valid frames of each clip and then over clips, so that accumulation and
            several processes equal one larger batch; "batch" averages over all valid frames together, as the original.
        media_items: validation clips that are logged: input, target, and a figure of the features.

    Source: Miipher-2, section 3.2.
    """

    inference_class = "zoo.miipher.FeatureExtractor"
    inference_modules = ("encoder",)
    usage_command = "zoo fit FINETUNE_RECIPE --init_from '[{run}, VOCODER_RUN]'"

    def __init__(
        self,
        encoder: Cleaner,
        optimizer: OptimizerCallable,
        loss_weights: dict[str, float],
        *,
        reduction: Reduction = "item",
        media_items: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        self.encoder = encoder
        if set(loss_weights) != set(TERMS):
            raise ValueError(f"loss_weights: expected {', '.join(TERMS)}; found {', '.join(loss_weights) or 'none'}")
        self.loss_weights = dict(loss_weights)
        self.reduction: Reduction = reduction
        self.media_items = media_items

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compare cleaned features of `input` with those of `clean` (B, T), at 16 kHz and of `lengths` (B,)."""
        lengths = batch["lengths"]
        with torch.no_grad():
            target = self.encoder.target(batch["clean"], lengths)
        terms = self._compare(self.encoder(batch["input"], lengths), target, lengths)
        self.log_terms("train", terms, batch_size=len(lengths))
        return terms["loss"]

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Compare whole clips, with the adapters and without."""
        lengths = batch["lengths"]
        target = self.encoder.target(batch["clean"], lengths)
        cleaned, plain = self.encoder(batch["input"], lengths), self.encoder.target(batch["input"], lengths)
        identity = {f"identity_{key}": value for key, value in self._compare(plain, target, lengths).items()}
        clip = (f"clip{batch_idx}", batch, target[0], plain[0], cleaned[0])
        self.log_media(stage, batch_idx, lambda: self._log_clip(*clip))
        return {**self._compare(cleaned, target, lengths), **identity}, len(lengths)

    def _log_clip(self, name: str, batch: Batch, clean: Tensor, degraded: Tensor, cleaned: Tensor) -> None:
        """Log the first clip of a batch; features (F, C) of its clean and degraded versions, and the cleaned ones."""
        length = batch["lengths"][0]
        for key, kind in (("input", "input"), ("clean", "target")):
            self.write_media("audio", f"{name}_{kind}", batch[key][0, :length], self.encoder.sample_rate)
        frames = self.encoder.frames(length)
        clean, degraded, cleaned = (each[:frames].float() for each in (clean, degraded, cleaned))
        mean, scale = clean.mean(0), clean.std(0, correction=0).clamp(min=1e-6)  # encoders have channels of any size
        features = {"clean": clean, "degraded": degraded, "cleaned": cleaned}
        matrices = {title: ((each - mean) / scale).T for title, each in features.items()}
        self.write_media("matrices", f"{name}_features", matrices)

    def _compare(self, prediction: Tensor, target: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        terms = feature_loss(prediction, target, self.encoder.frames(lengths), self.reduction)
        weighted = [self.loss_weights[key] * value for key, value in terms.items()]
        return {"loss": torch.stack(weighted).sum(), **terms}
