"""What samples are compared with, and the feature net for both, as a command line names them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from zoo.common.checks import check_one_of
from zoo.flow.data import points
from zoo.flow.data.images import Framing
from zoo.flow.evaluation.comparison import Comparison
from zoo.flow.evaluation.digits_classifier import train_digits_classifier
from zoo.flow.evaluation.features import FeatureExtractor, PixelFeatures
from zoo.flow.evaluation.fid_inception import load_fid_inception
from zoo.flow.evaluation.metrics import Moments, chamfer
from zoo.flow.evaluation.samples import SampleSet, read_digits, read_reference, read_samples

ExtractorName = Literal["digits", "pixels", "fid"]
Quality = Callable[[Tensor, list[int] | None], Mapping[str, float]]
"""Metrics of samples (B, ...), float32 on the CPU, and their labels (None without classes)."""

MAX_DIGITS_SIDE = 16  # pixels; the classifier of 8 x 8 images makes no sense above


def read_sets(
    reference: Path | None,
    train: Path | None,
    framing: Framing,
    val_every: int,
    split_seed: int | None,
    classes: Sequence[str] | None = None,
) -> tuple[SampleSet | Moments, SampleSet | None]:
    """Held-out and, where they are known, training images: those named, or scikit-learn's digits.

    Args:
        framing: size of the generated images, and how the training read its images.
        classes: of the generated images, where known.
    """
    if reference is not None:
        real = read_reference(reference, framing)
        train_images = None if train is None else read_samples(train, framing=framing)
    elif train is not None:
        raise ValueError("--train without --reference: the digits bring their own training images")
    else:
        train_images, real = read_digits(val_every, split_seed, framing.resolution, framing.channels)
    sets = [part.classes for part in (real, train_images) if isinstance(part, SampleSet)]
    # numbers from 1 stand for names that are not known
    names = {tuple(each) for each in (classes, *sets) if each and each != [str(n + 1) for n in range(len(each))]}
    if len(names) > 1:
        listed = "; ".join(", ".join(each) for each in sorted(names))
        raise ValueError(f"generated, reference and training images have different classes: {listed}")
    return real, train_images


def build_extractor(
    name: ExtractorName,
    shape: Sequence[int],
    train: SampleSet | None,
    weights: Path | None = None,
) -> FeatureExtractor:
    """The feature net that a user asked for, for images of shape (H, W, C); see `zoo evaluate flow`.

    Args:
        train: labelled images that "digits" is trained on.
        weights: file of "fid".
    """
    check_one_of(get_args(ExtractorName), extractor=name)
    if name == "pixels":
        return PixelFeatures(math.prod(shape))
    if name == "digits":
        if train is None or train.labels is None:
            raise ValueError('extractor "digits" is trained on labelled images: give --train, or another extractor')
        if shape[0] > MAX_DIGITS_SIDE:
            raise ValueError(
                f'extractor "digits" is for images of at most {MAX_DIGITS_SIDE} pixels, found {shape[0]}: '
                'take "fid" or "pixels"'
            )
        return train_digits_classifier(train.images(), train.labels)
    if weights is None:
        raise ValueError(f'extractor "{name}" needs its file: give --weights FILE')
    return load_fid_inception(weights)


REFERENCE_SEED = 1  # of the points; training draws with the run's seed


def build_quality(
    shape: tuple[int, ...],
    point_set: points.PointSet | None = None,
    reference: Path | None = None,
    train: Path | None = None,
    extractor: ExtractorName = "digits",
    weights: Path | None = None,
    val_every: int = 10,
    split_seed: int | None = None,
    device: str = "cpu",
    cache: Path | None = Path("runs/cache"),
    classes: Sequence[str] | None = None,
    framing: Framing | None = None,
) -> Quality:
    """What evaluates samples of a shape: points of a set, or images as `zoo evaluate flow` does."""
    if point_set is not None:
        if shape != (2,):
            raise ValueError(f"samples of shape {shape} are no points of {point_set}")
        return lambda samples, labels: {
            "chamfer": chamfer(samples, points.draw(point_set, len(samples), REFERENCE_SEED))
        }
    if len(shape) != 3:
        raise ValueError(f"samples of shape {shape} are no images: name the set that they are points of (--point_set)")
    framing = framing or Framing(shape[-1], shape[0])
    real, train_images = read_sets(reference, train, framing, val_every, split_seed, classes)
    net = build_extractor(extractor, (*shape[1:], shape[0]), train_images, weights)
    return Comparison(real, net, train_images, cache=cache, device=device)
