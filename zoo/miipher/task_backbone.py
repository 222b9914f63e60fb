"""Training of a small backbone where no published one can be had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoo.audio.analysis.mel import LogMel
from zoo.common.atomic_files import replace_atomically
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.families import valid_mask
from zoo.runs.run_folder import run_folder
from zoo.training.strategies.sharding import gather_weights
from zoo.training.task import OptimizerCallable, SingleOptimizerTask

Batch = dict[str, Any]


class BackboneTask(SingleOptimizerTask):
    """Trains a small backbone where no published one can be had: log-mels are predicted from audio with gaps.

    Every frame predicts its own log-mel; the gaps make it use its neighbours. After each validation the backbone is
    written to `<run>/backbone` in transformers' layout, ready as a `source`.

    Args:
        encoder: random weights; all of it trains.
        mel: front end of the prediction's target, at 16 kHz; its hop must divide the encoder's.
        optimizer: of encoder and head.
        gap_share: share of a clip's 100 ms pieces that are silenced.
    """

    inference_class = "zoo.miipher.FeatureExtractor"
    inference_modules = ("encoder",)

    @property
    def find_unused_parameters(self) -> bool:
        """Whether some get no gradient: HuBERT's mask vector, of its pretraining, gets none here."""
        return True

    def __init__(
        self,
        encoder: Backbone,
        mel: LogMel,
        optimizer: OptimizerCallable,
        *,
        gap_share: float = 0.2,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        if mel.sample_rate != encoder.sample_rate or encoder.hop_samples % mel.hop_length:
            raise ValueError(
                f"mel: expected {encoder.sample_rate} Hz and a hop that divides {encoder.hop_samples}, found "
                f"{mel.sample_rate} Hz and {mel.hop_length}"
            )
        encoder.unfreeze()
        self.encoder = encoder
        self.mel = mel
        self.steps = encoder.hop_samples // mel.hop_length
        self.head = nn.Linear(encoder.dim, mel.n_mels * self.steps)
        self.gap_share = gap_share

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Predict the log-mel of `clean` (B, T) from the same with gaps."""
        clean, lengths = batch["clean"], batch["lengths"]
        loss = self._loss(self._predict(self._mask_gaps(clean), lengths), clean, lengths)
        self.log_terms("train", {"loss": loss}, batch_size=len(clean))
        return loss

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Predict the log-mel of whole clips."""
        clean, lengths = batch["clean"], batch["lengths"]
        return {"loss": self._loss(self._predict(clean, lengths), clean, lengths)}, len(clean)

    def log_samples(self, batches: list[Batch], last: bool) -> None:
        """Show clips with gaps and the log-mels predicted from them."""
        for number, batch in enumerate(batches[: self.sample_settings.items]):  # one clip each
            clean, length = batch["clean"][:1], batch["lengths"][:1]
            clip, frames = self._mask_gaps(clean), int(length) // self.mel.hop_length
            mels = {"target": self.mel(clean), "input": self.mel(clip)}
            mels["prediction"] = self._predict(clip, length).transpose(1, 2)
            for kind, audio in (("input", clip), ("target", clean)):
                self.write_media("audio", f"clip{number}_{kind}", audio[0], self.encoder.sample_rate)
            matrices = {title: mel[0, :, :frames] for title, mel in mels.items()}
            self.write_media("matrices", f"clip{number}_mel", matrices)

    def on_validation_epoch_end(self) -> None:
        """Write the backbone in transformers' layout, as it was validated: averaged where the run has EMA."""
        super().on_validation_epoch_end()
        if self.trainer.state.fn != "fit" or self.trainer.sanity_checking:
            return
        with gather_weights(self.trainer):
            if self.trainer.is_global_zero:
                with replace_atomically(run_folder(self.trainer) / "backbone") as folder:
                    self.encoder.save_source(folder)

    def _mask_gaps(self, clean: Tensor) -> Tensor:
        piece = self.encoder.sample_rate // 10
        mask = torch.rand(len(clean), -(-clean.shape[1] // piece), device=clean.device) >= self.gap_share
        return clean * mask.repeat_interleave(piece, dim=1)[:, : clean.shape[1]]

    def _predict(self, audio: Tensor, lengths: Tensor) -> Tensor:
        """Log-mels (B, F, n_mels) predicted from audio (B, T)."""
        return self.head(self.encoder(audio, lengths)).float().unflatten(-1, (self.steps, -1)).flatten(1, 2)

    def _loss(self, predicted: Tensor, clean: Tensor, lengths: Tensor) -> Tensor:
        target = self.mel(clean).transpose(1, 2)
        size = min(predicted.shape[1], target.shape[1])
        mask = valid_mask(lengths // self.mel.hop_length, size)[..., None]
        return ((predicted[:, :size] - target[:, :size]).abs() * mask).sum() / (mask.sum() * self.mel.n_mels)
