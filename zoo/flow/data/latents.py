"""Latents of images: encoded once into shards, then read as data of a flow."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.blocks.autoencoder import sample_posterior
from zoo.common.checks import check_at_least
from zoo.common.reports import write_report
from zoo.flow.data.datamodule import FlowData, ImageData
from zoo.flow.data.image_cache import CACHES
from zoo.flow.data.items import Items
from zoo.flow.nets.latent_space import LatentSpace
from zoo.flow.process.coupling import PooledTransport
from zoo.flow.process.sampling import noise
from zoo.training.array_files import MappedArrays, array_paths, write_array_files
from zoo.training.resume import Key, item_seed

log = logging.getLogger(__name__)

Encoder = Callable[[Tensor], Tensor]
"""Moments (B, 2C, h, w) of images (B, C, H, W)."""

POSTERIOR = 2  # what is drawn for an item besides noise, task draws (0) and flip (1): its latent, from the moments


def write_shards(
    images: Items,
    encode: Encoder,
    stem: Path,
    shard_size: int = 1024,
    chunk: int = 32,
    rank: int = 0,
    world_size: int = 1,
) -> int:
    """Encode images into shards of moments (N, copies, 2C, h, w), float16; the same call resumes after a kill.

    Of `world_size` processes each makes every world_size-th shard.

    Args:
        images: whose `flips` ask for a second copy, of the mirrored image: an encoder does not commute with mirrors.
        encode: of images, on the device of the autoencoder.
        stem: of the shards' names; it depends on all that decides the moments.
        chunk: images encoded together.

    Returns:
        Shards that this process wrote.
    """

    def rows(part: range) -> np.ndarray:
        moments = []
        for first in range(part.start, part.stop, chunk):
            values = images.data(range(first, min(first + chunk, part.stop)))
            copies = [values, values.flip(-1)] if images.flips else [values]
            moments.append(torch.stack([encode(each).float().cpu() for each in copies], dim=1).half().numpy())
        return np.concatenate(moments)

    return write_array_files(stem, len(images), shard_size, rows, rank, world_size)


class LatentShards(MappedArrays):
    """Reads moments of images from memory-mapped shards."""

    def __call__(self, items: Sequence[int], copies: Sequence[int]) -> Tensor:
        """Moments (n, 2C, h, w), float32, of items, each of its copy: 0 as it is, 1 mirrored."""
        rows = [np.asarray(self.row(item)[copy], dtype=np.float32) for item, copy in zip(items, copies, strict=True)]
        return torch.from_numpy(np.stack(rows))


class LatentItems(Items):
    """Latents drawn from stored moments, each from its item's seed, keyed as `Items` are.

    Args:
        images: whose latents they are; labels follow theirs.
        moments: of these images, in their order.
        pooled: which item's noise an item gets; its own by default.
        sample: sample a latent in each epoch; otherwise it is the mean.
        seed: of noise, mirrors and draws.
    """

    def __init__(
        self, images: Items, moments: LatentShards, pooled: PooledTransport | None, sample: bool, seed: int
    ) -> None:
        self.images = images
        self.moments = moments
        self.sample = sample
        self.indices = list(range(len(images)))
        self.labels = images.labels
        self.seed = seed
        self.flips = images.flips
        self.conditions = images.conditions
        self.pooled = pooled
        self.scale = torch.ones(1, 1, 1)
        self._paired = (None, [])

    def data(self, items: Sequence[int]) -> Tensor:
        """Means (n, C, h, w) of the latents of items, nothing mirrored."""
        return self.moments(items, [0] * len(items)).chunk(2, dim=1)[0]

    def examples(self, items: Sequence[int]) -> Tensor:
        """Images (n, C, H, W) of items, to be shown."""
        return self.images.examples(items)

    def _data(self, places: Sequence[Key]) -> tuple[Tensor, list[int]]:
        seeds = [item_seed(self.seed, *place) for place in places]
        copies = self.mirrored(seeds).int().tolist()
        moments = self.moments([item for _, item in places], copies)
        if not self.sample:
            return moments.chunk(2, dim=1)[0], seeds
        shape = (moments.shape[1] // 2, *moments.shape[2:])
        return sample_posterior(moments, noise([item_seed(seed, 0, POSTERIOR) for seed in seeds], shape)), seeds

    def _scaled(self, x1: Tensor) -> Tensor:
        return x1 * self.scale

    def _rows(self, items: Sequence[int]) -> list[int]:
        return [self.images.indices[item] for item in items]

    def _images(self, items: Sequence[int], x1: Tensor, seeds: Sequence[int]) -> Tensor:
        images = self.images.data(items)
        return torch.where(self.mirrored(seeds)[:, None, None, None], images.flip(-1), images)


class LatentData(FlowData):
    """Images as latents of the task's autoencoder (`model.latents`), encoded once, before the first training.

    The processes of a run share the encoding, each on its device; after a kill the next run resumes it. Another
    autoencoder, other images or other mirrors make shards of their own.

    Args:
        images: whose latents they are; their noise pairing (`pooled`) must be null.
        batch_size: latents per batch and process.
        cache: folder below which the shards lie.
        shard_size: images of a shard.
        chunk: images encoded together.
        kwargs: of FlowData.
    """

    def __init__(
        self,
        images: ImageData,
        batch_size: int = 32,
        cache: str = CACHES,
        shard_size: int = 1024,
        chunk: int = 32,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size, **kwargs)
        check_at_least(1, shard_size=shard_size, chunk=chunk)
        if images.pooled is not None:
            raise ValueError("data.images.pooled pairs images, not latents: set data.init_args.pooled instead")
        self.images = images
        self.framing = images.framing
        self.cache = Path(cache)
        self.shard_size = shard_size
        self.chunk = chunk

    def prepare_data(self) -> None:
        """Let the images prepare themselves."""
        self.images.prepare_data()

    def setup(self, stage: str) -> None:
        """Encode what is not encoded, and open the shards."""
        latents = getattr(getattr(self.trainer, "lightning_module", None), "latents", None)
        if not isinstance(latents, LatentSpace):
            raise ValueError("zoo.flow.LatentData needs model.init_args.latents: the autoencoder that makes them")
        assert self.trainer is not None
        self.images.trainer = self.trainer
        self.images.setup(stage)
        self.classes = self.images.classes
        self.sample_shape = latents.autoencoder.latent_shape(self.images.sample_shape)
        digest = latents.autoencoder.fingerprint()
        rank, world = self._rank_and_world()
        device = self.trainer.strategy.root_device
        home = latents.shift.device

        def encode(values: Tensor) -> Tensor:
            return latents.encode(values.to(device))

        shards = []
        for part, dataset in (("train", self.images.train_set), ("val", self.images.val_set)):
            items: Any = dataset
            settings: dict[str, Any] = {"autoencoder": digest, "config": latents.autoencoder.config}
            settings |= {"images": _key(items), "flips": items.flips}
            settings |= {"count": len(items), "shard_size": self.shard_size, "sample_shape": list(self.sample_shape)}
            text = json.dumps(settings, indent=1, sort_keys=True)
            stem = self.cache / f"latents-{part}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            if not all(path.is_file() for path in array_paths(stem, len(items), self.shard_size)):
                latents.to(device)
                count = write_shards(items, encode, stem, self.shard_size, self.chunk, rank, world)
                latents.to(home)
                log.info("%s: %d shards of latents written by process %d", stem, count, rank)
                write_report(self.cache, {f"{stem.name}.json": settings})
            shards.append((items, stem))
        self.trainer.strategy.barrier("latents")
        train, val = ((items, LatentShards(stem, len(items), self.shard_size)) for items, stem in shards)
        self.train_set = LatentItems(*train, self.pooled, True, self.seed)
        self.val_set = LatentItems(*val, None, False, self.seed)
        self.file_facts = (*self.images.file_facts, digest)

    def train_dataloader(self) -> Any:
        """The training set's batches; `pooled` pairs latents of the flow's scale, which is known from here on."""
        assert self.trainer is not None
        train_set: Any = self.train_set
        task: Any = self.trainer.lightning_module
        train_set.scale = task.latents.scale[:, None, None].cpu()
        return super().train_dataloader()

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (C,) of the training set's latents, in float64 over all shards."""
        train_set: Any = self.train_set
        totals, count = np.zeros((2, self.sample_shape[0])), 0
        for shard in train_set.moments.arrays():
            mean, log_variance = np.split(np.asarray(shard, dtype=np.float64), 2, axis=2)  # (N, copies, C, h, w)
            square = mean**2 + np.exp(log_variance)
            totals += np.stack([mean.sum(axis=(0, 1, 3, 4)), square.sum(axis=(0, 1, 3, 4))])
            count += mean.size // mean.shape[2]
        average, squared = torch.from_numpy(totals / count)
        return average, (squared - average**2).clamp(min=0).sqrt()


def _key(items: Any) -> str:
    """Return a hash of a set of images."""
    return hashlib.sha256(repr((items.read.checksum, items.indices, items.labels.tolist())).encode()).hexdigest()
