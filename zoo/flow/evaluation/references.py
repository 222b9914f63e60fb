"""What generated images are compared with, and the feature net that sees both, as a command line names them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from zoo.common.ranges import one_of
from zoo.flow.evaluation.classifier import cached_digits_classifier
from zoo.flow.evaluation.comparison import Samples
from zoo.flow.evaluation.extractors import Extractor, Pixels, TorchScriptExtractor
from zoo.flow.evaluation.files import read_digits, read_samples
from zoo.flow.evaluation.inception import load_inception

ExtractorName = Literal["digits", "pixels", "inception", "script"]
SMALL_PIXELS = 16  # above this side the digits classifier makes no sense


def read_sets(
    reference: Path | None, train: Path | None, size: tuple[int, int] | None, val_every: int, split_seed: int | None
) -> tuple[Samples, Samples | None]:
    """Real images.

    Args:
        reference: those that were not trained on; None for scikit-learn's digits.
        train: those that were trained on, where they are known.
        size: height (and width) and channels of the generated images; None for features.

    Returns:
        Held-out and training images of that size; None where they are not known.

    Raises:
        FileNotFoundError: when a set is missing.
        ValueError: when the arguments do not go together.
    """
    if reference is not None:
        sides = size or (None, None)
        return read_samples(reference, *sides), None if train is None else read_samples(train, *sides)
    if train is not None:
        raise ValueError("--train without --reference: the digits bring their own training images")
    if size is None:
        raise ValueError("features were given: give --reference, features of real images by the same net")
    known, real = read_digits(val_every, split_seed, *size)
    return real, known


def build_extractor(
    name: ExtractorName,
    shape: Sequence[int],
    train: Samples | None,
    weights: Path | None = None,
    weights_resolution: int = 299,
    seed: int = 0,
    cache: Path | None = None,
) -> Extractor:
    """The feature net that a user asked for.

    Args:
        name: see `zoo.flow.evaluation.evaluate.evaluate`.
        shape: of a generated image, height, width and channels.
        train: images that the digits classifier is trained on.
        weights: file of "inception" and "script".
        weights_resolution: of "script", in pixels.
        cache: folder of trained digits classifiers.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when what it needs is missing.
        ImportError: for "inception" without torchvision.
    """
    one_of(get_args(ExtractorName), extractor=name)
    if name == "pixels":
        return Pixels(math.prod(shape))
    if name == "digits":
        if train is None or train.pixels is None or train.labels is None:
            raise ValueError('extractor "digits" is trained on labelled images: give --train, or another extractor')
        if shape[0] > SMALL_PIXELS:
            raise ValueError(
                f'extractor "digits" is for images of at most {SMALL_PIXELS} pixels, found {shape[0]}: '
                'take "inception", "script" or "pixels"'
            )
        return cached_digits_classifier(train.images(), train.labels, seed, cache)
    if weights is None:
        raise ValueError(f'extractor "{name}" needs its file: give --weights FILE')
    return load_inception(weights) if name == "inception" else TorchScriptExtractor(weights, weights_resolution)
