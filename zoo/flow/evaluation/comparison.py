"""Samples against real images: all figures of one extractor, with the reference's share computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_one_of
from zoo.flow.data.images import to_values
from zoo.flow.evaluation import metrics as distances
from zoo.flow.evaluation.extractors import BATCH, Classifier, Extractor, cached_features
from zoo.flow.rendering import to_pixels

_PAIRS = 2**24  # distances at once


def spread(features: Tensor, labels: Sequence[int]) -> dict[int, float]:
    """Root mean square distance of features (N, D) from their class's mean, by label; classes of one are left out."""
    classes = torch.tensor(list(labels))
    found = {}
    for label in sorted(set(labels)):
        own = features[classes == label].double()
        if len(own) > 1:
            found[label] = float(own.var(dim=0).sum().sqrt())
    return found


def spread_ratio(real: Tensor, real_labels: Sequence[int], fake: Tensor, fake_labels: Sequence[int]) -> float:
    """Mean spread of samples within classes over that of real ones: 1 is as varied, 0 is one sample per class.

    Classes that one side lacks do not count; NaN where none is left.
    """
    ours, theirs = spread(fake, fake_labels), spread(real, real_labels)
    shared = ours.keys() & theirs.keys()
    total = sum(theirs[label] for label in shared)
    return sum(ours[label] for label in shared) / total if total > 0 else float("nan")


