"""What a sweep of solvers and guidance scales judges samples by: real images, or points of a known set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from zoo.flow.data import points
from zoo.flow.evaluation.comparison import Comparison
from zoo.flow.evaluation.metrics import chamfer
from zoo.flow.evaluation.references import ExtractorName, build_extractor, read_sets
from zoo.flow.evaluation.tables import Quality
from zoo.flow.inference.sampler import Sampler

REFERENCE_SEED = 1  # of the points; training draws with the run's seed


class PointQuality:
    """Chamfer distance of points to as many of a known set.

    Args:
        kind: the set, of `zoo.flow.data.points`.
    """

    def __init__(self, kind: points.PointSet) -> None:
        self.kind = kind

    def __call__(self, samples: Tensor, labels: Sequence[int] | None) -> dict[str, float]:
        """Judge points (N, 2)."""
        return {"chamfer": chamfer(samples, points.draw(self.kind, len(samples), REFERENCE_SEED))}


def build_quality(
    sampler: Sampler,
    point_set: points.PointSet | None = None,
    reference: Path | None = None,
    train: Path | None = None,
    extractor: ExtractorName = "digits",
    weights: Path | None = None,
    val_every: int = 10,
    split_seed: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    cache: Path | None = Path("runs/cache"),
) -> Quality:
    """Build what judges a sampler's samples.

    Args:
        sampler: whose samples are judged.
        point_set: the set that a net of points was trained on; None for images.

    Returns:
        A function of samples and labels.

    Raises:
        ValueError: when the sampler makes neither images nor points, or the sets cannot be used.
    """
    shape = tuple(sampler.net.sample_shape)
    if point_set is not None:
        if shape != (2,):
            raise ValueError(f"samples of shape {shape} are no points of {point_set}")
        return PointQuality(point_set)
    if len(shape) != 3:
        raise ValueError(f"samples of shape {shape} are no images: name the set that they are points of (--point_set)")
    real, known = read_sets(reference, train, (shape[-1], shape[0]), val_every, split_seed)
    net = build_extractor(extractor, (*shape[1:], shape[0]), known, weights, 299, seed, cache)
    return Comparison(real, net, known, cache=cache, device=device, seed=seed)
