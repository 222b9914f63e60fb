"""Shards of pairs on disk: noise as the seed that it was drawn from, and the sample that a teacher made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.flow.process.sampling import noise

META_NAME = "meta.json"
NEEDED_KEYS = ("count", "shard_size", "sample_shape", "num_classes", "classes")
CHECKED_VALUES = 4
"""First values of each noise that a shard keeps, to notice a torch that draws another noise from the seed."""
CHECK_TOLERANCE = 1e-4
OPEN_SHARDS = 64  # each holds a file descriptor


def row_type(shape: Sequence[int]) -> np.dtype:
    """How a shard stores a pair: the noise as its seed, the sample as float32."""
    start = min(CHECKED_VALUES, math.prod(shape))
    return np.dtype(
        [("seed", "<i8"), ("label", "<i8"), ("x0_start", "<f4", (start,)), ("x1", "<f4", tuple(shape))]  # 0: no class
    )


def shard_paths(folder: Path, count: int, shard_size: int) -> list[Path]:
    """The shards of a folder with `count` pairs, in their order, whether they are there or not."""
    return [folder / f"pairs-{number:05d}.npy" for number in range(-(-count // shard_size))]


class ShardReader:
    """Reads pairs from memory-mapped shards; the noise is drawn anew from the seed that the teacher's was drawn from.

    Args:
        shard_size: pairs per shard; the last one may hold fewer.
    """

    def __init__(self, paths: Sequence[Path], shape: Sequence[int], shard_size: int) -> None:
        self.paths = paths
        self.shape = tuple(shape)
        self.shard_size = shard_size
        self._open: dict[int, np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open shards behind: pickled, a memory map becomes a copy of the file."""
        return {**self.__dict__, "_open": {}}

    def __call__(self, index: int) -> tuple[Tensor, Tensor, int]:
        """Noise, sample and label of a pair, whose seed must still give the noise that was used."""
        number, row = divmod(index, self.shard_size)
        pair = self._shard(number)[row]
        x0 = noise([int(pair["seed"])], self.shape)[0]
        start = pair["x0_start"]
        if np.abs(x0.flatten()[: len(start)].numpy() - start).max() > CHECK_TOLERANCE:
            raise ValueError(
                f"{self.paths[number]}, pair {row}: torch {torch.__version__} draws another noise from seed "
                f"{pair['seed']} than was used for the sample; make the pairs anew with this torch"
            )
        return x0, torch.tensor(pair["x1"]), int(pair["label"])

    def _shard(self, number: int) -> np.ndarray:
        if number not in self._open:
            if len(self._open) == OPEN_SHARDS:
                del self._open[next(iter(self._open))]
            self._open[number] = open_shard(self.paths[number], self.shape)
        return self._open[number]


def open_shard(path: Path, shape: Sequence[int]) -> np.ndarray:
    """Map a shard into memory: pairs (N,) of `row_type(shape)`, read-only; a torn one is refused."""
    try:
        rows = np.load(path, mmap_mode="r")
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is no whole shard ({error}): delete it and run the same make-pairs again") from error
    if rows.dtype != row_type(shape):
        raise ValueError(f"{path}: expected samples of shape {tuple(shape)}, found {rows.dtype}; make the pairs anew")
    return rows


def read_meta(folder: Path) -> dict[str, Any]:
    """Read what a folder of pairs says of itself.

    Returns:
        `count`, `shard_size`, `sample_shape`, `num_classes`, `classes` (None when not known) and the settings of the
        teacher.

    Raises:
        FileNotFoundError: when it has no meta.json.
        ValueError: when that is no description of pairs.
    """
    path = folder / META_NAME
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {META_NAME}: it is no folder of pairs, or make-pairs did not begin")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no JSON ({error}); make the pairs anew") from error
    if not isinstance(meta, dict) or not set(NEEDED_KEYS) <= meta.keys():
        raise ValueError(f"{path}: expected the keys {', '.join(NEEDED_KEYS)}; make the pairs anew")
    return meta
