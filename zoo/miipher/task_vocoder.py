"""Stages 2 and 3 of Miipher-2: training of the vocoder on features of clean and of restored speech."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from zoo.audio.analysis.figures import plot_spectrograms
from zoo.audio.analysis.mel import LogMel
from zoo.audio.io.resample import resample
from zoo.common.checks import check_at_least
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.hifigan.task import HiFiGANTask
from zoo.miipher.data.clips import Segments
from zoo.miipher.data.datamodule import VocoderSegments
from zoo.miipher.nets.backbone import Backbone
from zoo.miipher.nets.cleaner import Cleaner
from zoo.miipher.options import DEFAULT_RESTORE, RestoreOptions, check_fit
from zoo.training.adversarial import Discriminator
from zoo.training.strategies.sharding import is_sharded
from zoo.training.task import OptimizerCallable

Batch = dict[str, Any]


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
        least_squares: passes over the training items from which a `MagnitudeVocos` takes the scale of its input and
            the solution of its shortcut before the first batch (not with sharded weights). 0: as built or loaded.
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

    def train(self, mode: bool = True) -> VocoderTask:
        """Train the GAN; the encoder stays in evaluation mode."""
        super().train(mode)
        self.encoder.eval()
        return self

    def setup(self, stage: str) -> None:
        """Refuse other frames in the data, and `least_squares` with sharded weights, of which a process holds a part.

        Raises:
            ValueError: in these cases.
        """
        super().setup(stage)
        hops = self.encoder.hop_samples, self.generator.hop_length
        data_hops = getattr(getattr(self.trainer, "datamodule", None), "hops", hops)
        if data_hops != hops:
            raise ValueError(
                f"data.frame_rate and data.sample_rate make frames of {data_hops} samples (input, audio), the encoder "
                f"and the generator of {hops}"
            )
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
            batches = map(self._with_features, self._first_batches())
            generator.fit_shortcut((batch["features"], batch["audio"]) for batch in batches)

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

    def _log_clip(self, name: str, batch: Batch, fake: Tensor, real: Tensor) -> None:
        """Log the input as well, and the spectra of all three."""
        super()._log_clip(name, batch, fake, real)
        if "input" in batch:
            audio, rate = batch["input"][0], self.encoder.sample_rate
            self.write_media("audio", f"{name}_input", audio, rate)
            waveforms = {"input": resample(audio, rate, self.sample_rate), "result": fake, "target": real}
            self.write_media("figure", f"{name}_spectra", plot_spectrograms(waveforms, self.sample_rate))
