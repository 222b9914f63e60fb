"""Latents of training items that are the same in every epoch, computed once and kept in shards on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.common.journal import begin_output
from zoo.training.array_files import MappedArrays, write_array_files
from zoo.training.resume import Key

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
        self._shards: MappedArrays | None = None

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, key: Key) -> dict[str, Tensor]:
        """The tensors of an item."""
        epoch, item = key
        if self._shards is None:
            self._shards = MappedArrays(self._stem, self.items * self.variants, self.rows_per_shard, self.row)
        row = self._shards.row(epoch % self.variants * self.items + item)
        return {name: torch.from_numpy(np.array(row[name])) for name in self.row.names or ()}

    def fill(self, encode: Encode, rank: int, world_size: int) -> None:
        """Compute this process' part of what is missing.

        Raises:
            ValueError: the folder holds something else.
            OSError: no room on the disk.
        """
        begin_output(self.folder, self.decided_by, _SETTINGS)

        def rows(part: range) -> np.ndarray:
            found = np.zeros(len(part), self.row)
            for begin in range(0, len(part), self.group):
                keys = [divmod(number, self.items) for number in part[begin : begin + self.group]]
                kept = encode([keys[index % len(keys)] for index in range(self.group)])
                for name, values in kept.items():
                    found[name][begin : begin + len(keys)] = values[: len(keys)].float().cpu().numpy()
            return found

        write_array_files(self._stem, self.items * self.variants, self.rows_per_shard, rows, rank, world_size)

    @property
    def _stem(self) -> Path:
        return self.folder / "latents"
