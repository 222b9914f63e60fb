"""Sets of images with classes: folders, npz files, the hub, and scikit-learn's digits."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import math
import struct
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image

from zoo.common.journal import read_lines
from zoo.common.safe_load import check_archive
from zoo.flow.data.images import ArrayImages, FileImages, ImageSource

log = logging.getLogger(__name__)

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes
IMAGENET_BATCHES = "train_data_batch_*.npz"
IMAGENET_CLASSES = 1000
_LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")  # of an entry of a zip file
SHAPES_AFTER_SIZE = ((), (1,), (3,), (4,))  # of the channels of an array of images


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
        found = Counter(self.labels)
        return {name: found[label] for label, name in enumerate(self.classes, start=1)}


def without(images: ImageSet, bad: Collection[int]) -> ImageSet:
    """A set without some of its images, given by their numbers."""
    if not bad:
        return images
    kept = [index for index in range(len(images.source)) if index not in bad]
    source = images.source
    if isinstance(source, FileImages):
        source = FileImages(source.root, [source.paths[index] for index in kept])
    captions = None if images.captions is None else [images.captions[index] for index in kept]
    return replace(images, labels=[images.labels[index] for index in kept], source=source, captions=captions)


def ranks(labels: Sequence[int]) -> list[int]:
    """How many items of the same class come before each item."""
    counters: dict[int, Iterator[int]] = {}
    return [next(counters.setdefault(label, itertools.count())) for label in labels]


def first_of_each(labels: Sequence[int], limit: int) -> list[int]:
    """Indices of the first `limit` items of each class; of all items when it is 0 or less."""
    return [index for index, rank in enumerate(ranks(labels)) if limit <= 0 or rank < limit]


def held_out(labels: Sequence[int], every: int, seed: int | None) -> list[bool]:
    """For each item whether it is the n-th of its class, in order or, with a seed, in an order of their own."""
    order = list(range(len(labels)))
    if seed is not None:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = [False] * len(labels)
    for index, rank in zip(order, ranks([labels[i] for i in order]), strict=True):
        chosen[index] = rank % every == every - 1
    return chosen


def digits(limit: int = 0) -> ImageSet:
    """Scikit-learn's 1797 handwritten digits, 8 x 8 pixels; of each class the first `limit`, if above 0."""
    package = importlib.util.find_spec("sklearn")  # its file alone: importing it takes as long as importing torch
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.uint8)
    labels = (rows[:, -1] + 1).tolist()
    kept = first_of_each(labels, limit)
    pixels = np.rint(rows[kept, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # their range is 0 to 16
    names = [str(digit) for digit in range(10)]
    return ImageSet("scikit-learn's digits", names, [labels[i] for i in kept], ArrayImages(pixels))


def folder(path: Path, limit: int = 0, flat: bool = False) -> ImageSet:
    """One folder of images per class, as torchvision's ImageFolder has them; images may lie deeper.

    Folders without images are named and skipped; hidden files are not seen. Classes are in sorted order; of each the
    first `limit` images are used, all where it is 0 or less.

    Args:
        flat: where images lie in the folder itself, they are all there are, and have no class.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"no folder {path}: expected one with a folder of images per class")
    if flat and (found := sorted(file for file in path.glob("[!.]*") if file.suffix.lower() in SUFFIXES)):
        found = found[:limit] if limit > 0 else found
        return ImageSet(str(path), [], [0] * len(found), FileImages(path, found))
    names: list[str] = []
    paths: list[Path] = []
    labels: list[int] = []
    stray: list[str] = []
    for place in sorted(place for place in path.iterdir() if place.is_dir()):
        found = sorted(file for file in place.rglob("[!.]*") if file.suffix.lower() in SUFFIXES)
        if not found:
            stray.append(place.name)
            continue
        names.append(place.name)
        found = found[:limit] if limit > 0 else found
        paths += found
        labels += [len(names)] * len(found)
    if not names:
        raise ValueError(f"{path} has no folder with images ({', '.join(SUFFIXES)})")
    if stray:
        log.warning("%s: skipped folders without images: %s", path, ", ".join(stray))
    return ImageSet(str(path), names, labels, FileImages(path, paths))


def captioned(images: ImageSet, captions: str) -> ImageSet:
    """Give every image its captions.

    Args:
        captions: "files" for a text file beside each image, `cat.txt` beside `cat.png`, a caption a line; the name of a
            file of JSON lines in the folder of the images, each line with `file_name` (from that folder) and `text`, as
            the hub's image folders have it, several lines for several captions; or a text that holds the name of the
            class in the place of `{}`.

    Raises:
        ValueError: when images have none; names how many, and the first.
    """
    source, found = images.source, list[list[str]]()
    if "{}" in captions:
        if not images.classes:
            raise ValueError(f"data.init_args.captions {captions!r}: {images.name} has no classes to put in its place")
        found = [[captions.replace("{}", images.classes[label - 1])] for label in images.labels]
    elif not isinstance(source, FileImages):
        raise ValueError(
            f"data.init_args.captions {captions!r}: {images.name} is no folder of images; give a text with {{}} for "
            "the name of the class"
        )
    elif captions == "files":
        texts = [path.with_suffix(".txt") for path in source.paths]
        found = [_lines(path) if path.is_file() else [] for path in texts]
    elif captions.endswith(".jsonl"):
        by_name = _read_captions(source.root / captions)
        found = [by_name.get(source.name(index), []) for index in range(len(source))]
    else:
        raise ValueError(
            f"data.init_args.captions: expected files, a name that ends with .jsonl, or a text with {{}} for the name "
            f"of the class, found {captions!r}"
        )
    if missing := [source.name(index) for index, each in enumerate(found) if not each]:
        raise ValueError(
            f"{images.name}: {len(missing)} of {len(found)} images have no caption, the first {missing[0]}"
        )
    return replace(images, captions=found)


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in read_lines(path) if line.strip()]


def _read_captions(path: Path) -> dict[str, list[str]]:
    """Captions by the names of images."""
    if not path.is_file():
        raise FileNotFoundError(f"data.init_args.captions: no file {path}")
    found: dict[str, list[str]] = {}
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
        found.setdefault(row["file_name"], []).append(row["text"])
    return found


def beside(images: ImageSet, root: Path, sources: Path) -> ImageSet:
    """The source of each image of a folder: the file of the same place and stem below another one."""
    if not isinstance(images.source, FileImages):
        raise ValueError(f"data.init_args.sources: {images.name} is no folder of images")
    paths, missing = [], []
    for path in images.source.paths:
        stem = sources / path.relative_to(root).with_suffix("")
        found = (stem.with_name(stem.name + suffix) for suffix in dict.fromkeys([path.suffix, *SUFFIXES]))
        place = next((each for each in found if each.is_file()), None)
        if place is None:
            missing.append(stem)
        else:
            paths.append(place)
    if missing:
        raise ValueError(f"data.init_args.sources: {len(missing)} images have no source, the first {missing[0]}.*")
    return replace(images, name=f"{images.name}, sources", source=FileImages(sources, paths), captions=None)


def npz(path: Path, limit: int = 0) -> ImageSet:
    """A NumPy file with `images` (N, H, W) or (N, H, W, C), uint8, and `labels` (N,), whole numbers.

    It may hold `classes`, the name of each label from 0 on; otherwise the labels are the names. Classes are in the
    order of the numbers; of each the first `limit` images are used, all where it is 0 or less. In the place of `images`
    it may hold `data`, as a batch of the downsampled ImageNet does.
    """
    arrays = read_npz(path, "images", "labels", "classes")
    if "images" not in arrays and holds(path, "data"):
        return _packed([path], limit)
    images = checked_images(path, arrays.get("images"))
    labels = _labels(path, arrays.get("labels"), len(images))
    values, numbers = np.unique(labels, return_inverse=True)
    names = [str(value) for value in values]
    if "classes" in arrays:
        names, numbers = [str(name) for name in arrays["classes"]], labels
        if values[0] < 0 or values[-1] >= len(names):
            raise ValueError(f"{path}: labels run from {values[0]} to {values[-1]}, classes has {len(names)} names")
    numbered = (numbers.astype(np.int64) + 1).tolist()
    kept = first_of_each(numbered, limit)
    return ImageSet(str(path), names, [numbered[i] for i in kept], ArrayImages(images[kept]))


def cifar10(root: Path, limit: int = 0) -> list[ImageSet]:
    """The training and test images of CIFAR-10 in its binary version, which holds no pickles.

    Each record is a byte for the class and 3072 for the pixels: 32 x 32 of red, of green and of blue.
    """
    text = root / "batches.meta.txt"
    names = text.read_text(encoding="utf-8").split() if text.is_file() else [str(number) for number in range(10)]
    sets = []
    for part, files in (
        ("train", [f"data_batch_{number}.bin" for number in range(1, 6)]),
        ("test", ["test_batch.bin"]),
    ):
        records = []
        for name in files:
            if not (root / name).is_file():
                raise FileNotFoundError(f"{root}: no {name}, which the binary version of CIFAR-10 has")
            values = np.fromfile(root / name, dtype=np.uint8)
            if not len(values) or len(values) % CIFAR_RECORD:
                raise ValueError(f"{root / name}: {len(values)} bytes, no multiple of {CIFAR_RECORD}: not whole")
            records.append(values.reshape(-1, CIFAR_RECORD))
        rows = np.concatenate(records)
        labels = (rows[:, 0].astype(np.int64) + 1).tolist()
        if max(labels) > len(names):
            raise ValueError(f"{root}: class {max(labels) - 1} in {part}, expected 0 to {len(names) - 1}")
        kept = first_of_each(labels, limit)
        pixels = rows[kept, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        source = ArrayImages(np.ascontiguousarray(pixels))
        sets.append(ImageSet(f"{root}, {part}", names, [labels[index] for index in kept], source))
    return sets


def imagenet(root: Path, limit: int = 0) -> list[ImageSet]:
    """The training and, where it is there, validation images of the downsampled ImageNet: 8 to 64 pixels, as npz.

    `train_data_batch_1.npz` and those after it, and `val_data.npz`, hold `data` (N, 3 * side * side), uint8, red before
    green before blue, and `labels` (N,) from 1 to 1000. Classes are named by these numbers, whose order is that of
    the set's `map_clsloc.txt`, not of the names of ImageNet's folders.

    Source: Chrabaszcz, Loshchilov and Hutter, "A Downsampled Variant of ImageNet" (2017).
    """
    found = {path.stem.rpartition("_")[2]: path for path in root.glob(IMAGENET_BATCHES)}
    numbers = [str(number) for number in range(1, len(found) + 1)]
    if missing := [number for number in numbers if number not in found]:
        raise FileNotFoundError(
            f"{root}: no {IMAGENET_BATCHES.replace('*', missing[0])}, but {', '.join(map(str, sorted(found)))}"
        )
    parts = [[found[number] for number in numbers], [root / "val_data.npz"]]
    return [_packed(paths, limit) for paths in parts if paths[0].is_file()]


def _packed(paths: Sequence[Path], limit: int) -> ImageSet:
    source = PackedImages(paths)
    labels: list[int] = []
    for path, count in zip(paths, source.counts, strict=True):
        own = _labels(path, read_npz(path, "labels").get("labels"), count)
        if own.min() < 1 or own.max() > IMAGENET_CLASSES:
            raise ValueError(f"{path}: labels run from {own.min()} to {own.max()}, expected 1 to {IMAGENET_CLASSES}")
        labels += own.tolist()
    kept = first_of_each(labels, limit)
    names = [str(label) for label in range(1, IMAGENET_CLASSES + 1)]
    source.kept = np.array(kept)
    return ImageSet(str(paths[0]), names, [labels[i] for i in kept], source)


def _labels(path: Path, labels: np.ndarray | None, count: int) -> np.ndarray:
    """Refuse an array of a file that is no labels of so many images."""
    if labels is None or labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise ValueError(f"{path}: expected labels with one whole number per image, found {_facts(labels)}")
    return labels


class PackedImages(ImageSource):
    """Square images as rows `data` of npz files, channel after channel; may be pickled, every process maps them itself.

    Files without compression are memory-mapped; others are read.

    Args:
        kept: which of all rows; all when None.

    Attributes:
        counts: rows of each file.
    """

    def __init__(self, paths: Sequence[Path], kept: np.ndarray | None = None) -> None:
        self.paths = paths
        self._rows = [mapped_rows(path) for path in paths]
        self.counts = [len(rows) for rows in self._rows]
        self._ends = np.cumsum(self.counts)
        self.kept = np.arange(self._ends[-1]) if kept is None else kept
        widths = {rows.shape[1] for rows in self._rows}
        self.side = math.isqrt(min(widths) // 3)
        if widths != {3 * self.side**2}:
            raise ValueError(
                f"{paths[0]}: expected data (N, 3 * side * side) of one side, found {sorted(widths)} values a row"
            )
        facts = [path.stat() for path in paths]
        self._stamps = [f"{each.st_size}\0{each.st_mtime_ns}" for each in facts]

    def __reduce__(self) -> tuple[type[PackedImages], tuple[Sequence[Path], np.ndarray]]:
        return PackedImages, (self.paths, self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def _place(self, index: int) -> tuple[int, int]:
        """Numbers of a file and of a row in it."""
        row = int(self.kept[index])
        file = int(np.searchsorted(self._ends, row, side="right"))
        return file, row - int(self._ends[file]) + self.counts[file]

    def open(self, index: int) -> Image.Image:
        """One image."""
        file, row = self._place(index)
        planes = self._rows[file][row].reshape(3, self.side, self.side)
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))

    def name(self, index: int) -> str:
        """Its file and number."""
        file, row = self._place(index)
        return f"{self.paths[file].name}, image {row}"

    def stamp(self, index: int) -> str:
        """The same, with size and time of modification of the file."""
        return f"{self.name(index)}\0{self._stamps[self._place(index)[0]]}"


def mapped_rows(path: Path) -> np.ndarray:
    """The array `data` (N, D), uint8, of a NumPy file of a stranger: memory-mapped, where it is not compressed."""
    try:
        check_archive(path)
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entry = archive.NameToInfo.get("data.npy")
            if entry is None or entry.compress_type != zipfile.ZIP_STORED:
                rows = read_npz(path, "data").get("data")
            else:
                file.seek(_data_start(file, entry))
                rows = _mapped(file, file.tell() + entry.file_size)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read as npz ({error})") from error
    if rows is None or rows.dtype != np.uint8 or rows.ndim != 2 or not rows.size:
        raise ValueError(f"{path}: expected data (N, 3 * side * side) uint8, found {_facts(rows)}")
    return rows


def _data_start(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Find where the bytes of a zip entry begin, after its local header."""
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise ValueError(f"the entry {entry.filename[:80]!r} is not where its zip directory says")
    *_, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    return entry.header_offset + _LOCAL_HEADER.size + name_length + extra_length


def _mapped(file: BinaryIO, end: int) -> np.ndarray:
    """Map the array whose header begins at the file's position and which ends at a byte."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    if file.tell() + math.prod(shape) * dtype.itemsize != end:
        raise ValueError(f"its data {shape} {dtype} has another size")
    return np.memmap(file.name, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def holds(path: Path, name: str) -> bool:
    """Whether a NumPy file that was checked has an array of a name."""
    with zipfile.ZipFile(path) as archive:
        return f"{name}.npy" in archive.namelist()


def read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays of these names, as far as a NumPy file of a stranger has them."""
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names if name in file}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: cannot be read as npz ({error})") from error


def checked_images(path: Path, images: np.ndarray | None) -> np.ndarray:
    """Refuse an array of a file that is no images."""
    if (
        images is None
        or images.dtype != np.uint8
        or images.ndim < 3
        or images.shape[3:] not in SHAPES_AFTER_SIZE
        or not len(images)
    ):
        raise ValueError(f"{path}: expected images (N, H, W[, 1 | 3 | 4]) uint8, found {_facts(images)}")
    return images


def _facts(array: np.ndarray | None) -> str:
    return "none" if array is None else f"{array.shape} {array.dtype}"


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
        columns = {
            kind: next((key for key, feature in dataset.features.items() if type(feature).__name__ == kind), None)
            for kind in ("Image", "ClassLabel")
        }
        if columns["Image"] is None or (columns["ClassLabel"] is None and captions is None):
            found = ", ".join(f"{key} ({type(feature).__name__})" for key, feature in dataset.features.items())
            raise ValueError(f"data.init_args.hub: {name} needs columns of type Image and ClassLabel, found {found}")
        if captions is not None and captions not in dataset.features:
            raise ValueError(
                f"data.init_args.captions: {name} has no column {captions}, but {', '.join(dataset.features)}"
            )
        if columns["ClassLabel"] is None:
            labels, classes = [0] * len(dataset), []
        else:
            labels = [int(label) + 1 for label in dataset[columns["ClassLabel"]]]
            classes = list(dataset.features[columns["ClassLabel"]].names)
        if not labels or (classes and min(labels) < 1):
            raise ValueError(f"data.init_args.hub: {name}, split {split}: empty, or images without class")
        kept = first_of_each(labels, limit)
        texts = None
        if captions is not None:
            column = list(dataset[captions])
            texts = [[column[index]] if isinstance(column[index], str) else list(column[index]) for index in kept]
        source = HubImages(dataset, str(columns["Image"]), kept)
        sets.append(ImageSet(f"{name}, {split}", classes, [labels[i] for i in kept], source, texts))
    return sets
