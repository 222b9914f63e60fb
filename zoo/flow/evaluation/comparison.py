"""Samples against real images: all figures of one extractor, with the reference's share computed once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_one_of
from zoo.flow.evaluation import metrics as distances
from zoo.flow.evaluation.features import ClassifierFeatures, FeatureExtractor, cached_features
from zoo.flow.evaluation.metrics import Moments
from zoo.flow.evaluation.samples import SampleSet, quantise_samples

_PAIRS = 2**24  # distances at once


def spread(features: Tensor, labels: Sequence[int]) -> dict[int, float]:
    """Root mean square distance of features (N, D) from their class's mean, by label; classes of one are left out."""
    classes = torch.tensor(list(labels))
    spreads = {}
    for label in sorted(set(labels)):
        members = features[classes == label].double()
        if len(members) > 1:
            spreads[label] = float(members.var(dim=0).sum().sqrt())
    return spreads


def spread_ratio(real: Tensor, real_labels: Sequence[int], fake: Tensor, fake_labels: Sequence[int]) -> float:
    """Mean spread of samples within classes over that of real ones: 1 is as varied, 0 is one sample per class.

    Classes that one side lacks do not count; NaN where none is left.
    """
    fake_spread, real_spread = spread(fake, fake_labels), spread(real, real_labels)
    shared = fake_spread.keys() & real_spread.keys()
    total = sum(real_spread[label] for label in shared)
    return sum(fake_spread[label] for label in shared) / total if total > 0 else float("nan")


def nearest_distances(points: Tensor, others: Tensor) -> Tensor:
    """Euclidean distance (N,), float64, of each point (N, D) to the nearest of others (M, D); exactly 0 for a copy."""
    points, others = distances.checked_pair(points, others)
    squares = others.square().sum(dim=1)
    nearest_of_rows = []
    for rows in points.split(max(1, _PAIRS // len(others))):
        # products find the nearest fast, differences tell its distance exactly
        nearest = (squares - 2 * rows @ others.T).argmin(dim=1)
        nearest_of_rows.append((rows - others[nearest]).norm(dim=1))
    return torch.cat(nearest_of_rows)


METRICS = ("frechet", "accuracy", "spread", "nearest")


class Comparison:
    """Metrics of samples against a reference. May be called, and then is a `Quality` of `references`.

    Args:
        reference: real images that the generator was not trained on. Of their moments alone only the Fréchet distance
            can be had.
        extractor: feature net; with `ClassifierFeatures` there is an accuracy, too.
        train: images that the generator was trained on, for the distances that show copying.
        metrics: of `METRICS`.
        cache: folder for features of the reference, kept by a hash of images and extractor; None for none.

    Raises:
        ValueError: the moments are those of other features, or give none of the metrics.
    """

    def __init__(
        self,
        reference: SampleSet | Moments,
        extractor: FeatureExtractor,
        train: SampleSet | None = None,
        metrics: Sequence[str] = METRICS,
        cache: Path | None = None,
        device: str = "cpu",
    ) -> None:
        for name in metrics:
            check_one_of(METRICS, metrics=name)
        self.extractor = extractor
        self.train = train
        self.device = device
        if isinstance(reference, Moments):
            if extractor.dims != len(reference.mean):
                raise ValueError(
                    f"the reference has mean and covariance of {len(reference.mean)} features, the extractor gives "
                    f"{extractor.dims}: FID statistics go with extractor fid"
                )
            if "frechet" not in metrics:
                raise ValueError(f"of mean and covariance alone frechet can be had, not {', '.join(metrics)}")
            self.metrics: tuple[str, ...] = ("frechet",)
            self.reference: SampleSet | None = None
            self.real = torch.zeros(0, extractor.dims)
            self.moments = reference
        else:
            self.metrics = tuple(metrics)
            self.reference = reference
            self.real = self.features(reference, cache)
            self.moments = distances.moments(self.real)
        self._held_out_nearest = None if self.reference is None else self._nearest(self.reference)

    def __call__(self, images: Tensor, labels: Sequence[int] | None) -> dict[str, float]:
        """Metrics of images (N, C, H, W), float about in [-1, 1]."""
        return self.figures(quantise_samples(images, labels))

    def features(self, samples: SampleSet, cache: Path | None = None) -> Tensor:
        """Features (N, D), float32 on the CPU."""
        return cached_features(self.extractor, samples.pixels, cache, self.device)

    def figures(self, samples: SampleSet, features: Tensor | None = None) -> dict[str, float]:
        """Compute the metrics asked for that can be had, by name, of samples whose features may be given.

        `accuracy` is the share of samples that the classifier takes for their label; `std_ratio` the spread of features
        around their class's mean as a share of the reference's, averaged over classes; `nearest` the median distance of
        a sample to the nearest training image in pixels of [-1, 1]; `nearest_ratio` that as a share of the reference's.
        """
        fake = self.features(samples) if features is None else features
        figures: dict[str, float] = {}
        if "frechet" in self.metrics:
            figures["frechet"] = distances.frechet_distance(self.moments, fake)
        if "accuracy" in self.metrics and (right := self.right(samples, fake)) is not None:
            figures["accuracy"] = float(right.mean())
        real_labels = None if self.reference is None else self.reference.labels
        if "spread" in self.metrics and samples.labels is not None and real_labels is not None:
            figures["std_ratio"] = spread_ratio(self.real, real_labels, fake, samples.labels)
        if "nearest" in self.metrics and (near := self._nearest(samples)) is not None:
            figures["nearest"] = float(near.median())
            if self._held_out_nearest is not None:
                figures["nearest_ratio"] = figures["nearest"] / max(
                    float(self._held_out_nearest.median()), distances.TINY
                )
        if not figures:
            needs = "accuracy needs a classifier and labels, spread labels, nearest the training images"
            raise ValueError(f"no figure of {', '.join(self.metrics)}: {needs}")
        return figures

    def right(self, samples: SampleSet, features: Tensor) -> np.ndarray | None:
        """Whether the classifier takes each sample for its label (N,), 0 or 1; None without classifier or labels."""
        if not isinstance(self.extractor, ClassifierFeatures) or samples.labels is None:
            return None
        return (np.array(self.extractor.predict(features)) == np.array(samples.labels)).astype(float)

    def _nearest(self, samples: SampleSet) -> Tensor | None:
        if "nearest" not in self.metrics or self.train is None:
            return None
        return nearest_distances(samples.images().flatten(1), self.train.images().flatten(1))
