"""Reading what is to be evaluated: folders of pictures, npz files of pictures or features, scikit-learn's digits."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from zoo.common.checks import check_at_least
from zoo.flow.data import image_sets
from zoo.flow.data.images import ArrayImages, FileImages, Framing, ImageSource, decode_all
from zoo.flow.evaluation.comparison import Samples
from zoo.flow.evaluation.extractors import read_features
from zoo.flow.evaluation.metrics import Moments
from zoo.flow.inference.generate import LABELS_NAME

GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B")
SHOW_PROGRESS = 10_000  # pictures, which take some seconds to read
_SHOWN = 5  # names in a message


def read_samples(path: Path, resolution: int | None = None, channels: int | None = None) -> Samples:
    """Read a set of samples or real images.

    Args:
        path: one of these.

            - a folder that `zoo sample` wrote: pictures and `labels.csv`;
            - a folder of pictures, without labels;
            - a folder of folders, one per class, labelled from 1 in sorted order;
            - an npz with `images` (N, H, W[, C]) uint8 and perhaps `labels` (`zoo.flow.data.image_sets.npz`);
            - an npz with `features` (N, D) and perhaps `labels`, whole numbers from 1;
            - an npz with `mu` (D,) and `sigma` (D, D): mean and unbiased covariance of the features of real images, as
              pytorch-fid, ADM and EDM write them.
        resolution: height and width that pictures are resized to (bilinear, antialiased); those of the first when None.
        channels: 3 for RGB, 1 for grey; as the first picture when None.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".npz":
        return _read_npz(path, resolution, channels)
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: expected a folder of pictures or an npz file")
    if (path / LABELS_NAME).is_file():
        files, labels = _listed(path)
        return Samples(_pixels(FileImages(path, files), resolution, channels), labels)
    files = sorted(file for file in path.glob("[!.]*") if file.suffix.lower() in image_sets.SUFFIXES)
    if files:
        return Samples(_pixels(FileImages(path, files), resolution, channels))
    images = image_sets.folder(path)
    return Samples(_pixels(images.source, resolution, channels), images.labels, None, images.classes)


def read_digits(val_every: int, split_seed: int | None, resolution: int, channels: int) -> tuple[Samples, Samples]:
    """Scikit-learn's digits, the training and the held-out ones, split as `ImageData` does with the same arguments."""
    check_at_least(2, val_every=val_every)
    images = image_sets.digits()
    pixels = _pixels(images.source, resolution, channels)
    chosen = np.array(image_sets.held_out(images.labels, val_every, split_seed))
    labels = np.array(images.labels)
    train, held = (Samples(pixels[part], labels[part].tolist(), None, images.classes) for part in (~chosen, chosen))
    return train, held


def _read_npz(path: Path, resolution: int | None, channels: int | None) -> Samples:
    found = image_sets.read_npz(path, "features", "labels")
    if "features" in found:
        features, labels = read_features(path)
        return Samples(None, labels, features)
    if image_sets.holds(path, "mu"):
        statistics = read_statistics(path)
        return Samples(None, features=torch.zeros(0, len(statistics.mean)), statistics=statistics)
    if "labels" in found:
        images = image_sets.npz(path)
        return Samples(_pixels(images.source, resolution, channels), images.labels, None, images.classes)
    bare = image_sets.checked_images(path, image_sets.read_npz(path, "images").get("images"))
    return Samples(_pixels(ArrayImages(bare), resolution, channels))


def read_statistics(path: Path) -> Moments:
    """Mean and covariance of an npz with `mu` and `sigma`.

    Raises:
        ValueError: when they are of other shapes than a mean and its covariance, or no such numbers.
    """
    found = image_sets.read_npz(path, "mu", "sigma")
    facts = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in found.items())
    size, kinds = found["mu"].size if "mu" in found else 0, {array.dtype.kind for array in found.values()}
    if not size or [array.shape for array in found.values()] != [(size,), (size, size)] or kinds != {"f"}:
        raise ValueError(f"{path}: expected floats mu (D,) and sigma (D, D), found {facts}")
    known = Moments(*(torch.from_numpy(array.astype(np.float64)) for array in found.values()))
    symmetric = torch.allclose(known.covariance, known.covariance.T, rtol=1e-3, atol=1e-6)
    if not symmetric or known.covariance.diagonal().min() < 0 or not known.mean.isfinite().all():
        raise ValueError(f"{path}: mu and sigma are no mean and covariance: not finite, or sigma is not symmetric")
    return known


def _listed(folder: Path) -> tuple[list[Path], list[int] | None]:
    """Pictures and labels that labels.csv names; no labels where all are 0."""
    source = folder / LABELS_NAME
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        files, labels = [folder / row["file"] for row in rows], [int(row["label"]) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source}: expected the columns file and label, whole numbers ({error})") from error
    if not files:
        raise ValueError(f"{source} names no picture")
    if files[0].suffix == ".npy":
        raise ValueError(f"{folder} holds no images; `zoo compare-samplers --point_set` judges points")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder}: {len(missing)} of the {len(files)} pictures of {LABELS_NAME} are missing "
            f"({', '.join(missing[:_SHOWN])}): the sampling did not end, call it again"
        )
    if 0 < labels.count(0) < len(labels):
        raise ValueError(f"{source}: some labels are 0, the null class: those samples belong to no class")
    return files, labels if labels[0] else None


def _pixels(source: ImageSource, resolution: int | None, channels: int | None) -> np.ndarray:
    if resolution is None or channels is None:
        with source.open(0) as first:
            mode = first.mode
        resolution = resolution or source.upright(0).height
        channels = channels or (1 if mode in GREY_MODES else 3)
    return np.stack(list(decode_all(source, Framing(resolution, channels), len(source) > SHOW_PROGRESS)))
