"""Clean speech and its degraded version, item by item: whole clips for the cleaner, segments for the vocoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.audio.augment.degrade import Degrader
from zoo.audio.corpora.corpus import PEAK, Corpus, clip_gain, read_normalized
from zoo.miipher.nets.families import SAMPLE_RATE
from zoo.training.resume import Key, item_seed

Item = dict[str, Any]
Versions = tuple[Corpus, Sequence[Sequence[int]] | np.ndarray]  # degraded clips, the numbers of each clean clip's


@dataclass(eq=False)
class Degradation:
    """Makes the degraded version of a clip on the spot, or reads it from a corpus of degraded versions."""

    degrader: Degrader | None  # for versions made on the spot
    noises: Corpus | None = None
    rirs: Sequence[np.ndarray] = ()  # room impulse responses (T,) at 16 kHz
    versions: Versions | None = None

    def degraded_input(self, clean: np.ndarray, index: int, start: int, rng: np.random.Generator) -> np.ndarray:
        """Return the degraded version (T,) of a piece of clip `index` that starts at sample `start`.

        A version that is read has a peak of 0.95, as what a restorer gives the encoder.
        """
        if self.versions is not None:
            corpus, numbers = self.versions
            version = read_normalized(corpus, int(rng.choice(numbers[index])), True, start, len(clean)).numpy()
            return np.pad(version, (0, len(clean) - len(version)))
        if self.degrader is None:
            return clean
        return self.degrader.degrade(clean, SAMPLE_RATE, rng, self.noises, self.rirs).audio


@dataclass(eq=False)
class Clips(Dataset[Item]):
    """Clips (or crops of long ones) at 16 kHz, clean and degraded, keyed by (epoch, item) or, in evaluation, item."""

    corpus: Corpus  # clean, at 16 kHz
    indices: Sequence[int] | np.ndarray
    degradation: Degradation
    max_samples: int
    seed: int

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key | int) -> Item:
        epoch, item = key if isinstance(key, tuple) else (-1, key)
        index = int(self.indices[item])
        rng = np.random.default_rng(item_seed(self.seed, epoch, item))
        room = max(int(self.corpus.lengths[index]) - self.max_samples, 0)
        start = int(rng.integers(room + 1)) if epoch >= 0 else 0
        clean = read_normalized(self.corpus, index, True, start, self.max_samples)
        degraded = self.degradation.degraded_input(clean.numpy(), index, start, rng)
        return {"clean": clean, "input": torch.from_numpy(degraded), "lengths": torch.tensor(len(clean))}


@dataclass(eq=False)
class Segments(Dataset[Item]):
    """Segments of audio with the 16 kHz input around them, keyed by (epoch, item)."""

    corpora: tuple[Corpus, Corpus]  # the clean corpus at 16 kHz and at the vocoder's rate
    indices: Sequence[int] | np.ndarray
    degradation: Degradation
    frames: int  # of a segment
    context: int  # frames of input on either side, so that the encoder sees what precedes and follows
    hops: tuple[int, int]  # samples per frame at the two rates
    clean_share: float  # share of the items whose input stays clean
    seed: int

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key) -> Item:
        epoch, item = key
        index = int(self.indices[item])
        rng = np.random.default_rng(item_seed(self.seed, epoch, item))
        speech, (hop, audio_hop) = self.corpora[0], self.hops
        window = self.frames + 2 * self.context
        available = int(speech.lengths[index]) // hop
        start = int(rng.integers(max(available - self.frames, 0) + 1))
        first = int(np.clip(start - self.context, 0, max(available - window, 0)))
        clean = read_normalized(speech, index, True, first * hop, window * hop)
        is_clean = bool(rng.random() < self.clean_share)
        degraded = clean
        if not is_clean:
            degraded = torch.from_numpy(self.degradation.degraded_input(clean.numpy(), index, first * hop, rng))
        target = _read_target(self.corpora, index, start * audio_hop, self.frames * audio_hop)
        return {
            "input": _pad(degraded, window * hop),
            "lengths": torch.tensor(len(degraded)),
            "audio": _pad(target, self.frames * audio_hop),
            "first": torch.tensor(start - first),
            "frames": self.frames,
            "is_clean": is_clean,
        }


@dataclass(eq=False)
class Pairs(Dataset[Item]):
    """Whole clips for the vocoder's evaluation: the input at 16 kHz and the audio at the vocoder's rate."""

    clips: Clips
    audio: Corpus
    hops: tuple[int, int]

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, item: int) -> Item:
        clip = self.clips[item]
        frames = len(clip["input"]) // self.hops[0]
        index = int(self.clips.indices[item])
        audio = _read_target((self.clips.corpus, self.audio), index, 0, frames * self.hops[1])
        return {"input": clip["input"][: frames * self.hops[0]], "audio": audio}


def _read_target(corpora: tuple[Corpus, Corpus], index: int, start: int, samples: int) -> Tensor:
    """Read audio at the vocoder's rate with the gain that the clip has at 16 kHz, but no peak above 1."""
    speech, audio = corpora
    gain = min(clip_gain(speech, index, True), clip_gain(audio, index, True) / PEAK)
    return torch.from_numpy(np.array(audio.read(index, start, samples))) * gain


def _pad(audio: Tensor, samples: int) -> Tensor:
    return torch.nn.functional.pad(audio, (0, samples - len(audio)))
