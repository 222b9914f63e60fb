"""Sets of images to evaluate or to compare with: folders, npz files, scikit-learn's digits."""

from __future__ import annotations

import csv
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.safe_load import check_archive
from zoo.convert.settings import read_settings_file
from zoo.flow.data import image_sets
from zoo.flow.data.images import ArrayImages, FileImages, Framing, ImageSource, decode_all, to_values
from zoo.flow.evaluation.metrics import Moments
from zoo.flow.inference.generate import LABELS_NAME
from zoo.flow.rendering import to_pixels

GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B")
SHOW_PROGRESS = 10_000  # images, which take some seconds to read
CHANNELS = ((), (1,), (3,), (4,))  # shapes of a pixel
NAMED = 5  # missing files in a message


@dataclass(frozen=True)
class SampleSet:
    """Images, with or without classes.

    Attributes:
        pixels: (N, H, W, C), uint8.
        labels: one per image, 1 to K; None for none.
        classes: names in the order of the labels, where known.
        framing: of samples, how the training read its images, where known.
    """

    pixels: np.ndarray
    labels: list[int] | None = None
    classes: list[str] | None = None
    framing: Framing | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self):
            raise ValueError(f"expected one label per image, found {len(self)} images and {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.pixels)

    def images(self) -> Tensor:
        """Images (N, C, H, W), float32 in [-1, 1]."""
        return to_values(self.pixels)


def quantise_samples(images: Tensor, labels: Sequence[int] | None = None) -> SampleSet:
    """Clip and round images (N, C, H, W), float in [-1, 1], to 8 bits, as a file would hold them."""
    return SampleSet(to_pixels(images), None if labels is None else list(labels))


def matching_labels(labels: Sequence[int], count: int) -> list[int]:
    """So many labels, sorted, in the proportions of others: the classes' shares then add nothing to a distance.

    Source: the method of largest remainders.
    """
    if count < 1 or not labels:
        raise ValueError(f"expected a count of at least 1 and some labels, found {count} and {len(labels)} labels")
    shares = {label: count * number / len(labels) for label, number in sorted(Counter(labels).items())}
    counts = {label: int(share) for label, share in shares.items()}
    by_remainder = sorted(shares, key=lambda label: counts[label] - shares[label])
    for label in by_remainder[: count - sum(counts.values())]:
        counts[label] += 1
    return [label for label, number in counts.items() for _ in range(number)]


def read_samples(path: Path, resolution: int | None = None, framing: Framing | None = None) -> SampleSet:
    """Read generated or real images.

    Args:
        path: a folder that `zoo sample` wrote (images and `labels.csv`); a folder of images, without labels; a folder
            of folders, one per class, labelled from 1 in sorted order; or an npz with `images` (N, H, W[, C]) uint8 and
            perhaps `labels` (N,), whole numbers from 1.
        resolution: height and width that images are resized to (bilinear, antialiased); those of the first when None.
        framing: of real images, in place of the resolution; RGB or grey as the first image when None.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".npz":
        return _read_arrays(path, resolution, framing)
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of images or an npz file")
    if (path / LABELS_NAME).is_file():
        files, labels = _read_labels(path)
        source = path / "settings.json"
        settings = read_settings_file(source) if source.is_file() else {}
        pixels = _decode(FileImages(path, files), resolution, framing)
        framing = Framing(pixels.shape[1], pixels.shape[3], settings.get("resize") or "squash")
        if isinstance(background := settings.get("background"), list):
            framing = replace(framing, background=tuple(background))
        return SampleSet(pixels, labels, settings.get("classes"), framing)
    if parts := image_sets.find_splits(path):
        raise ValueError(f"{path} holds training and held-out images: name one of {parts[0]} and {parts[1]}")
    images = image_sets.folder(path)
    labels = images.labels if images.classes else None
    return SampleSet(_decode(images.source, resolution, framing), labels, images.classes or None)


def read_reference(path: Path, framing: Framing) -> SampleSet | Moments:
    """Read real images, or the mean and covariance of their features: an npz with `mu` and `sigma`."""
    if Path(path).suffix == ".npz" and Path(path).is_file() and "mu" in read_npz(path, "mu"):
        return read_statistics(path)
    return read_samples(path, framing=framing)


def read_digits(val_every: int, split_seed: int | None, resolution: int, channels: int) -> tuple[SampleSet, SampleSet]:
    """Scikit-learn's digits, the training and the held-out ones, split as `ImageData` does with the same arguments."""
    check_at_least(2, val_every=val_every)
    images = image_sets.digits()
    pixels = _decode(images.source, None, Framing(resolution, channels))
    held_out = np.array(image_sets.holdout_mask(images.labels, val_every, split_seed))
    labels = np.array(images.labels)
    parts = [SampleSet(pixels[part], labels[part].tolist(), images.classes) for part in (~held_out, held_out)]
    return parts[0], parts[1]


def read_statistics(path: Path) -> Moments:
    """Mean and unbiased covariance of features, from an npz as pytorch-fid, ADM and EDM write them.

    Raises:
        ValueError: `mu` (D,) and `sigma` (D, D) have other shapes, or are no mean and covariance.
    """
    arrays = read_npz(path, "mu", "sigma")
    size, kinds = arrays["mu"].size if "mu" in arrays else 0, {array.dtype.kind for array in arrays.values()}
    if not size or [array.shape for array in arrays.values()] != [(size,), (size, size)] or kinds != {"f"}:
        content = ", ".join(f"{name} {_describe_array(array)}" for name, array in arrays.items())
        raise ValueError(f"{path}: expected floats mu (D,) and sigma (D, D), found {content}")
    moments = Moments(*(torch.from_numpy(array.astype(np.float64)) for array in arrays.values()))
    symmetric = torch.allclose(moments.covariance, moments.covariance.T, rtol=1e-3, atol=1e-6)
    if not symmetric or moments.covariance.diagonal().min() < 0 or not moments.mean.isfinite().all():
        raise ValueError(f"{path}: mu and sigma are no mean and covariance: not finite, or sigma is not symmetric")
    return moments


def read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays of these names, as far as an untrusted NumPy file has them."""
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names if name in file}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: cannot be read as npz ({error})") from error


def _read_arrays(path: Path, resolution: int | None, framing: Framing | None) -> SampleSet:
    arrays = read_npz(path, "images", "labels")
    images, labels = arrays.get("images"), arrays.get("labels")
    if images is None or images.dtype != np.uint8 or images.ndim < 3 or images.shape[3:] not in CHANNELS:
        raise ValueError(f"{path}: expected images (N, H, W[, 1 | 3 | 4]) uint8, found {_describe_array(images)}")
    if labels is not None and (
        labels.shape != (len(images),) or labels.dtype.kind not in "iu" or (labels.size and labels.min() < 1)
    ):
        raise ValueError(f"{path}: expected labels ({len(images)},), whole numbers from 1, {_describe_array(labels)}")
    pixels = _decode(ArrayImages(images), resolution, framing)
    return SampleSet(pixels, None if labels is None else labels.tolist())


def _describe_array(array: np.ndarray | None) -> str:
    return "none" if array is None else f"{array.shape} {array.dtype}"


def _read_labels(folder: Path) -> tuple[list[Path], list[int] | None]:
    """Images and labels that labels.csv names; no labels where all are 0."""
    source = folder / LABELS_NAME
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        files, labels = [folder / row["file"] for row in rows], [int(row["label"]) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source}: expected the columns file and label, whole numbers ({error})") from error
    if not files:
        raise ValueError(f"{source} names no image")
    if files[0].suffix == ".npy":
        raise ValueError(f"{folder} holds no images; `zoo compare-samplers --point_set` evaluates points")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder}: {len(missing)} of the {len(files)} images of {LABELS_NAME} are missing "
            f"({', '.join(missing[:NAMED])}): the sampling did not end, call it again"
        )
    if 0 < labels.count(0) < len(labels):
        raise ValueError(f"{source}: some labels are 0, the null class: those samples belong to no class")
    return files, labels if labels[0] else None


def _decode(source: ImageSource, resolution: int | None, framing: Framing | None) -> np.ndarray:
    if not len(source):
        raise ValueError("expected at least one image, found none")
    if framing is None:
        with source.open(0) as first:
            channels = 1 if first.mode in GREY_MODES else 3
        framing = Framing(resolution or source.apply_orientation(0).height, channels)
    return np.stack(list(decode_all(source, framing, len(source) > SHOW_PROGRESS)))
