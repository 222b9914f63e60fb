"""What our HiFi-GAN is measured against: training steps as plain loops, and the original's loading of data.

Written anew from the paper and the description of the original's script, for the benchmarks only.
"""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import wavfile
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from zoo.audio.corpora.corpus import PEAK
from zoo.hifigan.task import HiFiGANTask, mel_l1
from zoo.training.adversarial import Output, adversarial_loss, discriminator_loss, feature_matching_loss

_SLANEY_HZ_PER_MEL = 200 / 3  # below 1 kHz, which is mel 15
_SLANEY_LOG_STEP = np.log(6.4) / 27  # above


class Step(ABC):
    """One training step without Lightning, on copies of a task's nets with optimizers of its own.

    Args:
        task: gives nets, front ends, optimizers and loss weights.
        batches: endless batches of the training loader.
    """

    def __init__(self, task: HiFiGANTask, batches: Iterator[dict[str, Tensor]]) -> None:
        if task.mel is None:
            raise ValueError("the baselines condition on mels: model.init_args.mel must not be null")
        self.mel, self.loss_mel, self.weights = task.mel, task.loss_mel, task.loss_weights
        self.generator = copy.deepcopy(task.generator)
        self.discriminators = {name: copy.deepcopy(getattr(task, name)) for name in task.discriminator_names}
        judges = [p for discriminator in self.discriminators.values() for p in discriminator.parameters()]
        self.discriminator_parameters = judges
        self.optimizer_g: Any = task.optimizer_g(list(self.generator.parameters()))
        self.optimizer_d: Any = task.optimizer_d(judges)
        self.batches = batches

    def __call__(self) -> None:
        """Take the next batch and train on it."""
        audio = next(self.batches)["audio"]
        self.train(audio[:, None], self.generator(self.mel(audio)))

    @abstractmethod
    def train(self, real: Tensor, fake: Tensor) -> None:
        """Step discriminators, then generator, on audio (B, 1, T) each."""


class PlainStep(Step):
    """Our order of passes: real and generated audio judged together, discriminators frozen in the generator's phase."""

    def train(self, real: Tensor, fake: Tensor) -> None:
        """Step discriminators, then generator."""
        self.optimizer_d.zero_grad()
        terms = []
        for name, discriminator in self.discriminators.items():
            outputs = discriminator(torch.cat([real, fake.detach()]))
            on_real, on_fake = _halves(outputs, len(real))
            terms.append(self.weights[f"d/{name}"] * discriminator_loss(on_real, on_fake))
        torch.stack(terms).sum().backward()
        self.optimizer_d.step()
        for parameter in self.discriminator_parameters:
            parameter.requires_grad_(False)
        self.optimizer_g.zero_grad()
        terms = [self.weights["g/mel"] * mel_l1(self.loss_mel, fake, real)]
        for name, discriminator in self.discriminators.items():
            with torch.no_grad():
                on_real = discriminator(real)
            on_fake = discriminator(fake)
            terms.append(self.weights[f"g/adv_{name}"] * adversarial_loss(on_fake))
            terms.append(self.weights[f"g/fm_{name}"] * feature_matching_loss(on_real, on_fake))
        torch.stack(terms).sum().backward()
        self.optimizer_g.step()
        for parameter in self.discriminator_parameters:
            parameter.requires_grad_(True)


class OriginalStep(Step):
    """The original's order: real and generated audio judged one after the other, discriminators never frozen.

    So the generator's phase also computes gradients of the discriminators, from generated and from real audio, which
    the next step throws away.
    """

    def train(self, real: Tensor, fake: Tensor) -> None:
        """Step discriminators, then generator."""
        self.optimizer_d.zero_grad()
        terms = []
        for name, discriminator in self.discriminators.items():
            on_real, on_fake = discriminator(real), discriminator(fake.detach())
            terms.append(self.weights[f"d/{name}"] * discriminator_loss(on_real, on_fake))
        torch.stack(terms).sum().backward()
        self.optimizer_d.step()
        self.optimizer_g.zero_grad()
        terms = [self.weights["g/mel"] * mel_l1(self.loss_mel, fake, real)]
        for name, discriminator in self.discriminators.items():
            on_real, on_fake = discriminator(real), discriminator(fake)
            terms.append(self.weights[f"g/adv_{name}"] * adversarial_loss(on_fake))
            terms.append(self.weights[f"g/fm_{name}"] * _attached_feature_matching(on_real, on_fake))
        torch.stack(terms).sum().backward()
        self.optimizer_g.step()


