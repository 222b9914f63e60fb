"""Training of vocoders: conditioning, mel loss, validation metrics; `GANTask` has the adversarial step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.audio.analysis import pitch
from zoo.audio.analysis.mel import LogMel
from zoo.audio.analysis.spectral import MultiScaleMel, multi_resolution_stft
from zoo.audio.evaluation import metrics
from zoo.common.tensors import promote_to_float32
from zoo.hifigan.nets.base import WaveformGenerator, check_front_end
from zoo.hifigan.nets.encodec import EncodecFeatures
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.training.adversarial import Discriminator
from zoo.training.gan import GANTask
from zoo.training.task import OptimizerCallable

Batch = dict[str, Tensor]
SILENT_PEAK = 1e-3  # of full scale, -60 dBFS


class HiFiGANTask(GANTask):
    """GAN vocoder from a log-mel, or from features that the data brings (SSL, teacher-forced mels).

    Args:
        generator: features to waveform; its hop must be the mel's.
        discriminators: by name (`mpd`, `msd`, `mrd`), any of them together.
        optimizer_d: of all discriminators together, in their order.
        loss_mel: front end of the reconstruction loss (f_max null in the paper).
        mel: front end of the conditioning, part of inference; null when the data brings the features. With
            `EncodecFeatures` every training batch, or part of one with `step.accumulate`, has a random one of the
            bandwidths, and validation the largest.
        sample_rate: of the audio in Hz.
        media_items: validation clips logged as audio and mel figure; see `samples`.
        multi_mel: another reconstruction loss, of weight `g/multi_mel`.

    Source: Kong et al., "HiFi-GAN" (2020), section 2; Lee et al., "BigVGAN" (2023); Siuzdak, "Vocos" (2023).
    """

    inference_class = "zoo.hifigan.Vocoder"
    inference_modules = ("generator", "mel", "sample_rate")

    def __init__(
        self,
        generator: WaveformGenerator,
        discriminators: dict[str, Discriminator],
        optimizer_g: OptimizerCallable,
        optimizer_d: OptimizerCallable,
        loss_mel: LogMel,
        *,
        mel: LogMel | EncodecFeatures | None = None,
        sample_rate: int = 22050,
        media_items: int = 3,
        multi_mel: MultiScaleMel | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(generator, discriminators, optimizer_g, optimizer_d, **kwargs)
        self.multi_mel = multi_mel
        for name, part in {"mel": mel, "loss_mel": loss_mel, "multi_mel": multi_mel, **discriminators}.items():
            if (rate := getattr(part, "sample_rate", sample_rate)) != sample_rate:
                raise ValueError(f"model.{name}.sample_rate is {rate}, the audio's is {sample_rate}")
        if multi_mel is not None and "g/multi_mel" not in self.loss_weights:
            raise ValueError("model.multi_mel needs a weight g/multi_mel in model.loss_weights")
        if mel is not None:
            check_front_end(generator, mel)
        if isinstance(generator, MagnitudeVocos) and set(self.loss_weights) != {"g/magnitude"}:
            raise ValueError("MagnitudeVocos needs discriminators: {} and loss_weights: {g/magnitude: 1}, nothing else")
        self.mel = mel
        self.loss_mel = loss_mel
        self.sample_rate = sample_rate
        self.media_items = media_items

    def setup(self, stage: str) -> None:
        """Refuse data of another sample rate with a ValueError."""
        super().setup(stage)
        rate = getattr(getattr(self.trainer, "datamodule", None), "sample_rate", self.sample_rate)
        if rate != self.sample_rate:
            raise ValueError(f"data.sample_rate is {rate}, model.sample_rate {self.sample_rate}")

    def generate(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Synthesise a batch of `audio` (B, T), from its `features` (B, C, F) where it has them.

        Returns generated and real audio, each (B, 1, T) trimmed to the shorter; to train a `MagnitudeVocos`, which
        needs no phases there, compressed magnitudes of both.
        """
        audio = batch["audio"]
        condition: tuple[Tensor, ...] = ()
        if "features" in batch:
            features = batch["features"]
        elif isinstance(self.mel, EncodecFeatures):
            bandwidths = self.mel.bandwidths
            largest = bandwidths.index(max(bandwidths))
            bandwidth = int(torch.randint(len(bandwidths), ())) if self.training else largest
            features, condition = self.mel(audio, bandwidth), (torch.tensor(bandwidth, device=audio.device),)
        elif self.mel is not None:
            features = self.mel(audio)
        else:
            raise ValueError("model.init_args.mel is null and the data has no features: set data.init_args.features")
        if self.training and isinstance(self.generator, MagnitudeVocos):
            return self.generator(features, audio)
        fake = self.generator(features, *condition)
        samples = min(fake.shape[-1], audio.shape[-1])
        return fake[..., :samples], audio[:, None, :samples]

    def reconstruction(self, fake: Tensor, real: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Compute the distances of log-mels, of mels at several scales and of spectra that have a weight.

        Of a `MagnitudeVocos` the distance of what `generate` returns in training, compressed magnitudes.
        """
        if isinstance(self.generator, MagnitudeVocos):
            return {"g/magnitude": torch.nn.functional.l1_loss(fake, real)}
        terms = {}
        if self.loss_weights.get("g/mel"):
            terms["g/mel"] = mel_l1(self.loss_mel, fake, real)
        if self.multi_mel is not None and self.loss_weights.get("g/multi_mel"):
            terms["g/multi_mel"] = self.multi_mel(fake, real)
        if self.loss_weights.get("g/m_stft"):
            terms["g/m_stft"] = multi_resolution_stft(fake, real)
        return terms

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Compare whole clips."""
        fake, real = self.generate(batch)
        fake = promote_to_float32(fake)
        values: dict[str, Tensor | float] = {
            "mel_l1": mel_l1(self._display_mel, fake, real),
            "mel_l1_full": mel_l1(self.loss_mel, fake, real),
            **vocoder_metrics(fake[0, 0], real[0, 0], self.sample_rate),
        }
        self.log_media(stage, batch_idx, lambda: self._log_clip(f"clip{batch_idx}", batch, fake[0, 0], real[0, 0]))
        return values, fake.shape[0]

    @property
    def _display_mel(self) -> LogMel:
        return self.mel if isinstance(self.mel, LogMel) else self.loss_mel

    def _log_clip(self, name: str, batch: Batch, fake: Tensor, real: Tensor) -> None:
        mel = self._display_mel
        self.write_media("audio", f"{name}_generated", fake, self.sample_rate)
        self.write_media("audio", f"{name}_target", real, self.sample_rate)
        self.write_media("matrices", f"{name}_mel", {"target": mel(real[None])[0], "generated": mel(fake[None])[0]})


def mel_l1(mel: LogMel, fake: Tensor, real: Tensor) -> Tensor:
    """Mean absolute difference of log-mels of (B, 1, T) waveforms."""
    return torch.nn.functional.l1_loss(mel(fake.squeeze(1)), mel(real.squeeze(1)))


def vocoder_metrics(fake: Tensor, real: Tensor, sample_rate: int) -> dict[str, float]:
    """Compute vocoder metrics of one clip (T,) that need no trained model.

    Metrics that are undefined for the clip are left out; of a silent target all, since M-STFT divides by its norm.
    """
    if real.abs().max() < SILENT_PEAK:
        return {}
    tracks = [pitch.track_pitch(signal.cpu(), sample_rate) for signal in (fake, real)]
    values = {
        "m_stft": multi_resolution_stft(fake, real),
        "mcd": metrics.mcd(fake, real, sample_rate),
        "f0_rmse_cents": metrics.f0_rmse_cents(*tracks),
        "vuv_f1": metrics.vuv_f1(*tracks),
        "periodicity": metrics.periodicity_rmse(*tracks),
    }
    return {key: float(value) for key, value in values.items() if torch.isfinite(value)}