def nearest_distances(points: Tensor, others: Tensor) -> Tensor:
    """Euclidean distance (N,), float64, of each point (N, D) to the nearest of others (M, D); exactly 0 for a copy."""
    points, others = distances.checked_pair(points, others, 1)
    squares = others.square().sum(dim=1)
    found = []
    for rows in points.split(max(1, _PAIRS // len(others))):
        # products find the nearest fast, differences tell its distance exactly
        nearest = (squares - 2 * rows @ others.T).argmin(dim=1)
        found.append((rows - others[nearest]).norm(dim=1))
    return torch.cat(found)


QUICK = ("frechet", "accuracy", "spread", "nearest")
METRICS = (*QUICK, "manifold")
MANIFOLD_ROWS = 5000  # of each set, drawn; the distances of all pairs must fit into memory


@dataclass(frozen=True)
class Samples:
    """Images or features, with or without classes.

    Attributes:
        pixels: (N, H, W, C), uint8; None where only features are known.
        labels: one per image, 1 to K; None for none.
        features: (N, D); None where they are to be computed.
        classes: names in the order of the labels, where known.
        statistics: of features of real images, where nothing else is known of them; `features` are then (0, D).
    """

    pixels: np.ndarray | None
    labels: list[int] | None = None
    features: Tensor | None = None
    classes: list[str] | None = None
    statistics: distances.Moments | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self):
            raise ValueError(f"expected one label per image, found {len(self)} images and {len(self.labels)} labels")

    def __len__(self) -> int:
        if self.pixels is not None:
            return len(self.pixels)
        return len(self.features) if self.features is not None else 0

    def images(self) -> Tensor:
        """Images (N, C, H, W), float32 in [-1, 1]."""
        if self.pixels is None:
            raise ValueError("only features are known of these samples, images are needed")
        return to_values(self.pixels)


def samples_of(images: Tensor, labels: Sequence[int] | None = None) -> Samples:
    """Samples of images (N, C, H, W), float in [-1, 1]: clipped and rounded to 8 bits, as a file would hold them."""
    return Samples(to_pixels(images), None if labels is None else list(labels))


class Comparison:
    """Figures of samples against a reference. May be called, and then is a `Quality` of `zoo.flow.evaluation.tables`.

    Args:
        reference: real images that the generator was not trained on. Of statistics alone only the Fréchet distance can
            be had.
        extractor: feature net; a `Classifier` also tells the accuracy. None where both sides are features.
        train: images that the generator was trained on, for the distances that show copying.
        metrics: of `METRICS`.
        cache: folder for features of the reference, kept by a hash of images and extractor; None for none.
        batch_size: images through the extractor at once.
        seed: of subsets and projections.
    """

    def __init__(
        self,
        reference: Samples,
        extractor: Extractor | None,
        train: Samples | None = None,
        metrics: Sequence[str] = QUICK,
        cache: Path | None = None,
        batch_size: int = BATCH,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        for name in metrics:
            check_one_of(METRICS, metrics=name)
        self.reference = reference
        self.extractor = extractor
        self.train = train
        known = reference.statistics
        self.metrics = tuple(name for name in metrics if known is None or name == "frechet")
        if known is not None and not self.metrics:
            raise ValueError(f"of mean and covariance alone frechet can be had, not {', '.join(metrics)}")
        self.batch_size = batch_size
        self.device = device
        self.seed = seed
        self.real = self.features(reference, cache)
        if extractor is not None and known is not None and extractor.dims != len(known.mean):
            raise ValueError(
                f"the reference has statistics of {len(known.mean)} features, the extractor gives {extractor.dims}"
            )
        self.statistics = known or distances.FeatureStatistics(self.real.shape[1]).update(self.real)
        self._held_out_nearest = self._nearest(reference)

    def __call__(self, images: Tensor, labels: Sequence[int] | None) -> dict[str, float]:
        """Figures of images (N, C, H, W), float about in [-1, 1]."""
        return self.figures(samples_of(images, labels))

    def features(self, samples: Samples, cache: Path | None = None) -> Tensor:
        """Features (N, D), float32 on the CPU."""
        if samples.features is not None:
            return samples.features
        if self.extractor is None or samples.pixels is None:
            raise ValueError("features of images need an extractor: give one, or features on both sides")
        return cached_features(self.extractor, samples.pixels, cache, self.batch_size, self.device)

    def figures(self, samples: Samples, features: Tensor | None = None) -> dict[str, float]:
        """All figures that can be had, by name; the features of the samples may be given where they are known.

        Returns:
            Those whose metric was asked for: `frechet`; `precision`, `recall`, `density`,
            `coverage`; `accuracy`, the share of samples that the classifier takes for their
            label; `std_ratio`, the spread of features around their class's mean as a share of the reference's, averaged
            over classes; `nearest`, the median distance of a sample to the nearest training image in pixels (Euclidean,
            of values in [-1, 1]), and `nearest_ratio`, the same as a share of that of the reference: near 0 for copies.
        """
        fake = self.features(samples) if features is None else features
        found: dict[str, float] = {}
        if "frechet" in self.metrics:
            found["frechet"] = distances.frechet_distance(self.statistics, fake)
        if "accuracy" in self.metrics and (right := self.right(samples, fake)) is not None:
            found["accuracy"] = float(right.mean())
        if "spread" in self.metrics and samples.labels is not None and self.reference.labels is not None:
            found["std_ratio"] = spread_ratio(self.real, self.reference.labels, fake, samples.labels)
        if "nearest" in self.metrics and (near := self._nearest(samples)) is not None:
            found["nearest"] = float(near.median())
            if self._held_out_nearest is not None:
                found["nearest_ratio"] = found["nearest"] / max(float(self._held_out_nearest.median()), distances.TINY)
        if "manifold" in self.metrics:
            found |= distances.manifold_scores(self._some(self.real), self._some(fake))
        return found

    def right(self, samples: Samples, features: Tensor) -> np.ndarray | None:
        """Whether the classifier takes each sample for its label (N,), 0 or 1; None without classifier or labels."""
        if not isinstance(self.extractor, Classifier) or samples.labels is None:
            return None
        return (np.array(self.extractor.predict(features)) == np.array(samples.labels)).astype(float)

    def by_class(self, samples: Samples, features: Tensor) -> list[dict[str, Any]]:
        """Figures of each class that samples and reference share.

        Returns:
            Rows with `label`, `class`, `samples`, `reference` (how many); `accuracy` and `nearest` where known;
            `mean_distance` of the two means, and `std_ratio`. Empty where a side has no labels.
        """
        if samples.labels is None or self.reference.labels is None:
            return []
        right, near = self.right(samples, features), self._nearest(samples)
        fake_labels, real_labels = np.array(samples.labels), np.array(self.reference.labels)
        names = self.reference.classes or samples.classes
        rows = []
        for label in sorted(set(samples.labels) & set(self.reference.labels)):
            chosen, real = fake_labels == label, real_labels == label
            fakes, reals = features[torch.from_numpy(chosen)], self.real[torch.from_numpy(real)]
            row: dict[str, Any] = {
                "label": label,
                "class": names[label - 1] if names and label <= len(names) else str(label),
                "samples": int(chosen.sum()),
                "reference": int(real.sum()),
                "mean_distance": float((fakes.mean(dim=0) - reals.mean(dim=0)).norm()),
                "std_ratio": spread_ratio(reals, [label] * len(reals), fakes, [label] * len(fakes)),
            }
            if right is not None:
                row["accuracy"] = float(right[chosen].mean())
            if near is not None:
                row["nearest"] = float(near[torch.from_numpy(chosen)].median())
            rows.append(row)
        return rows

    def _nearest(self, samples: Samples) -> Tensor | None:
        if "nearest" not in self.metrics or self.train is None or samples.pixels is None or self.train.pixels is None:
            return None
        return nearest_distances(samples.images().flatten(1), self.train.images().flatten(1))

    def _some(self, features: Tensor) -> Tensor:
        if len(features) <= MANIFOLD_ROWS:
            return features
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(self.seed))
        return features[order[:MANIFOLD_ROWS]]
