"""Solvers and guidance scales of a run, compared by quality at equal cost."""

from __future__ import annotations

from pathlib import Path

from zoo.common.locks import writes_into
from zoo.flow.data import points
from zoo.flow.evaluation import tables
from zoo.flow.evaluation.references import ExtractorName, build_quality
from zoo.flow.inference.drawing import load_sampler
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.solvers import Method


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
