"""Quality for a number of evaluations: solvers against each other, and guidance scales, as tables.

All cells of a table start from the same noise. NFE counts evaluations of the field for one sample: a guided evaluation
runs the net once on twice the batch and counts as one; `passes` counts rows through the net, so it is two there.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from zoo.common.locks import writes_into
from zoo.common.reports import terminal_table, write_report
from zoo.flow.data import points
from zoo.flow.evaluation.evaluate import describe_run
from zoo.flow.evaluation.references import ExtractorName, Quality, build_quality
from zoo.flow.inference.requests import GenerationRequest, SampleRequests, check_label_conditions, load_sampler
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.guidance import Guidance, NestedGuidance
from zoo.flow.process.sampling import straightness
from zoo.flow.process.solvers import TABLEAUS, Method, Solver

log = logging.getLogger(__name__)

Row = dict[str, Any]

BUDGETS = (1, 2, 5, 10, 20, 50)
SCALES = (1.0, 1.5, 2.0, 3.0, 5.0, 7.5)
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
CAPTION = (
    "NFE: evaluations of the field per sample; a guided one is one call of the net on twice the batch. "
    "@n: n evaluations were made, the most below the budget, or as many as dopri5 chose."
)


def measure(sampler: Sampler, samples: SampleRequests, quality: Quality) -> Row:
    """Generate samples and evaluate them.

    Returns:
        `nfe`, mean evaluations of the field per sample (dopri5's differ by chunk); `passes`, rows through the net per
        sample; `seconds` of sampling; `quality`, the figures.
    """
    labels, seeds = samples
    passes = 0

    def count(net: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal passes
        passes += len(inputs[0])

    hook = sampler.net.register_forward_pre_hook(count)
    started = time.perf_counter()
    try:
        solutions = list(sampler.solutions(labels, seeds))
    finally:
        hook.remove()
    seconds = time.perf_counter() - started
    figures = quality(torch.cat([solution.x for solution in solutions]), labels)
    row = {
        "nfe": round(sum(solution.nfe * len(solution.x) for solution in solutions) / len(seeds), 2),
        "passes": round(passes / len(seeds), 2),
        "seconds": round(seconds, 3),
        "quality": {name: float(value) for name, value in figures.items()},
    }
    log.info("%s: %s", sampler.solver.method, row)
    return row


def solver_table(
    sampler: Sampler,
    samples: SampleRequests,
    quality: Quality,
    methods: Sequence[Method],
    budgets: Sequence[int] = BUDGETS,
    tolerances: Sequence[float] = TOLERANCES,
) -> list[Row]:
    """Measure solvers at budgets of evaluations, dopri5 at tolerances instead, with the sampler's guidance and grid.

    Returns:
        Rows with `series` (the method), `method`, `budget` (None for dopri5), `steps` or `tolerance`, and those of
        `measure`. A budget below one step is left out.
    """
    cells: list[tuple[Row, Solver]] = []
    for method in methods:
        row = {"series": method, "method": method}
        if method == "dopri5":
            cells += [
                ({**row, "budget": None, "tolerance": each}, Solver(method, 1, rtol=each, atol=each))
                for each in tolerances
            ]
        else:
            settings = _steps(method, budgets)
            cells += [({**row, **each}, sampler.solver.using(method, each["steps"])) for each in settings]
    return [row | measure(sampler.using(solver, sampler.guidance), samples, quality) for row, solver in cells]


def guidance_table(
    sampler: Sampler,
    samples: SampleRequests,
    quality: Quality,
    scales: Sequence[float] = SCALES,
    budgets: Sequence[int] = BUDGETS,
    method: Method = "euler",
) -> list[Row]:
    """Measure guidance scales at budgets of evaluations; of the sampler's guidance all but the scale is kept.

    Args:
        scales: 1 is conditional and needs half the passes.
        method: a fixed-step solver.

    Returns:
        Rows with `series` (the scale in words), `scale`, `method`, `budget`, `steps`, and those of `measure`.
    """
    rows = []
    for scale in scales:
        guidance = copy.copy(sampler.guidance) or Guidance()
        guidance.scale = scale
        for setting in _steps(method, budgets):
            solver = sampler.solver.using(method, setting["steps"])
            row = {"series": f"scale {scale:g}", "scale": scale, "method": method, **setting}
            rows.append(row | measure(sampler.using(solver, guidance), samples, quality))
    return rows


def _steps(method: Method, budgets: Sequence[int]) -> list[dict[str, int]]:
    """The most steps of a fixed-step method within each budget of evaluations that allows one."""
    if method not in TABLEAUS:
        raise ValueError(f"guidance is compared at equal NFE: take a fixed-step method, not {method}")
    cost = len(TABLEAUS[method].weights)
    return [{"budget": budget, "steps": budget // cost} for budget in budgets if budget >= cost]


def print_table(rows: Sequence[Row], title: str) -> None:
    """Print one table per figure: a line per series, a column per budget; dopri5 has a line per tolerance."""
    console = Console()
    budgets = sorted({row["budget"] for row in rows if row["budget"] is not None})
    adaptive = any(row["budget"] is None for row in rows)
    heads = ("NFE at most", *map(str, budgets), *(["as needed"] if adaptive else []))
    for name in rows[0]["quality"]:
        lines: dict[str, dict[int | None, str]] = {}
        for row in rows:
            free = row["budget"] is None
            line = f"{row['series']} {row['tolerance']:.0e}" if free else row["series"]
            text = f"{row['quality'][name]:.4g}"
            lines.setdefault(line, {})[row["budget"]] = (
                text if row["nfe"] == row["budget"] else f"{text} @{row['nfe']:g}"
            )
        keys = (*budgets, *([None] if adaptive else []))
        cells = [[line, *(measured.get(key, "") for key in keys)] for line, measured in lines.items()]
        console.print(terminal_table(heads, cells, f"{title}: {name}", heads[:1]))
    console.print(CAPTION)


def compare(
    sampler: Sampler,
    output: Path,
    quality: Quality,
    request: GenerationRequest,
    methods: Sequence[Method] | None = None,
    budgets: Sequence[int] = BUDGETS,
    scales: Sequence[float] = SCALES,
    tolerances: Sequence[float] = TOLERANCES,
) -> dict[str, list[Row]]:
    """Print and write solvers x NFE ("solvers") and, for a net with classes, guidance x NFE ("guidance").

    Returns:
        The rows of `solver_table` and `guidance_table`.
    """
    if scales and isinstance(sampler.guidance, NestedGuidance):
        raise ValueError("a table of guidance has one scale, NestedGuidance several: give --scales '[]'")
    samples = labels, seeds = request.labels_and_seeds(sampler)
    methods = sampler.methods if methods is None else methods
    tables = {"solvers": solver_table(sampler, samples, quality, methods, budgets, tolerances)}
    if labels is not None:
        tables["guidance"] = guidance_table(sampler, samples, quality, scales, budgets)
    tables = {name: rows for name, rows in tables.items() if rows}
    if not tables:
        raise ValueError("nothing to compare: name methods or, for a net with classes, scales, and budgets above 0")
    for name, rows in tables.items():
        print_table(rows, name)
        content = describe_run() | {"samples": len(seeds), "seed": request.seed, "rows": rows}
        write_report(Path(output), {f"{name}.json": content})
    return tables


@writes_into("output")
def compare_solvers(
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
    budgets: tuple[int, ...] = BUDGETS,
    scales: tuple[float, ...] = SCALES,
    guidance: Guidance | None = None,
    val_every: int = 10,
    split_seed: int | None = None,
    device: str = "cpu",
) -> None:
    """Compare solvers and guidance scales by quality at equal numbers of net calls (NFE): tables and JSON.

    Args:
        run: run folder, checkpoint or export.
        output: folder for solvers.json and guidance.json.
        point_set: the set that a net of points was trained on; evaluated by the Chamfer distance to as many points.
        reference: real images, as for `zoo evaluate flow`; scikit-learn's digits when not given.
        train: the training images, likewise.
        extractor: see `zoo evaluate flow`.
        weights: file of the extractor, where it needs one.
        count: samples in each cell.
        labels: classes by number or name, taken in turns; all when not given.
        seed: of the noise of all cells.
        methods: solvers; all that suit the run when not given, '[]' leaves that table out.
        budgets: net calls for a sample.
        scales: of guidance, for a net with classes.
        guidance: of the first table; the run's when not given.
        val_every: of the digits' split, as in training.
        split_seed: likewise.
        device: torch device.
    """
    sampler = load_sampler(run, None, guidance, device=device)
    check_label_conditions(sampler, "compare-samplers")
    judge = point_set, reference, train, extractor, weights, val_every, split_seed, device
    shape = sampler.sample_shape
    framing = sampler.framing(shape[-1]) if len(shape) == 3 else None
    quality = build_quality(shape, *judge, classes=sampler.classes, framing=framing)
    request = GenerationRequest(count, seed, labels)
    compare(sampler, output, quality, request, methods, budgets, scales)


def evaluate_straightness(sampler: Sampler, labels: Sequence[int] | None, seeds: Sequence[int]) -> float:
    """Mean `straightness` of the paths of samples; the solver's grid is that of the integral.

    On pairs, `val/loss` of FlowTask is the same integral along the pairs' own lines (with sigma_min 0, per element).
    """
    sampler.check_request(labels, seeds)
    total = 0.0
    for start in range(0, len(seeds), sampler.chunk):
        part = slice(start, start + sampler.chunk)
        field = sampler.field(None if labels is None else labels[part])
        total += float(straightness(field, sampler.noise(seeds[part]), sampler.solver).sum())
    return total / len(seeds)


def print_straightness(
    run: Path,
    count: int = 256,
    seed: int = 63,
    solver: Solver | None = None,
    guidance: Guidance | None = None,
    device: str = "cpu",
) -> None:
    """Print how far a run's paths are from straight lines; 0 is a net that one Euler step samples exactly.

    Args:
        run: run folder, checkpoint or export.
        count: paths.
        seed: of the noise.
        solver: the run's when not given; its grid is that of the integral.
        guidance: the run's when not given.
        device: torch device.
    """
    sampler = load_sampler(run, solver, guidance, device=device)
    check_label_conditions(sampler, "straightness")
    request = GenerationRequest(count, seed)
    value = evaluate_straightness(sampler, *request.labels_and_seeds(sampler))
    print(f"straightness of {count} paths: {value:.4f}")
