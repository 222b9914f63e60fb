"""Feature files: mels or other sequences of frames, without pickled objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zoo.common.reading.torch_files import read_torch

FEATURE_SUFFIXES = (".npy", ".pt")


def open_features(path: Path) -> np.ndarray:
    """Map a `.npy` array or `.pt` tensor, (C, F) or (1, C, F), as features (C, F), F > 0, on disk."""
    if not path.is_file():
        raise FileNotFoundError(f"no feature file {path}")
    try:
        if path.suffix.lower() == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            array = read_torch(path, mapped=True).numpy()
    except Exception as error:  # numpy and torch raise many types on damaged files and pickled objects
        raise ValueError(f"{path}: not an array or tensor without pickled objects ({error})") from error
    array = array[0] if array.ndim == 3 and len(array) == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{path}: expected features (C, F), found {tuple(array.shape)}")
    return array
