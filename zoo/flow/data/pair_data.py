"""The data of reflow and distillation: pairs of noise and the sample that a teacher made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.common.folders import data_folder
from zoo.flow.data.datamodule import FlowData
from zoo.flow.data.items import EVALUATION_EPOCH
from zoo.flow.data.pair_shards import ShardReader, read_meta, shard_paths
from zoo.flow.process.sampling import PAIRS, noise
from zoo.training.data import Key, item_seed

# Epochs of the keys of a pair's randomness (see `item_seed`): training counts from 0, other data takes -1 and -2.
CHOICE_INDEX = -4  # and below: whether an item is replaced by real data; above are the order (-1, -2) and pools (-3)
EMBEDDED_PAIRS = 256

PairReader = Callable[[int], tuple[Tensor, Tensor, int]]
"""Noise, sample (both of the sample's shape, float32) and label of a pair."""


class EmbeddedReader:
    """Pairs made in code: the sample is half of its noise, mirrored along the last axis; labels take turns."""

    def __init__(self, shape: Sequence[int], num_classes: int, seed: int) -> None:
        self.shape = tuple(shape)
        self.num_classes = num_classes
        self.seed = seed

    def __call__(self, index: int) -> tuple[Tensor, Tensor, int]:
        """Noise, sample and label of a pair."""
        x0 = noise([item_seed(self.seed, PAIRS, index)], self.shape)[0]
        return x0, 0.5 * x0.flip(-1), 1 + index % self.num_classes if self.num_classes else 0


@dataclass(eq=False)
class Pairs(Dataset[dict[str, Any]]):
    """Pairs, keyed by (epoch, item) in training and by the item in evaluation.

    Args:
        read: a pair by its index.
        indices: which of them belong to this set.
        seed: of the task's draws; the noise of a pair is always the same.
    """

    read: PairReader
    indices: Sequence[int]
    seed: int

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key | int) -> dict[str, Any]:
        """One item: `x0`, `x1` float32; `label`, 1 to K, or 0 without classes; `seed` of the task's random numbers."""
        epoch, item = key if isinstance(key, tuple) else (EVALUATION_EPOCH, key)
        x0, x1, label = self.read(self.indices[item])
        return {"x1": x1, "x0": x0, "label": label, "seed": item_seed(self.seed, epoch, item)}


@dataclass(eq=False)
class WithReal(Dataset[dict[str, Any]]):
    """Pairs, some of them replaced by real data with noise of its own; other ones in each epoch.

    Args:
        real: a training set of the same kind of items.
        share: of the items that are replaced, 0 to 1.
    """

    pairs: Pairs
    real: Dataset[dict[str, Any]]
    share: float
    seed: int

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: Key) -> dict[str, Any]:
        """One item, see `Pairs`."""
        epoch, item = key
        generator = torch.Generator().manual_seed(item_seed(self.seed, epoch, CHOICE_INDEX - item))
        if float(torch.rand(1, generator=generator)) >= self.share:
            return self.pairs[key]
        size = len(self.real)  # type: ignore[arg-type]
        return self.real[epoch, int(torch.randint(size, (1,), generator=generator))]


