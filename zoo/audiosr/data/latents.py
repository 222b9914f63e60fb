"""Latents of training items that are the same in every epoch, computed once and kept in shards on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.common.folders import begin_output
from zoo.common.work import Share, write_part
from zoo.training.data import Key

Encode = Callable[[Sequence[Key]], Mapping[str, Tensor]]
"""What is kept of items by their keys: tensors (B, ...) by name, float32."""

SHARD_BYTES = 2**26
_SETTINGS = "latents.json"


class LatentCache(Dataset[dict[str, Tensor]]):
    """A training set of what was kept, asked for (epoch, item) keys.

    Rows lie in `<folder>/<digest of what decides them>/`, so that other settings get a folder of their own. A killed
    `fill` goes on where it stopped; of several processes each fills a part.

    Args:
        folder: of all caches.
        decided_by: all that the rows depend on, as values that JSON can hold.
        shapes: of a row's tensors by name.
        items: of an epoch.
        variants: epochs that differ; after so many they come again.
        group: items that are encoded at once. Results of a batch of another size differ in the last digits.
    """

    def __init__(
        self,
        folder: Path,
        decided_by: Mapping[str, Any],
        shapes: Mapping[str, Sequence[int]],
        items: int,
        variants: int,
        group: int,
    ) -> None:
        self.decided_by = {
            **decided_by,
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "group": group,
        }
        digest = hashlib.sha256(json.dumps(self.decided_by, sort_keys=True).encode()).hexdigest()
        self.folder = folder / digest[:16]
        self.items, self.variants, self.group = items, variants, group
        self.row = np.dtype([(name, "<f4", tuple(shape)) for name, shape in shapes.items()])
        self.rows_per_shard = max(SHARD_BYTES // (self.row.itemsize * group), 1) * group
        self._open: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self.items

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open shards behind: pickled, a memory map becomes a copy of the file."""
        return {**self.__dict__, "_open": {}}

    def __getitem__(self, key: Key) -> dict[str, Tensor]:
        """The tensors of an item."""
        epoch, item = key
        number, place = divmod(epoch % self.variants * self.items + item, self.rows_per_shard)
        if number not in self._open:
            self._open[number] = self._map(self._path(number))
        row = self._open[number][place]
        return {name: torch.from_numpy(np.array(row[name])) for name in self.row.names or ()}

    def fill(self, encode: Encode, rank: int, world_size: int) -> None:
        """Compute this process' part of what is missing.

        Raises:
            ValueError: the folder holds something else.
            OSError: no room on the disk.
        """
        begin_output(self.folder, self.decided_by, _SETTINGS)
        total = self.items * self.variants
        starts = range(0, total, self.rows_per_shard)
        share = Share(starts, lambda start: self._path(start // self.rows_per_shard).is_file(), rank, world_size)
        for start in share.track(f"latents in {self.folder.name}"):
            rows = np.zeros(min(self.rows_per_shard, total - start), self.row)
            for begin in range(0, len(rows), self.group):
                numbers = range(start + begin, start + min(begin + self.group, len(rows)))
                keys = [divmod(number, self.items) for number in numbers]
                kept = encode([keys[index % len(keys)] for index in range(self.group)])
                for name, values in kept.items():
                    rows[name][begin : begin + len(keys)] = values[: len(keys)].float().cpu().numpy()
            write_part(self._path(start // self.rows_per_shard), partial(np.save, arr=rows))

    def _path(self, number: int) -> Path:
        return self.folder / f"latents-{number:05d}.npy"

    def _map(self, path: Path) -> np.ndarray:
        try:
            rows = np.load(path, mmap_mode="r")
        except (ValueError, OSError) as error:
            raise ValueError(f"{path} is no whole shard of latents ({error}): delete it and start again") from error
        if rows.dtype != self.row:
            raise ValueError(f"{path}: expected rows of {self.row}, found {rows.dtype}: delete it and start again")
        return rows
