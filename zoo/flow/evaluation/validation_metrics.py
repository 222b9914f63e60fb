"""Fréchet distance and its like at validations, for `checkpoints.monitor` to choose by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from zoo.common.checks import check_at_least
from zoo.flow.evaluation.comparison import Comparison
from zoo.flow.evaluation.controls import matching_labels
from zoo.flow.evaluation.references import build_extractor
from zoo.flow.evaluation.samples import SampleSet, quantise_samples
from zoo.flow.process.sampling import SAMPLES
from zoo.flow.validation_samples import SampleFunction, SampleMetrics
from zoo.training.resume import item_seed

Metric = Literal["frechet", "accuracy", "spread", "nearest"]
FIGURES = {"spread": ("std_ratio",), "nearest": ("nearest", "nearest_ratio")}


class FeatureMetrics(SampleMetrics):
    """Compares as many samples as asked for with the validation images, on features that need no download.

    Args:
        metrics: "frechet", "accuracy" (of the digits classifier), "spread", "nearest"; see `zoo evaluate flow`.
        count: samples, of the validation images' classes in their proportions and always from the same noise.
        every: at which validations, the first and every n-th after it.
        extractor: "digits", a classifier of images of at most 16 x 16 pixels that is trained once, in seconds, on the
            training images; "pixels", for all sizes.
        seed: of noise, classifier and subsets.
        cache: folder that keeps the classifier; null for none.
    """

    def __init__(
        self,
        metrics: Sequence[Metric] = ("frechet",),
        count: int = 256,
        every: int = 1,
        extractor: Literal["digits", "pixels"] = "digits",
        seed: int = 0,
        cache: str | None = "runs/cache",
    ) -> None:
        super().__init__(every)
        check_at_least(2, count=count)
        self.metrics = tuple(metrics)
        self.count = count
        self.extractor: Literal["digits", "pixels"] = extractor
        self.seed = seed
        self.cache = None if cache is None else Path(cache)
        self._comparison: Comparison | None = None
        self._real_labels: list[int] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures."""
        return tuple(name for metric in self.metrics for name in FIGURES.get(metric, (metric,)))

    def compute(self, draw: SampleFunction, num_classes: int, train_set: Any, val_set: Any) -> dict[str, float]:
        """Draw the samples and compare them with all validation images."""
        if self._comparison is None:
            with torch.inference_mode(False), torch.enable_grad():  # the classifier is trained
                real, train_images = _samples(val_set), _samples(train_set)
                shape = real.images().movedim(1, 3).shape[1:]
                net = build_extractor(self.extractor, shape, train_images, seed=self.seed, cache=self.cache)
            self._comparison = Comparison(real, net, train_images, self.metrics, seed=self.seed)
            self._real_labels = real.labels or []
        labels = matching_labels(self._real_labels, self.count) if num_classes else None
        seeds = [item_seed(self.seed, SAMPLES, index) for index in range(self.count)]
        return self._comparison(draw(labels, seeds), labels)


def _samples(dataset: Any) -> SampleSet:
    images, labels = dataset.examples(range(len(dataset)))
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"model.sample_metrics: FeatureMetrics needs images, found {tuple(images.shape[1:])}")
    return quantise_samples(images, labels if all(labels) else None)