class PairData(FlowData):
    """Pairs that `zoo make-pairs` wrote: noise, the teacher's sample of it, and its label.

    FlowTask trained on them is reflow; with `times: GridTimes(points=k)` it is distillation into k steps.

    Args:
        root: folder of the pairs.
        batch_size: pairs per batch and process.
        val_share: of the pairs, the last ones, that are for validation; 0 < val_share < 1.
        real: real data to mix in, of the same shape and classes; validation has none of it.
        real_share: of the training items that are real data, 0 to 1.
        embedded_if_missing: use pairs made in code, with a message, when `root` does not exist.
        embedded_shape: of one sample of those.
        embedded_classes: of those; 0 for none.
        num_workers: loader processes.
        seed: of the order and of the task's draws.

    Attributes:
        classes: names in the order of the labels; numbers where the teacher's are not known.
        sample_shape: of one sample; known after setup, as the classes are.

    Raises:
        FileNotFoundError: when there is no such folder.

    Source: Liu et al., "Flow Straight and Fast" (2023), algorithm 1 and section 2.3.
    """

    def __init__(
        self,
        root: str,
        batch_size: int = 32,
        val_share: float = 0.02,
        real: FlowData | None = None,
        real_share: float = 0.0,
        embedded_if_missing: bool = False,
        embedded_shape: Sequence[int] = (2,),
        embedded_classes: int = 0,
        num_workers: int = 0,
        seed: int = 63,
    ) -> None:
        super().__init__(batch_size, num_workers=num_workers, seed=seed)
        if not 0 < val_share < 1:
            raise ValueError(f"data.init_args.val_share lies between 0 and 1, not {val_share}")
        if not 0 <= real_share <= 1 or (real is None) != (real_share == 0):
            raise ValueError(
                f"data.init_args.real_share lies in [0, 1] and goes with data.init_args.real: found {real_share} and "
                f"{'no data' if real is None else type(real).__name__}"
            )
        made = "pairs made in code, which train nothing of use"
        cure = f"write pairs there with `zoo make-pairs RUN {root}`"
        self.root = data_folder("root", root, embedded_if_missing, made, cure)
        self.val_share = val_share
        self.real = real
        self.real_share = real_share
        self.embedded_shape = tuple(embedded_shape)
        self.embedded_classes = embedded_classes

    def prepare_data(self) -> None:
        """Let the real data prepare itself."""
        if self.real is not None:
            self.real.prepare_data()

    def setup(self, stage: str) -> None:
        """Find the shards and split the pairs.

        Raises:
            FileNotFoundError: when shards are missing.
            ValueError: when the pairs are no pairs or too few, or would not stay together in training.
        """
        if getattr(getattr(self.trainer, "lightning_module", None), "coupling", None) is not None:
            raise ValueError("model.coupling would give the pairs' noise to other samples: set it to null")
        read, count = self._embedded() if self.root is None else self._shards(self.root)
        first = count - max(1, round(count * self.val_share))
        if first < 1:
            raise ValueError(f"{count} pairs leave none for training beside validation: make more, or lower val_share")
        pairs = Pairs(read, range(first), self.seed)
        self.val_set = Pairs(read, range(first, count), self.seed)
        self.train_set = pairs
        self.contents = (count, self.sample_shape)
        if self.real is not None:
            self.real.setup(stage)
            self._check_real(self.real)
            self.contents += tuple(self.real.contents)
            self.train_set = WithReal(pairs, self.real.train_set, self.real_share, self.seed)

    def _embedded(self) -> tuple[PairReader, int]:
        self.sample_shape, self.classes = self.embedded_shape, _names(self.embedded_classes)
        return EmbeddedReader(self.sample_shape, self.embedded_classes, self.seed), EMBEDDED_PAIRS

    def _shards(self, root: Path) -> tuple[PairReader, int]:
        meta = read_meta(root)
        self.sample_shape = tuple(meta["sample_shape"])
        self.classes = meta["classes"] or _names(meta["num_classes"])
        paths = shard_paths(root, meta["count"], meta["shard_size"])
        if missing := [path.name for path in paths if not path.is_file()]:
            raise FileNotFoundError(
                f"{root}: {len(missing)} of {len(paths)} shards are missing, the first {missing[0]}; run the same "
                "make-pairs again, it writes only what is missing"
            )
        return ShardReader(paths, self.sample_shape, meta["shard_size"]), meta["count"]

    def _check_real(self, real: FlowData) -> None:
        theirs = (tuple(real.sample_shape), len(real.classes))
        if theirs != (self.sample_shape, len(self.classes)):
            raise ValueError(
                f"data.init_args.real has samples of shape {theirs[0]} and {theirs[1]} classes, the pairs have "
                f"{self.sample_shape} and {len(self.classes)}"
            )


def _names(num_classes: int) -> list[str]:
    return [str(label) for label in range(1, num_classes + 1)]
