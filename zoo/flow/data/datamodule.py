"""Data of the flow: images with classes, and points of the plane."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from zoo.common.checks import check_at_least, check_within, find_data_folder
from zoo.flow.data import image_sets, points
from zoo.flow.data.image_cache import CACHES, ImageCache, build
from zoo.flow.data.image_sets import ImageSet, exclude_images
from zoo.flow.data.images import WHITE, ArrayImages, DecodedImages, Framing, Resize, StoredPixels, decode_all
from zoo.flow.data.item_conditions import ItemConditions, encode_prompts
from zoo.flow.data.items import Items, StoredValues
from zoo.flow.data.points import PointSet
from zoo.flow.process.coupling import PooledTransport
from zoo.flow.process.time_samplers import EVALUATION_TIMES
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import item_seed

log = logging.getLogger(__name__)

SHOWN_CLASSES = 20  # in the log
DRAW_EPOCH = -2  # of the keys that the points of the sets are drawn by

ImageReader = StoredPixels | DecodedImages | ImageCache


class FlowData(ZooDataModule):
    """Base of the data of a flow.

    A batch has `x1` (data), `x0` (noise) and `label` (0 without classes) as tensors, and `seeds` as a list.

    Args:
        batch_size: items per batch and process.
        pooled: pair noise and data over pools of each epoch instead of at random; validation stays unpaired. The
            task's coupling is then not needed.
        num_workers: loader processes.
        seed: of order, noise, flips and the task's draws.

    Attributes:
        classes: names in the order of the labels; empty without classes. A subclass with labels sets them before a
            training begins: the net's `num_classes` is compared with their number.
        sample_shape: of one item.
        framing: how images are read, where the items are made of them.
    """

    def __init__(
        self, batch_size: int, pooled: PooledTransport | None = None, num_workers: int = 0, seed: int = 63
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        self.pooled = pooled
        self.classes: list[str] = []
        self.sample_shape: tuple[int, ...] = ()

    def collate(self, items: Any) -> dict[str, Any]:
        """Join items, unless their set did; the seeds stay plain numbers, which no device has to be asked for."""
        if isinstance(items, dict):
            return items
        tensors = [{key: value for key, value in item.items() if key != "seed"} for item in items]
        return {**super().collate(tensors), "seeds": [item["seed"] for item in items]}

    def evaluation_loader(self, dataset: Dataset[Any]) -> DataLoader[Any]:
        """This rank's slice of an evaluation set, in batches that need about the memory of one in training."""
        size = max(1, self.batch_size // EVALUATION_TIMES)
        return self.loader(dataset, batch_size=size, sampler=self.rank_indices(dataset), collate_fn=self.collate)


class ImageData(FlowData):
    """Images of classes, labelled from 1; 0 is the null class.

    They come from

    - scikit-learn's digits (8 x 8 pixels, ten classes), when neither `root` nor `hub` is given;
    - a folder with one folder of images per class, or with such folders in `train` and `val` (or `valid`,
      `validation`, `test`; in any case), as AFHQ has; a folder of images alone has no classes;
    - the Hugging Face hub, which was not run here.

    Where the source has no validation set, a part of each class is held out. Counts by class and a checksum are logged.

    Args:
        root: the folder.
        hub: `user/name` of a data set of the hub, instead of `root`; needs the package datasets.
        image_resolution: height and width that images are resized to, in pixels. They are turned as their EXIF data
            say before; 16-bit grey is brought to 8 bits.
        resize: "squash" brings both sides to the resolution; "crop" keeps proportions and takes the centre.
        background: red, green and blue, 0 to 255, that transparent pixels are composed onto.
        max_bad_share: share of unreadable images above which the run stops; below it they are named and left out.
        channels: 3 for RGB, 1 for grey.
        batch_size: images per batch and process.
        max_per_class: first images of each class to use, of both sets; null (or 0) for all.
        val_every: of how many images of a class one is held out.
        split_seed: hold out images at random, as many of each class; null for every `val_every`-th.
        flips: mirror every other training image.
        cache: folder of resized images, made on first use; null to decode files in every epoch. Encoded captions lie
            below it, or below `runs/cache`.
        captions: texts of images for a task with `text`: "files" for a text file beside each image, a caption a line;
            a name such as metadata.jsonl, of a file in the folder of the images (of `train` and of `val`), whose lines
            have `file_name` and `text`; a text with {} for the name of the class; a column of the data set of the hub.
            Of several captions one is drawn in each epoch. Images may then lie in their folder without classes.
        embedded_if_missing: use the digits, with a message, when `root` does not exist.
    """

    def __init__(
        self,
        root: str | None = None,
        hub: str | None = None,
        *,
        image_resolution: int = 64,
        channels: int = 3,
        batch_size: int = 32,
        max_per_class: int | None = None,
        val_every: int = 10,
        split_seed: int | None = None,
        flips: bool = False,
        cache: str | None = CACHES,
        embedded_if_missing: bool = False,
        resize: Resize = "squash",
        background: tuple[int, int, int] = WHITE,
        max_bad_share: float = 0.1,
        captions: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size, **kwargs)
        check_within(0, 1, max_bad_share=max_bad_share)
        check_at_least(2, val_every=val_every)
        if root is not None and hub is not None:
            raise ValueError(f"data.init_args: only one of root ({root}) and hub ({hub}) may be set")
        self.root = find_data_folder("root", root, embedded_if_missing, "scikit-learn's digits")
        self.hub = hub
        self.framing = Framing(image_resolution, channels, resize, background)
        self.max_bad_share = max_bad_share
        self._bad: dict[str, dict[int, str]] = {}  # broken images of each set that has no cache
        self.sample_shape = (channels, image_resolution, image_resolution)
        self.max_per_class = max_per_class or 0
        self.val_every = val_every
        self.split_seed = split_seed
        self.flips = flips
        self.cache = None if cache is None else Path(cache)
        self.captions = captions

    def prepare_data(self) -> None:
        """Write the caches, once per machine; without them, check that all images can be read."""
        for images in self._sets():
            self._read(images)

    def setup(self, stage: str) -> None:
        """Open the images and split them."""
        if self.trainer is not None:  # one process has looked for broken images
            self._bad = self.trainer.strategy.broadcast(self._bad)
        sets = [self._read(images) for images in self._sets()]
        for read, images in sets:
            self._log(read, images)
        conditions = self._conditions([images for _, images in sets])
        (read, images), self.classes = sets[0], sets[0][1].classes
        # images that each epoch decodes have a checksum of times and paths
        self.file_facts = (None if isinstance(read, DecodedImages) else read.checksum, images.labels)
        if images.captions is not None:
            self.file_facts += (images.captions,)
        held_out, val_images = sets[-1]
        train_rows = val_rows = None
        if len(sets) == 1:
            mask = np.array(image_sets.holdout_mask(images.labels, self.val_every, self.split_seed))
            if not mask.any():
                raise ValueError(
                    f"no class has {self.val_every} images, so none is for validation: lower data.init_args.val_every"
                )
            train_rows, val_rows = (np.flatnonzero(part).tolist() for part in (~mask, mask))
        elif val_images.classes != self.classes:
            raise ValueError(
                f"{images.name} has the classes {self.classes}, {val_images.name} has {val_images.classes}"
            )
        self.train_set = Items(read, images.labels, train_rows, self.seed, self.flips, self.pooled, conditions[0])
        self.val_set = Items(held_out, val_images.labels, val_rows, self.seed, conditions=conditions[-1])

    def _conditions(self, sets: Sequence[ImageSet]) -> list[ItemConditions | None]:
        """The conditions of each set's items, as the task needs them."""
        task: Any = getattr(self.trainer, "lightning_module", None)
        text, image = getattr(task, "text", None), getattr(task, "image_condition", None)
        if task is not None and (text is None) != (self.captions is None):
            raise ValueError(
                f"data.init_args.captions is {self.captions}, model.init_args.text is "
                f"{'null' if text is None else 'set'}: texts need both"
            )
        if text is None and image is None:
            return [None for _ in sets]
        states = None
        if text is not None:
            prompts = [prompt for images in sets for each in images.captions or () for prompt in each]
            states = encode_prompts(task, prompts, self.cache or Path(CACHES), *self._rank_and_world())
        return [ItemConditions(None if text is None else images.captions, states, image) for images in sets]

    def _sets(self) -> list[ImageSet]:
        """The training and validation images, or those that are to be split."""
        limit, captions = self.max_per_class, self.captions
        if self.hub is not None:
            template = captions is not None and "{}" in captions
            sets = image_sets.hub(self.hub, limit, None if template else captions)
            captions = captions if template else None
        elif self.root is None:
            sets = [image_sets.digits(limit)]
        else:
            parts = image_sets.find_splits(self.root) or [self.root]
            sets = [image_sets.folder(part, limit, captions is not None) for part in parts]
        return sets if captions is None else [image_sets.add_captions(each, captions) for each in sets]

    def _read(self, images: ImageSet) -> tuple[ImageReader, ImageSet]:
        """The reader of a set, and the set without the images that cannot be read."""
        if isinstance(images.source, ArrayImages):
            return StoredPixels(np.stack(list(decode_all(images.source, self.framing, False)))), images
        if self.cache is not None:
            cache = build(images, self.cache, self.framing, max_bad_share=self.max_bad_share)
            return cache, exclude_images(images, cache.bad)
        if images.name not in self._bad:
            bad = self._bad[images.name] = {}
            for _ in decode_all(images.source, self.framing, True, self.max_bad_share, bad):
                pass
        bad = self._bad[images.name]
        return DecodedImages(images.source, self.framing, bad), exclude_images(images, bad)

    def _log(self, read: ImageReader, images: ImageSet) -> None:
        """Log what a set holds and how it is read; refuse one with a class of which no image can be read."""
        if empty := [name for name, count in images.counts().items() if not count]:
            raise ValueError(f"{images.name}: no image can be read of the classes {', '.join(empty)}")
        counts = [f"{name} {count}" for name, count in images.counts().items()]
        more = [f"{len(counts) - SHOWN_CLASSES} more"] if len(counts) > SHOWN_CLASSES else []
        listed = ", ".join(counts[:SHOWN_CLASSES] + more) or "no classes"
        if self.max_per_class > 0:
            listed += f"; at most the first {self.max_per_class} of each class, by max_per_class"
        size = f"{self.framing.resolution} x {self.framing.resolution} pixels, {self.framing.channels} channels"
        log.info("%s: %d images (%s), resized to %s", images.name, len(images.labels), listed, size)
        log.info("%s: checksum %s", images.name, read.checksum)


class PointData(FlowData):
    """Points of the plane, without classes.

    Args:
        kind: the set, see `zoo.flow.data.points.draw`.
        train_points: number of training points.
        val_points: number of validation points, of a draw of their own.
        batch_size: points per batch and process.
    """

    def __init__(
        self,
        kind: PointSet = "swiss_roll",
        *,
        train_points: int = 100_000,
        val_points: int = 512,
        batch_size: int = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size, **kwargs)
        check_at_least(1, train_points=train_points, val_points=val_points)
        self.kind: PointSet = kind
        self.counts = (train_points, val_points)
        self.sample_shape = (2,)

    def setup(self, stage: str) -> None:
        """Draw the points."""
        values = [
            points.draw(self.kind, count, item_seed(self.seed, DRAW_EPOCH, part))
            for part, count in enumerate(self.counts)
        ]
        self.file_facts = (self.kind,)
        train, val = ([0] * count for count in self.counts)
        self.train_set = Items(StoredValues(values[0]), train, None, self.seed, pooled=self.pooled)
        self.val_set = Items(StoredValues(values[1]), val, None, self.seed)
