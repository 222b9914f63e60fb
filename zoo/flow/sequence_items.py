"""Pairs of degraded and clean sequences, item by item: log-mels of speech degraded on the spot, or feature files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.audio.corpus import Corpus, scaled
from zoo.audio.degrade import Degrader
from zoo.audio.features import open_features
from zoo.audio.mel import LogMel
from zoo.training.resume import Key, item_seed

EVALUATION_EPOCH = -1  # epoch of the keys whose noise is the same in every validation
SEED_LIMIT = 2**62


class Sequences(Dataset[dict[str, Any]]):
    """Base of the datasets, keyed by (epoch, item) in training and by the item in evaluation.

    Args:
        seed: of everything random.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} defines no __len__()")

    def pair(self, item: int, rng: np.random.Generator, training: bool) -> tuple[Tensor, Tensor]:
        """A clean sequence (C, T) and its degraded twin (C', T), float32; evaluation crops from the beginning."""
        raise NotImplementedError(f"{type(self).__name__} defines no pair()")

    def __getitem__(self, key: Key | int) -> dict[str, Any]:
        """One item.

        Returns:
            Clean `x1` (C, T) and degraded `condition` (C', T), float32 in their own units; `x0`, noise of the shape of
            `x1`; `seed`, of what the task draws for this item.
        """
        epoch, item = key if isinstance(key, tuple) else (EVALUATION_EPOCH, key)
        rng = np.random.default_rng(item_seed(self.seed, epoch, item))
        x1, condition = self.pair(item, rng, epoch != EVALUATION_EPOCH)
        noise = rng.standard_normal(tuple(x1.shape), dtype=np.float32)
        seed = int(rng.integers(SEED_LIMIT))
        return {"x1": x1, "x0": torch.from_numpy(noise), "condition": condition, "seed": seed}


class DegradedMels(Sequences):
    """Log-mels of clean clips (or crops of long ones) and of the same after degradation.

    Args:
        corpus: clean, at the mel's rate.
        indices: which of its clips.
        mel: waveform to log-mel.
        max_samples: longest crop.
        degrader: how to degrade.
        noises: at the mel's rate.
        rirs: room impulse responses (N,) at the mel's rate.
        seed: of crops, degradation and noise.
    """

    def __init__(
        self,
        corpus: Corpus,
        indices: np.ndarray,
        mel: LogMel,
        max_samples: int,
        degrader: Degrader,
        noises: Corpus,
        rirs: Sequence[np.ndarray],
        seed: int,
    ) -> None:
        super().__init__(seed)
        self.corpus = corpus
        self.indices = indices
        self.mel = mel
        self.max_samples = max_samples
        self.degrader = degrader
        self.noises = noises
        self.rirs = rirs

    def __len__(self) -> int:
        return len(self.indices)

    def pair(self, item: int, rng: np.random.Generator, training: bool) -> tuple[Tensor, Tensor]:
        """The mels of a crop whose clip has its peak at 0.95, and of the crop degraded."""
        index = int(self.indices[item])
        room = max(int(self.corpus.lengths[index]) - self.max_samples, 0)
        start = int(rng.integers(room + 1)) if training else 0
        clean = scaled(self.corpus, index, True, start, self.max_samples).numpy()
        degraded = self.degrader.degrade(clean, self.mel.sample_rate, rng, self.noises, self.rirs).audio
        with torch.no_grad():
            mels = self.mel(torch.from_numpy(np.stack([clean, degraded])))
        return mels[0], mels[1]


class FeaturePairs(Sequences):
    """Crops of feature files.

    Args:
        paths: the clean and the degraded file of each item.
        max_frames: longest crop.
        seed: of crops and noise.
    """

    def __init__(self, paths: Sequence[tuple[Path, Path]], max_frames: int, seed: int) -> None:
        super().__init__(seed)
        self.paths = paths
        self.max_frames = max_frames

    def __len__(self) -> int:
        return len(self.paths)

    def pair(self, item: int, rng: np.random.Generator, training: bool) -> tuple[Tensor, Tensor]:
        """The same frames of both files."""
        clean, degraded = (open_features(path) for path in self.paths[item])
        frames = min(clean.shape[1], degraded.shape[1])
        start = int(rng.integers(max(frames - self.max_frames, 0) + 1)) if training else 0
        part = slice(start, min(start + self.max_frames, frames))
        x1, condition = (torch.from_numpy(np.array(each[:, part], np.float32)) for each in (clean, degraded))
        return x1, condition
