"""Sets of images with classes: folders, the Hugging Face hub, and scikit-learn's digits."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from zoo.common.foreign_files import read_lines
from zoo.flow.data.images import ArrayImages, FileImages, ImageSource

log = logging.getLogger(__name__)

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
HELD_OUT = ("val", "valid", "validation", "test")  # names of folders


@dataclass(frozen=True)
class ImageSet:
    """Images with classes."""

    name: str  # of the source, for messages
    classes: list[str]  # names in the order of the labels
    labels: list[int]  # 1 to K
    source: ImageSource
    captions: Sequence[Sequence[str]] | None = None  # of each image, one or several

    def counts(self) -> dict[str, int]:
        """Number of images by class."""
        counts = Counter(self.labels)
        return {name: counts[label] for label, name in enumerate(self.classes, start=1)}


def exclude_images(images: ImageSet, bad: Collection[int]) -> ImageSet:
    """A set without some of its images, given by their numbers."""
    if not bad:
        return images
    remaining = [index for index in range(len(images.source)) if index not in bad]
    source = images.source
    if isinstance(source, FileImages):
        source = FileImages(source.root, [source.paths[index] for index in remaining])
    captions = None if images.captions is None else [images.captions[index] for index in remaining]
    return replace(images, labels=[images.labels[index] for index in remaining], source=source, captions=captions)


def class_ranks(labels: Sequence[int]) -> list[int]:
    """How many items of the same class come before each item."""
    counters: dict[int, Iterator[int]] = {}
    return [next(counters.setdefault(label, itertools.count())) for label in labels]


def limit_per_class(labels: Sequence[int], limit: int) -> list[int]:
    """Indices of the first `limit` items of each class; of all items when it is 0 or less."""
    return [index for index, rank in enumerate(class_ranks(labels)) if limit <= 0 or rank < limit]


def holdout_mask(labels: Sequence[int], every: int, seed: int | None) -> list[bool]:
    """For each item whether it is the n-th of its class, in order or, with a seed, in an order of their own."""
    order = list(range(len(labels)))
    if seed is not None:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = [False] * len(labels)
    for index, rank in zip(order, class_ranks([labels[i] for i in order]), strict=True):
        chosen[index] = rank % every == every - 1
    return chosen


def digits(limit: int = 0) -> ImageSet:
    """Scikit-learn's 1797 handwritten digits, 8 x 8 pixels; of each class the first `limit`, if above 0."""
    package = importlib.util.find_spec("sklearn")  # its file alone: importing it takes as long as importing torch
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.uint8)
    labels = (rows[:, -1] + 1).tolist()
    chosen = limit_per_class(labels, limit)
    pixels = np.rint(rows[chosen, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # their range is 0 to 16
    names = [str(digit) for digit in range(10)]
    return ImageSet("scikit-learn's digits", names, [labels[i] for i in chosen], ArrayImages(pixels))


def image_files(paths: Iterable[Path]) -> list[Path]:
    """The image files among paths, sorted."""
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES)


def folder(path: Path, limit: int = 0, flat: bool = False) -> ImageSet:
    """One folder of images per class, as torchvision's ImageFolder has them; images may lie deeper.

    Folders without images are named and skipped; hidden files and folders are not seen. Classes are in sorted order; of
    each the first `limit` images are used, all where it is 0 or less. Where there are none, or with `flat`, the images
    are those of the folder itself, without a class.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"no folder {path}: expected one with a folder of images per class")
    limit = limit if limit > 0 else sys.maxsize
    loose = image_files(path.glob("[!.]*"))[:limit]
    unlabelled = ImageSet(str(path), [], [0] * len(loose), FileImages(path, loose))
    if flat and loose:
        inner = (file for file in path.glob("[!.]*/**/[!.]*") if "/." not in file.relative_to(path).as_posix())
        if any(file.suffix.lower() in SUFFIXES for file in inner):
            log.warning("%s: skipped folders of images beside images such as %s", path, loose[0].name)
        return unlabelled
    names: list[str] = []
    paths: list[Path] = []
    labels: list[int] = []
    stray: list[str] = []
    for subfolder in sorted(subfolder for subfolder in path.glob("[!.]*") if subfolder.is_dir()):
        visible = (file for file in subfolder.rglob("[!.]*") if "/." not in file.relative_to(path).as_posix())
        files = image_files(visible)[:limit]
        if not files:
            stray.append(subfolder.name)
            continue
        names.append(subfolder.name)
        paths += files
        labels += [len(names)] * len(files)
    if not names and not loose:
        raise ValueError(f"{path} has no images ({', '.join(SUFFIXES)}), neither in folders of classes nor itself")
    if names and loose:
        log.warning("%s: skipped images beside the folders of classes, such as %s", path, loose[0].name)
    if stray:
        log.warning("%s: skipped folders without images: %s", path, ", ".join(stray))
    return ImageSet(str(path), names, labels, FileImages(path, paths)) if names else unlabelled


def find_splits(root: Path) -> list[Path]:
    """The folders `train` and the first of `HELD_OUT`, in any case, of a data set; none where one is missing."""
    folders = {path.name.lower(): path for path in sorted(root.iterdir()) if path.is_dir()}
    val = next((folders[name] for name in HELD_OUT if name in folders), None)
    return [folders["train"], val] if "train" in folders and val is not None else []


def add_captions(images: ImageSet, captions: str) -> ImageSet:
    """Give every image its captions.

    Args:
        captions: "files" for a text file beside each image, `cat.txt` beside `cat.png`, a caption a line; the name of a
            file of JSON lines in the folder of the images, each line with `file_name` (from that folder) and `text`, as
            the hub's image folders have it, several lines for several captions; or a text that holds the name of the
            class for `{}`.

    Raises:
        ValueError: when images have none; names how many, and the first.
    """
    source, texts = images.source, list[list[str]]()
    if "{}" in captions:
        if not images.classes:
            raise ValueError(f"data.init_args.captions {captions!r}: {images.name} has no classes to put in its place")
        texts = [[captions.replace("{}", images.classes[label - 1])] for label in images.labels]
    elif not isinstance(source, FileImages):
        raise ValueError(
            f"data.init_args.captions {captions!r}: {images.name} is no folder of images; give a text with {{}} for "
            "the name of the class"
        )
    elif captions == "files":
        files = [path.with_suffix(".txt") for path in source.paths]
        texts = [_caption_lines(path) if path.is_file() else [] for path in files]
    elif captions.endswith(".jsonl"):
        by_name = _read_captions(source.root / captions)
        texts = [by_name.get(source.name(index), []) for index in range(len(source))]
    else:
        raise ValueError(
            f"data.init_args.captions: expected files, a name that ends with .jsonl, or a text with {{}} for the name "
            f"of the class, found {captions!r}"
        )
    if missing := [source.name(index) for index, each in enumerate(texts) if not each]:
        raise ValueError(
            f"{images.name}: {len(missing)} of {len(texts)} images have no caption, the first {missing[0]}"
        )
    return replace(images, captions=texts)


def _caption_lines(path: Path) -> list[str]:
    return [line.strip() for line in read_lines(path) if line.strip()]


def _read_captions(path: Path) -> dict[str, list[str]]:
    """Captions by the names of images."""
    if not path.is_file():
        raise FileNotFoundError(f"data.init_args.captions: no file {path}")
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: no JSON ({error})") from error
        named = isinstance(row, dict) and isinstance(row.get("file_name"), str)
        if not named or not isinstance(row.get("text"), str):
            raise ValueError(f"{path}, line {number}: expected texts file_name and text, found {line[:80]}")
        captions.setdefault(row["file_name"], []).append(row["text"])
    return captions


@dataclass(eq=False)
class HubImages(ImageSource):
    """Images of a data set of the hub."""

    dataset: Any  # of the package datasets; its rows are decoded on access
    column: str
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def open(self, index: int) -> Image.Image:
        """One image."""
        return self.dataset[self.indices[index]][self.column]

    def name(self, index: int) -> str:
        """Its row."""
        return f"row {self.indices[index]}"

    def stamp(self, index: int) -> str:
        """Its row, and the data set's fingerprint."""
        return f"{self.name(index)} of {getattr(self.dataset, '_fingerprint', '')}"


def hub(name: str, limit: int = 0, captions: str | None = None) -> list[ImageSet]:
    """Load `user/name` of the Hugging Face hub, which the package datasets downloads and keeps.

    The splits are `train`, and `validation` or, where there is none, `test`; the first column of images and the first
    of classes are used. Not run against the hub here, only against a stand-in.

    Args:
        captions: column of texts, or of lists of them; classes are then not needed.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"data.init_args.hub: {name} needs the package datasets: pip install zoo[images]") from error
    splits = datasets.load_dataset(name)
    if "train" not in splits:
        raise ValueError(f"data.init_args.hub: {name} has no split train, but {', '.join(splits)}")
    other = next((split for split in ("validation", "test") if split in splits), None)
    sets = []
    for split in ["train"] + [other] * (other is not None):
        dataset = splits[split]
        image, label = (
            next((key for key, feature in dataset.features.items() if type(feature).__name__ == kind), None)
            for kind in ("Image", "ClassLabel")
        )
        if image is None or (label is None and captions is None):
            features = ", ".join(f"{key} ({type(feature).__name__})" for key, feature in dataset.features.items())
            raise ValueError(f"data.init_args.hub: {name} needs columns of type Image and ClassLabel, found {features}")
        if captions is not None and captions not in dataset.features:
            columns = ", ".join(dataset.features)
            raise ValueError(f"data.init_args.captions: {name} has no column {captions}, but {columns}")
        labels = [0] * len(dataset) if label is None else [int(number) + 1 for number in dataset[label]]
        classes = [] if label is None else list(dataset.features[label].names)
        if not labels or (classes and min(labels) < 1):
            raise ValueError(f"data.init_args.hub: {name}, split {split}: empty, or images without class")
        chosen = limit_per_class(labels, limit)
        texts = None
        if captions is not None:
            column = list(dataset[captions])
            texts = [[column[index]] if isinstance(column[index], str) else list(column[index]) for index in chosen]
        source = HubImages(dataset, image, chosen)
        sets.append(ImageSet(f"{name}, {split}", classes, [labels[i] for i in chosen], source, texts))
    return sets
