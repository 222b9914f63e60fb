"""Training of Miipher-2's stages: a backbone where none is given, the feature cleaner, the vocoder on its features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.audio.analysis.figures import plot_spectrograms
from zoo.audio.analysis.griffin_lim import griffin_lim
from zoo.audio.analysis.mel import LogMel
from zoo.audio.io.resample import resample
from zoo.common.atomic_files import replace_atomically
from zoo.common.checks import check_at_least
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.hifigan.task import HiFiGANTask
from zoo.miipher.data.clips import Segments
from zoo.miipher.data.datamodule import VocoderSegments
from zoo.miipher.losses import TERMS, Reduction, feature_loss, weighted
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner, check_fit
from zoo.miipher.nets.families import valid_mask
from zoo.miipher.options import DEFAULT_RESTORE, RestoreOptions
from zoo.runs.run_folder import run_folder
from zoo.training.adversarial import Discriminator
from zoo.training.strategies.sharding import gather_weights, is_sharded
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
        if self.should_log_media(stage, batch_idx):
            self.log_media(lambda: self._log_media(f"clip{batch_idx}", batch, target[0], plain[0], cleaned[0]))
        return {**self._compare(cleaned, target, lengths), **identity}, len(lengths)

    def _log_media(self, name: str, batch: Batch, clean: Tensor, degraded: Tensor, cleaned: Tensor) -> None:
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
        return {"loss": weighted(terms, self.loss_weights), **terms}


class VocoderTask(HiFiGANTask):
    """Stages 2 and 3: a vocoder on frozen features of clean speech (pre-training) or of restored speech (fine-tuning).

    With a `Backbone` as encoder the input is clean speech; with a `Cleaner` it is degraded speech, except in the items
    that the data marks as clean, whose features are the plain backbone's.

    Args:
        encoder: frozen; gives 50 (or 25) frames a second.
        generator: features to audio; its hop is sample_rate / frame rate, 441 for 22.05 kHz.
        loss_mel: front end of the reconstruction loss.
        sample_rate: of the audio in Hz.
        media_items: validation clips that are logged: input, result and target, and figures of them.
        restore: how files are restored.
        least_squares: passes over the training items from which the shortcut of a `MagnitudeVocos` is solved for
            before the first batch (not with sharded weights). 0: it begins as the generator was built or loaded.
        kwargs: of HiFiGANTask.

    Source: Miipher-2, section 3.3, with HiFi-GAN in place of WaveFit as in its reproduction, or Vocos.
    """

    inference_class = "zoo.miipher.Restorer"
    inference_modules = ("encoder", "generator", "sample_rate")

    def __init__(
        self,
        encoder: Backbone | Cleaner,
        generator: WaveformGenerator,
        discriminators: dict[str, Discriminator],
        optimizer_g: OptimizerCallable,
        optimizer_d: OptimizerCallable,
        loss_mel: LogMel,
        *,
        sample_rate: int = 22050,
        media_items: int = 3,
        restore: RestoreOptions = DEFAULT_RESTORE,
        least_squares: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            generator, discriminators, optimizer_g, optimizer_d, loss_mel,
            sample_rate=sample_rate, media_items=media_items, **kwargs,
        )  # fmt: skip
        check_fit(encoder, generator, sample_rate)
        self.encoder = encoder.requires_grad_(False).eval()
        check_at_least(0, least_squares=least_squares)
        if least_squares and not isinstance(generator, MagnitudeVocos):
            raise ValueError(f"least_squares is of MagnitudeVocos, the generator is a {type(generator).__name__}")
        self.least_squares = least_squares
        self.restore = restore
        self._input: Tensor | None = None  # of the clip that is being evaluated

    def train(self, mode: bool = True) -> VocoderTask:
        """Train the GAN; the encoder stays in evaluation mode."""
        super().train(mode)
        self.encoder.eval()
        return self

    def setup(self, stage: str) -> None:
        """Refuse `least_squares` with sharded weights, of which a process holds a part, with a ValueError."""
        super().setup(stage)
        if stage == "fit" and self.least_squares and is_sharded(self.trainer):
            raise ValueError(
                f"least_squares is {self.least_squares} and {type(self.trainer.strategy).__name__} shards the weights, "
                "and it sets full ones: use DDP, or begin with --init_from a run that has solved for them"
            )

    def on_train_start(self) -> None:
        """Solve for the generator's shortcut where a run begins; every process does so from the same items."""
        super().on_train_start()
        if self.least_squares and not self.global_step:
            generator = cast(MagnitudeVocos, self.generator)
            generator.fit_shortcut((self.features(batch), batch["audio"]) for batch in self._first_batches())

    def _first_batches(self) -> Iterator[Batch]:
        """Batches of the first epochs' items, in the corpus' order; the loader is left alone."""
        data = cast(VocoderSegments, self.trainer.datamodule)  # type: ignore[attr-defined]
        for epoch in range(self.least_squares):
            segments = cast(Segments, data.train_set)
            keys = [(epoch, number) for number in range(len(segments))]
            for first in range(0, len(keys), data.batch_size):
                items = [segments[key] for key in keys[first : first + data.batch_size]]
                yield self.trainer.strategy.batch_to_device(data.collate(items), self.device)

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        """Compute frozen features (B, C, F) of a batch: `input` (B, T) at 16 kHz, its `lengths` (B,) if known.

        Further keys, lists of B plain values: `frames` after `first` (B,), all others being context; `is_clean`, the
        items without degradation.
        """
        lengths = batch.get("lengths")
        clean = batch.get("is_clean", [])
        if not isinstance(self.encoder, Cleaner) or not any(clean):
            features = self.encoder(batch["input"], lengths)
        elif all(clean):
            features = self.encoder.target(batch["input"], lengths)
        else:
            plain, cleaned = self.encoder.target(batch["input"], lengths), self.encoder(batch["input"], lengths)
            features = torch.stack([plain[row] if skip else cleaned[row] for row, skip in enumerate(clean)])
        if "first" in batch:
            frames = batch["first"][:, None] + torch.arange(batch["frames"][0], device=features.device)
            features = features.gather(1, frames[..., None].expand(-1, -1, features.shape[2]))
        return features.transpose(1, 2)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step of the GAN; features are computed once, however many chunks the batch is cut into."""
        super().training_step(self._with_features(batch), batch_idx)

    def generate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Synthesise a batch; see `HiFiGANTask.generate`."""
        return super().generate(self._with_features(batch))

    def _with_features(self, batch: Batch) -> Batch:
        return batch if "features" in batch else {"audio": batch["audio"], "features": self.features(batch)}

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Compare whole clips."""
        self._input = batch["input"][0] if "input" in batch else None
        return super().evaluate(batch, batch_idx, stage)

    def _log_clip(self, name: str, fake: Tensor, real: Tensor) -> None:
        """Show the input as well, and the spectra of all three."""
        super()._log_clip(name, fake, real)
        if self._input is not None:
            self.write_media("audio", f"{name}_input", self._input, self.encoder.sample_rate)
            resampled_input = resample(self._input, self.encoder.sample_rate, self.sample_rate)
            waveforms = {"input": resampled_input, "result": fake, "target": real}
            self.write_media("figure", f"{name}_spectra", plot_spectrograms(waveforms, self.sample_rate))


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
        """Show clips with gaps and the log-mels predicted from them, which the last validation turns into audio."""
        clip, rate = 0, self.encoder.sample_rate
        for batch in batches:
            clean, lengths = batch["clean"], batch["lengths"]
            clips = self._mask_gaps(clean)
            mels = {"target": self.mel(clean), "input": self.mel(clips)}
            mels["prediction"] = self._predict(clips, lengths).transpose(1, 2)
            for row, length in enumerate(lengths.tolist()):
                if clip == self.sample_settings.items:
                    return
                clip_mels = {title: mel[row, :, : length // self.mel.hop_length] for title, mel in mels.items()}
                self.write_media("audio", f"clip{clip}_input", clips[row, :length], rate)
                self.write_media("audio", f"clip{clip}_target", clean[row, :length], rate)
                self.write_media("matrices", f"clip{clip}_mel", clip_mels)
                if last:
                    audio = griffin_lim(clip_mels["prediction"][None], self.mel)
                    self.write_media("audio", f"clip{clip}_prediction", audio, rate)
                clip += 1

    def on_validation_end(self) -> None:
        """Write the backbone in transformers' layout."""
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
