"""What a sweep of solvers and guidance scales judges samples by: real images, or points of a known set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from zoo.common.locks import writes_into
from zoo.flow.data import points
from zoo.flow.evaluation import tables
from zoo.flow.evaluation.comparison import Comparison
from zoo.flow.evaluation.metrics import chamfer
from zoo.flow.evaluation.references import ExtractorName, build_extractor, read_sets
from zoo.flow.evaluation.tables import Quality
from zoo.flow.inference.drawing import load_sampler
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.solvers import Method

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

    The other arguments are those of `zoo.flow.evaluation.evaluate.evaluate`.

    Args:
        sampler: whose samples are judged.

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


@writes_into("output")
def sweep_run(
    run: Path,
    output: Path,
    point_set: points.PointSet | None = None,
    reference: Path | None = None,
    train: Path | None = None,
    extractor: ExtractorName = "digits",
    weights: Path | None = None,
    count: int = 900,
    labels: list[str | int] | None = None,
    seed: int = 63,
    methods: list[Method] | None = None,
    budgets: tuple[int, ...] = (1, 2, 5, 10, 20, 50),
    scales: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    guidance: Guidance | None = None,
    val_every: int = 10,
    split_seed: int | None = None,
    device: str = "cpu",
) -> None:
    """Compare solvers and guidance scales by quality at equal numbers of net calls (NFE): tables, JSON and plots.

    Args:
        run: run folder, checkpoint or export.
        output: folder for solvers.json, solvers.png, guidance.json and guidance.png.
        point_set: the set that a net of points was trained on; judged by the Chamfer distance to as many points.
        reference: real images, as for `zoo evaluate flow`; scikit-learn's digits when not given.
        train: the training images, likewise.
        extractor: see `zoo evaluate flow`.
        weights: file of the extractor, where it needs one.
        count: samples in each cell.
        labels: classes by number or name, taken in turns; all when not given.
        seed: of the noise, which all cells share.
        methods: solvers; all when not given, '[]' leaves that table out.
        budgets: net calls for a sample.
        scales: of guidance, for a net with classes.
        guidance: of the first table; the run's when not given.
        val_every: of the digits' split, as in training.
        split_seed: of the digits' split, as in training.
        device: torch device.
    """
    sampler = load_sampler(run, None, guidance, device=device)
    quality = build_quality(
        sampler, point_set, reference, train, extractor, weights, val_every, split_seed, device=device
    )
    chosen = tables.METHODS if methods is None else methods
    tables.sweep(sampler, output, quality, count, sampler.label_numbers(labels), seed, chosen, budgets, scales)
