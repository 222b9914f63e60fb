"""The data of reflow and distillation: pairs of noise and the sample that a teacher made of it, in shards on disk.

A shard holds the seed of the noise instead of the noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.common.checks import check_between
from zoo.flow.data.datamodule import FlowData
from zoo.flow.data.items import EVALUATION_EPOCH
from zoo.flow.nets.latent_space import LatentSpace
from zoo.flow.process.sampling import noise
from zoo.training.array_files import MappedArrays
from zoo.training.resume import Key, item_seed

META_NAME, STEM = "meta.json", "pairs"
FRAMING = ("resize", "background")  # how the teacher's images were read, which its students' results say too
NEEDED_KEYS = ("count", "shard_size", "sample_shape", "num_classes", "classes")
CHECKED_VALUES = 4
"""First values of each noise that a shard keeps, to notice a torch that draws another noise from the seed."""
CHECK_TOLERANCE = 1e-4


def row_type(shape: Sequence[int]) -> np.dtype:
    """How a shard stores a pair: the noise as its seed, the sample as float32."""
    start = min(CHECKED_VALUES, math.prod(shape))
    fields: list[Any] = [("seed", "<i8"), ("label", "<i8")]  # 0: no class
    return np.dtype([*fields, ("x0_start", "<f4", (start,)), ("x1", "<f4", tuple(shape))])


class PairShards:
    """Reads pairs of a folder from memory-mapped shards; the noise is sampled again from its seed."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        self.folder = folder
        self.shape = tuple(metadata["sample_shape"])
        self.rows = MappedArrays(folder / STEM, metadata["count"], metadata["shard_size"], row_type(self.shape))

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


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read the description of a folder of pairs and the settings of its teacher; `classes` may be None."""
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


@dataclass(eq=False)
class Pairs(Dataset[dict[str, Any]]):
    """Pairs, keyed by (epoch, item) in training and by the item in evaluation."""

    read: PairShards  # a pair by its index
    indices: Sequence[int]  # which of them belong to this set
    seed: int  # of the task's draws; the noise of a pair is always the same
    latents: LatentSpace | None = None  # of the task, where the samples are those of its autoencoder

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key | int) -> dict[str, Any]:
        """One item: `x0`, `x1` float32; `label`, 1 to K, or 0 without classes; `seed` of the task's random numbers."""
        epoch, item = key if isinstance(key, tuple) else (EVALUATION_EPOCH, key)
        x0, x1, label = self.read(self.indices[item])
        return {"x1": x1, "x0": x0, "label": label, "seed": item_seed(self.seed, epoch, item)}

    def examples(self, items: Sequence[int]) -> Tensor:
        """Samples (n, ...) of items of this set, decoded where they are latents, to be shown."""
        samples = torch.stack([self.read(self.indices[item])[1] for item in items])
        if self.latents is not None:
            samples = self.latents.decode(self.latents.normalise(samples.to(self.latents.shift.device))).cpu()
        return samples


class PairData(FlowData):
    """Pairs that `zoo make-pairs` wrote: noise, the teacher's sample of it, and its label.

    FlowTask trained on them is reflow; with `times: GridTimes(points=k)` it is distillation into k steps. Pairs of a
    flow in latents are latents: the task then has the teacher's autoencoder as `model.latents`.

    Args:
        root: folder of the pairs.
        batch_size: pairs per batch and process.
        val_share: of the pairs, the last ones, that are for validation; 0 < val_share < 1.
        num_workers: loader processes.
        seed: of the order and of the task's draws.

    Attributes:
        classes: names in the order of the labels; numbers where the teacher's are not known.
        framing: `resize` and `background` of the teacher's images, null where it has none; known after setup.
        sample_shape: of one sample; known after setup, as the classes are.

    Raises:
        FileNotFoundError: when there is no such folder.

    Source: Liu et al., "Flow Straight and Fast" (2023), algorithm 1 and section 2.3.
    """

    def __init__(
        self, root: str, batch_size: int = 32, val_share: float = 0.02, num_workers: int = 0, seed: int = 63
    ) -> None:
        super().__init__(batch_size, num_workers=num_workers, seed=seed)
        check_between(0, 1, **{"data.init_args.val_share": val_share})
        self.root = Path(root)
        if not self.root.is_dir():
            raise FileNotFoundError(
                f"data.init_args.root: no folder {root}; write pairs there with `zoo make-pairs RUN {root}`"
            )
        self.val_share = val_share

    def setup(self, stage: str) -> None:
        """Find the shards and split the pairs."""
        task: Any = getattr(self.trainer, "lightning_module", None)
        metadata = read_metadata(self.root)
        self._check_task(task, metadata)
        self.sample_shape, count = tuple(metadata["sample_shape"]), metadata["count"]
        names = metadata["classes"]
        self.classes = names or [str(label) for label in range(1, metadata["num_classes"] + 1)]
        first = count - max(1, round(count * self.val_share))
        if first < 1:
            raise ValueError(f"{count} pairs leave none for training beside validation: make more, or lower val_share")
        read, latents = PairShards(self.root, metadata), getattr(task, "latents", None)
        self.train_set = Pairs(read, range(first), self.seed, latents)
        self.val_set = Pairs(read, range(first, count), self.seed, latents)
        resize, background = (metadata.get(name) for name in FRAMING)
        self.framing = SimpleNamespace(resize=resize, background=background and tuple(background))
        # the run may have moved, and older pairs do not tell how images are read
        self.file_facts = ({key: value for key, value in metadata.items() if key not in ("run", *FRAMING)},)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (C,) of the training pairs' latents, float64."""
        pairs: Any = self.train_set
        values = torch.stack([pairs.read(index)[1] for index in pairs.indices]).double().transpose(0, 1).flatten(1)
        return values.mean(dim=1), values.std(dim=1, correction=0)

    def _check_task(self, task: Any, metadata: Mapping[str, Any]) -> None:
        """Refuse a task that pairs anew, is conditioned on more than a class, or has other latents than the pairs."""
        if getattr(task, "coupling", None) is not None:
            raise ValueError("model.coupling would give the pairs' noise to other samples: set it to null")
        for argument in ("text", "image_condition"):
            if getattr(task, argument, None) is not None:
                raise ValueError(f"pairs hold no texts or images: set model.init_args.{argument} to null")
        latents = getattr(task, "latents", None)
        digest = None if latents is None else latents.autoencoder.fingerprint()
        if task is not None and digest != metadata.get("autoencoder"):
            content = "latents of another autoencoder" if metadata.get("autoencoder") else "no latents"
            raise ValueError(f"{self.root} has {content}: set model.init_args.latents as the teacher has it")