def _halves(outputs: Sequence[Output], size: int) -> tuple[list[Output], list[Output]]:
    return (
        [(scores[:size], [each[:size] for each in maps]) for scores, maps in outputs],
        [(scores[size:], [each[size:] for each in maps]) for scores, maps in outputs],
    )


def _attached_feature_matching(real: Sequence[Output], fake: Sequence[Output]) -> Tensor:
    """Feature matching whose gradient also flows into the real side."""
    pairs = [pair for (_, a), (_, b) in zip(real, fake, strict=True) for pair in zip(a, b, strict=True)]
    return torch.stack([(map_real - map_fake).abs().mean() for map_real, map_fake in pairs]).sum()


class OriginalClips(Dataset[tuple[Tensor, Tensor, str, Tensor]]):
    """The original's dataset: each item reads a whole file and makes both mels, each with a filterbank built anew.

    (Its cache of filterbanks is looked up under another key than it is filled under, so it never hits.)

    Args:
        paths: 16-bit wav files.
        segment_samples: length of a crop.
        sample_rate: Hz.
    """

    def __init__(self, paths: Sequence[Path], segment_samples: int = 8192, sample_rate: int = 22050) -> None:
        self.paths = list(paths)
        self.segment_samples = segment_samples
        self.sample_rate = sample_rate

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, str, Tensor]:
        path = self.paths[index]
        rate, samples = wavfile.read(path)
        if rate != self.sample_rate:
            raise ValueError(f"{path}: {rate} Hz, expected {self.sample_rate}")
        scaled = samples / 32768.0
        scaled = scaled / np.abs(scaled).max() * PEAK
        audio = torch.from_numpy(scaled).float()[None]
        start = random.randint(0, max(audio.shape[1] - self.segment_samples, 0))
        audio = audio[:, start : start + self.segment_samples]
        audio = functional.pad(audio, (0, self.segment_samples - audio.shape[1]))
        mels = [_original_mel(audio, self.sample_rate, f_max)[0] for f_max in (8000.0, None)]
        return mels[0], audio[0], path.name, mels[1]


def _original_mel(audio: Tensor, sample_rate: int, f_max: float | None, n_fft: int = 1024, hop: int = 256) -> Tensor:
    """Log-mel (1, 80, F) of one crop (1, T)."""
    basis = torch.from_numpy(slaney_filterbank(sample_rate, n_fft, 80, 0.0, f_max)).float()
    window = torch.hann_window(n_fft)
    edge = (n_fft - hop) // 2
    padded = functional.pad(audio[:, None], (edge, edge), mode="reflect")[:, 0]
    spectrum = torch.view_as_real(torch.stft(padded, n_fft, hop, n_fft, window, center=False, return_complex=True))
    magnitude = torch.sqrt(spectrum.pow(2).sum(-1) + 1e-9)
    return torch.log(torch.clamp(torch.matmul(basis, magnitude), min=1e-5))


def slaney_filterbank(sample_rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float | None) -> np.ndarray:
    """Triangular filters of equal area (n_mels, n_fft // 2 + 1), band by band.

    Source: Slaney, "Auditory Toolbox" (1998), mel scale and filters.
    """
    upper = sample_rate / 2 if f_max is None else f_max
    mels = np.linspace(_hz_to_mel(f_min), _hz_to_mel(upper), n_mels + 2)
    linear = mels * _SLANEY_HZ_PER_MEL
    edges = np.where(mels < 15, linear, 1000 * np.exp(_SLANEY_LOG_STEP * (mels - 15)))
    bins = np.linspace(0, sample_rate / 2, n_fft // 2 + 1)
    distance = edges[:, None] - bins
    widths = np.diff(edges)
    filters = np.zeros((n_mels, len(bins)))
    for band in range(n_mels):
        rising, falling = -distance[band] / widths[band], distance[band + 2] / widths[band + 1]
        filters[band] = np.maximum(0, np.minimum(rising, falling))
    return filters * (2 / (edges[2:] - edges[:-2]))[:, None]


def _hz_to_mel(frequency: float) -> float:
    if frequency < 1000:
        return frequency / _SLANEY_HZ_PER_MEL
    return float(15 + np.log(frequency / 1000) / _SLANEY_LOG_STEP)
