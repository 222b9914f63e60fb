"""The noise and the rooms that degrade clean speech in training and in validation: from folders, or made in code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zoo.audio.augment.rooms import SyntheticNoise, read_rirs, synthetic_rirs
from zoo.audio.corpora.cache import CorpusCache
from zoo.audio.corpora.corpus import ClippedCorpus, Corpus, cache_folder

SYNTHETIC_NOISES = 6
SYNTHETIC_RIRS = 32
TRAINING_SHARE = 0.8  # of every noise file, from its beginning; validation takes the rest


def open_noises(folder: Path | None, cache: Path, sample_rate: int, training: bool) -> Corpus:
    """Noise that the other set does not hear.

    Args:
        folder: of noise whose cache was built; None makes noise in code.
    """
    if folder is None:
        return SyntheticNoise(SYNTHETIC_NOISES, sample_rate, seed=int(not training))
    whole = CorpusCache(cache_folder(cache, folder, sample_rate))
    return ClippedCorpus(whole, 0.0, TRAINING_SHARE) if training else ClippedCorpus(whole, TRAINING_SHARE, 1.0)


def open_rirs(folder: Path | None, sample_rate: int) -> list[np.ndarray]:
    """Room impulse responses (T,) float32 at a rate in Hz; made in code when there is no folder."""
    return synthetic_rirs(SYNTHETIC_RIRS, sample_rate, 0) if folder is None else read_rirs(folder, sample_rate)
