"""The data of reflow and distillation: pairs of noise and the sample that a teacher made of it, in shards on disk.

A shard holds the seed of the noise instead of the noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.common.checks import find_data_folder
from zoo.flow.data.datamodule import FlowData
from zoo.flow.data.image_cache import CACHES
from zoo.flow.data.item_conditions import CachedPromptStates, encode_prompts
from zoo.flow.data.items import EVALUATION_EPOCH
from zoo.flow.nets.autoencoder import LatentSpace
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.sampling import PAIRS, noise
from zoo.training.array_files import MappedArrays
from zoo.training.resume import Key, item_seed

META_NAME, STEM = "meta.json", "pairs"
NEEDED_KEYS = ("count", "shard_size", "sample_shape", "num_classes", "classes")
CHECKED_VALUES = 4
"""First values of each noise that a shard keeps, to notice a torch that draws another noise from the seed."""
CHECK_TOLERANCE = 1e-4


def row_type(shape: Sequence[int], image: Sequence[int] | None = None) -> np.dtype:
    """How a shard stores a pair: the noise as its seed, the sample and an image condition as float32."""
    start = min(CHECKED_VALUES, math.prod(shape))
    fields: list[Any] = [("seed", "<i8"), ("label", "<i8")]  # 0: no class
    fields += [("x0_start", "<f4", (start,)), ("x1", "<f4", tuple(shape))]
    return np.dtype(fields if image is None else [*fields, ("image", "<f4", tuple(image))])


class PairShards:
    """Reads pairs of a folder from memory-mapped shards; the noise is sampled again from its seed."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        self.folder = folder
        self.shape = tuple(metadata["sample_shape"])
        row = row_type(self.shape, metadata.get("image_shape"))
        self.rows = MappedArrays(folder / STEM, metadata["count"], metadata["shard_size"], row)

    def __call__(self, index: int) -> tuple[Tensor, Tensor, int]:
        """Noise, sample and label of a pair, whose seed must still give the noise that was used."""
        pair = self.rows.row(index)
        x0 = noise([int(pair["seed"])], self.shape)[0]
        start = pair["x0_start"]
        if np.abs(x0.flatten()[: len(start)].numpy() - start).max() > CHECK_TOLERANCE:
            raise ValueError(
                f"{self.folder}, pair {index}: torch {torch.__version__} gives another noise for seed {pair['seed']} "
                "than was used for the sample; make the pairs anew with this torch"
            )
        return x0, torch.tensor(pair["x1"]), int(pair["label"])

    def image(self, index: int) -> Tensor:
        """The image condition of a pair (C, H, W)."""
        return torch.tensor(self.rows.row(index)["image"])


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read what a folder of pairs says of itself, and the settings of the teacher; `classes` is None when not known."""
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


@dataclass
class PairConditions:
    """Conditions of the samples of pairs besides their class.

    Attributes:
        prompts: taken in turns by the pairs' numbers; None for none.
        states: of all of them.
        image: the image condition of a pair by its number; None for none.
    """

    prompts: Sequence[str] | None
    states: CachedPromptStates | None
    image: Callable[[int], Tensor] | None

    def __call__(self, index: int) -> dict[str, Tensor]:
        """Conditions of a pair by the names of `VelocityNet.condition_shapes`."""
        conditions: dict[str, Tensor] = {}
        if self.states is not None:
            conditions = {name: value[0] for name, value in self.states([self.prompt(index)]).items()}
        return conditions if self.image is None else {**conditions, "image": self.image(index)}

    def prompt(self, index: int) -> str:
        """The prompt of a pair."""
        assert self.prompts is not None
        return self.prompts[index % len(self.prompts)]


@dataclass(eq=False)
class Pairs(Dataset[dict[str, Any]]):
    """Pairs, keyed by (epoch, item) in training and by the item in evaluation."""

    read: PairReader  # a pair by its index
    indices: Sequence[int]  # which of them belong to this set
    seed: int  # of the task's draws; the noise of a pair is always the same
    latents: LatentSpace | None = None  # of the task, where the samples are those of its autoencoder
    conditions: PairConditions | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key | int) -> dict[str, Any]:
        """One item: `x0`, `x1` float32; `label`, 1 to K, or 0 without classes; `seed` of the task's random numbers."""
        epoch, item = key if isinstance(key, tuple) else (EVALUATION_EPOCH, key)
        x0, x1, label = self.read(self.indices[item])
        conditions = {} if self.conditions is None else {"conditions": self.conditions(self.indices[item])}
        return {"x1": x1, "x0": x0, "label": label, "seed": item_seed(self.seed, epoch, item), **conditions}

    @cached_property
    def labels(self) -> Tensor:
        """Of all items (N,), int64."""
        return torch.tensor([self.read(index)[2] for index in self.indices])

    def generation_conditions(self, items: Sequence[int]) -> GenerationConditions | None:
        """Return the conditions of items of this set, to generate samples by; None without conditions."""
        if self.conditions is None:
            return None
        indices = [self.indices[item] for item in items]
        prompts = images = None
        if self.conditions.prompts is not None:
            prompts = [self.conditions.prompt(index) for index in indices]
        if self.conditions.image is not None:
            images = torch.stack([self.conditions.image(index) for index in indices])
        return GenerationConditions(prompts, images)

    def examples(self, items: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Samples, decoded where they are latents, and labels of items of this set, to be shown or compared with."""
        _, values, labels = zip(*(self.read(self.indices[item]) for item in items), strict=True)
        samples = torch.stack(values)
        if self.latents is not None:
            samples = self.latents.decode(self.latents.normalise(samples.to(self.latents.shift.device))).cpu()
        return samples, list(labels)


class PairData(FlowData):
    """Pairs that `zoo make-pairs` wrote: noise, the teacher's sample of it, and its label.

    FlowTask trained on them is reflow; with `times: GridTimes(points=k)` it is distillation into k steps. Pairs of a
    flow in latents are latents: the task then has the teacher's autoencoder as `model.latents`.

    Args:
        root: folder of the pairs.
        batch_size: pairs per batch and process.
        val_share: of the pairs, the last ones, that are for validation; 0 < val_share < 1.
        embedded_if_missing: use pairs made in code, with a message, when `root` does not exist.
        embedded_shape: of one sample of those.
        embedded_classes: of those; 0 for none.
        num_workers: loader processes.
        seed: of the order and of the task's draws.
        cache: folder of encoded prompts, where the samples were given any.

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
        embedded_if_missing: bool = False,
        embedded_shape: Sequence[int] = (2,),
        embedded_classes: int = 0,
        num_workers: int = 0,
        seed: int = 63,
        cache: str = CACHES,
    ) -> None:
        super().__init__(batch_size, num_workers=num_workers, seed=seed)
        self.cache = Path(cache)
        if not 0 < val_share < 1:
            raise ValueError(f"data.init_args.val_share lies between 0 and 1, not {val_share}")
        made = "pairs made in code, which train nothing of use"
        cure = f"write pairs there with `zoo make-pairs RUN {root}`"
        self.root = find_data_folder("root", root, embedded_if_missing, made, cure)
        self.val_share = val_share
        self.embedded_shape = tuple(embedded_shape)
        self.embedded_classes = embedded_classes

    def setup(self, stage: str) -> None:
        """Find the shards and split the pairs."""
        if getattr(getattr(self.trainer, "lightning_module", None), "coupling", None) is not None:
            raise ValueError("model.coupling would give the pairs' noise to other samples: set it to null")
        metadata = {} if self.root is None else read_metadata(self.root)
        if self.root is None:
            self.sample_shape, count = self.embedded_shape, EMBEDDED_PAIRS
            self.classes = _number_names(self.embedded_classes)
            read: PairReader = EmbeddedReader(self.sample_shape, self.embedded_classes, self.seed)
        else:
            self.sample_shape, count = tuple(metadata["sample_shape"]), metadata["count"]
            self.classes = metadata["classes"] or _number_names(metadata["num_classes"])
            read = PairShards(self.root, metadata)
        first = count - max(1, round(count * self.val_share))
        if first < 1:
            raise ValueError(f"{count} pairs leave none for training beside validation: make more, or lower val_share")
        task: Any = getattr(self.trainer, "lightning_module", None)
        if task is not None and self.root is not None:
            self._check_task(task, metadata)
        latents = None if self.root is None else getattr(task, "latents", None)
        conditions = self._conditions(task, metadata, read)
        self.train_set = Pairs(read, range(first), self.seed, latents, conditions)
        self.val_set = Pairs(read, range(first, count), self.seed, latents, conditions)
        self.file_facts = (count, self.sample_shape)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (C,) of the training pairs' latents, float64."""
        pairs: Any = self.train_set
        values = torch.stack([pairs.read(index)[1] for index in pairs.indices]).double().transpose(0, 1).flatten(1)
        return values.mean(dim=1), values.std(dim=1, correction=0)

    def _check_task(self, task: Any, metadata: Mapping[str, Any]) -> None:
        """Refuse pairs of another kind than the task's: with or without texts, images and latents, or of others."""
        for argument, key, content in (
            ("text", "prompts", "prompts"),
            ("image_condition", "image_shape", "images"),
            ("latents", "autoencoder", "latents"),
        ):
            needed = getattr(task, argument, None) is not None
            if needed != (metadata.get(key) is not None):
                raise ValueError(
                    f"the pairs of {self.root} hold {'no ' * needed}{content}, model.init_args.{argument} is "
                    f"{'set' if needed else 'null'}: both or neither, as the teacher has it"
                )
        latents = getattr(task, "latents", None)
        if latents is not None and latents.autoencoder.fingerprint() != metadata["autoencoder"]:
            raise ValueError(f"{self.root} holds the latents of another autoencoder than model.init_args.latents")

    def _conditions(self, task: Any, metadata: Mapping[str, Any], read: PairReader) -> PairConditions | None:
        """Return the conditions of the samples, texts by the task's encoder."""
        prompts = metadata.get("prompts")
        image = read.image if isinstance(read, PairShards) and metadata.get("image_shape") is not None else None
        if prompts is None and image is None:
            return None
        states = None
        if prompts is not None and task is not None:
            states = encode_prompts(task, prompts, self.cache, *self._rank_and_world())
        return PairConditions(prompts, states, image)


def _number_names(num_classes: int) -> list[str]:
    return [str(label) for label in range(1, num_classes + 1)]
