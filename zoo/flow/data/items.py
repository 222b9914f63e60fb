"""Items of training and evaluation: data of any shape with labels and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.flow.data.item_conditions import ItemConditions
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.coupling import PooledTransport, Reader
from zoo.flow.process.sampling import noise
from zoo.training.resume import Key, item_seed

EVALUATION_EPOCH = -1  # of the keys whose noise is the same in every evaluation
POOLS = -3  # index of an epoch's seed of the pools; the order of an epoch takes -1 and -2
DRAWS, FLIP = 0, 1  # what is drawn for an item besides its noise


@dataclass(eq=False)
class StoredValues:
    """Serves values from memory."""

    values: Tensor

    def __call__(self, indices: Sequence[int]) -> Tensor:
        """Values (n, ...) of the given indices."""
        return self.values[list(indices)]


class Items(Dataset[dict[str, Any]]):
    """Data with labels and noise, keyed by (epoch, item) in training and by the item in evaluation.

    Everything random about an item comes from seed, epoch and item, so batch size, workers and ranks do not matter.

    Args:
        read: values (n, ...) float32 of indices; images are in [-1, 1].
        labels: of all that can be read, 1 to K; 0 where there are no classes.
        indices: which of them belong to this set; all by default.
        flips: mirror every other item along its last axis.
        pooled: which item's noise an item gets; its own by default.
        conditions: of the net besides the class; None for none.
    """

    def __init__(
        self,
        read: Reader,
        labels: Sequence[int],
        indices: Sequence[int] | None = None,
        seed: int = 0,
        flips: bool = False,
        pooled: PooledTransport | None = None,
        conditions: ItemConditions | None = None,
    ) -> None:
        self.read = read
        self.indices = list(range(len(labels))) if indices is None else list(indices)
        self.labels = torch.tensor([labels[index] for index in self.indices], dtype=torch.int64)
        self.seed = seed
        self.flips = flips
        self.pooled = pooled
        self.conditions = conditions
        self._paired: tuple[int | None, list[int]] = (None, [])  # the last epoch and its pairing

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key | int) -> dict[str, Any]:
        """One item: `x1` data, float32; `x0` noise like it; `label`; `seed` of the task's random numbers for it.

        Where there are conditions, `conditions` by name.
        """
        batch = self.__getitems__([key])
        item = {
            "x1": batch["x1"][0],
            "x0": batch["x0"][0],
            "label": int(batch["label"][0]),
            "seed": batch["seeds"][0],
        }
        if "conditions" in batch:
            item["conditions"] = {name: value[0] for name, value in batch["conditions"].items()}
        return item

    def __getitems__(self, keys: Sequence[Key | int]) -> dict[str, Any]:
        """A whole batch, which is what a DataLoader asks for where this method exists: one read instead of B."""
        places = [key if isinstance(key, tuple) else (EVALUATION_EPOCH, key) for key in keys]
        x1, seeds = self._data(places)
        batch: dict[str, Any] = {} if self.conditions is None else {"conditions": self._conditions(places, x1, seeds)}
        partners = places if self.pooled is None else [(epoch, self._pairing(epoch)[item]) for epoch, item in places]
        return {
            "x1": x1,
            "x0": noise([item_seed(self.seed, *place) for place in partners], x1.shape[1:]),
            "label": self.labels[[item for _, item in places]],
            "seeds": [item_seed(seed, 0, DRAWS) for seed in seeds],
            **batch,
        }

    def generation_conditions(self, items: Sequence[int]) -> GenerationConditions | None:
        """Return the conditions of items of this set, to generate samples by; None without conditions."""
        if self.conditions is None:
            return None
        prompts = None
        if self.conditions.states is not None:
            prompts = [self.conditions.prompt(row, 0, False) for row in self._rows(items)]
        return GenerationConditions(prompts, self.__getitems__(items)["conditions"].get("image"))

    def _conditions(self, places: Sequence[Key], x1: Tensor, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Return the conditions of (epoch, item) besides the class."""
        assert self.conditions is not None
        items = [item for _, item in places]
        sample = bool(places) and places[0][0] != EVALUATION_EPOCH
        return self.conditions(self._rows(items), seeds, sample, lambda: self._images(items, x1, seeds))

    def _rows(self, items: Sequence[int]) -> list[int]:
        """Which of all that can be read the items are."""
        return [self.indices[item] for item in items]

    def _images(self, items: Sequence[int], x1: Tensor, seeds: Sequence[int]) -> Tensor:
        """Images of items, whose values in this epoch are `x1`."""
        return x1

    def mirrored(self, seeds: Sequence[int]) -> Tensor:
        """Which items (n,), of seeds in this epoch, are mirrored."""
        return torch.tensor([self.flips and item_seed(seed, 0, FLIP) % 2 == 1 for seed in seeds])

    def data(self, items: Sequence[int]) -> Tensor:
        """The values (n, ...) of items of this set, as they are: nothing is mirrored."""
        return self.read(self._rows(items))

    def examples(self, items: Sequence[int]) -> Tensor:
        """Values (n, ...) of items of this set, to be shown."""
        return self.data(items)

    def _data(self, places: Sequence[Key]) -> tuple[Tensor, list[int]]:
        """The values of (epoch, item), and the seed of each."""
        x1 = self.data([item for _, item in places])
        seeds = [item_seed(self.seed, epoch, item) for epoch, item in places]
        if self.flips:
            mirrored = self.mirrored(seeds)
            x1[mirrored] = x1[mirrored].flip(-1)
        return x1, seeds

    def _scaled(self, x1: Tensor) -> Tensor:
        """Values (n, ...) on the scale that the flow learns on."""
        return x1

    def _pairing(self, epoch: int) -> list[int]:
        """Whose noise each item of an epoch gets; every process computes it once, and the same."""
        if self._paired[0] != epoch:
            assert self.pooled is not None
            shape = self.data([0]).shape[1:]

            def read_noise(items: Sequence[int]) -> Tensor:
                return noise([item_seed(self.seed, epoch, item) for item in items], shape)

            def read_data(items: Sequence[int]) -> Tensor:
                return self._scaled(self._data([(epoch, item) for item in items])[0])

            seed = item_seed(self.seed, epoch, POOLS)
            self._paired = (epoch, self.pooled.pairing(read_noise, read_data, self.labels, seed).tolist())
        return self._paired[1]
