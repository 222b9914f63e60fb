"""Quality for a number of evaluations: solvers against each other, and guidance scales, as tables and figures.

All cells of a table start from the same noise. NFE counts evaluations of the field for one sample: a guided evaluation
runs the net once on twice the batch and counts as one; `passes` counts rows through the net, so it is two there.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from rich.console import Console
from torch import nn

from zoo.common.environment import describe_machine
from zoo.common.locks import writes_into
from zoo.common.reports import new_figure, terminal_table, write_report
from zoo.flow.data import points
from zoo.flow.evaluation.references import ExtractorName, Quality, build_quality
from zoo.flow.inference.requests import SampleRequests, cycle_conditions, image_files, load_sampler, sample_requests
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.guidance import Guidance, NestedGuidance
from zoo.flow.process.sampling import straightness
from zoo.flow.process.solvers import TABLEAUS, Method, Solver

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

Row = dict[str, Any]

METHODS: tuple[Method, ...] = get_args(Method)
BUDGETS = (1, 2, 5, 10, 20, 50)
SCALES = (1.0, 1.5, 2.0, 3.0, 5.0, 7.5)
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
CAPTION = (
    "NFE: evaluations of the field per sample; a guided one is one call of the net on twice the batch. "
    "@n: n evaluations were made, the most below the budget, or as many as dopri5 chose."
)
LOG_RANGE = 3  # figures that differ by more are drawn on a log axis


def measure(
    sampler: Sampler,
    labels: list[int] | None,
    seeds: Sequence[int],
    quality: Quality,
    conditions: GenerationConditions | None = None,
) -> Row:
    """Draw samples and evaluate them.

    Returns:
        `nfe`, mean evaluations of the field per sample (dopri5's differ by chunk); `passes`, rows through the net per
        sample; `seconds` of sampling; `quality`, the figures.
    """
    passes = 0

    def count(net: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal passes
        passes += len(inputs[0])

    hook = sampler.net.register_forward_pre_hook(count)
    started = time.perf_counter()
    try:
        solutions = list(sampler.solutions(labels, seeds, conditions=conditions))
    finally:
        hook.remove()
    seconds = time.perf_counter() - started
    evaluations = sum(solution.nfe * len(solution.x) for solution in solutions)
    figures = quality(torch.cat([solution.x for solution in solutions]), labels)
    return {
        "nfe": round(evaluations / len(seeds), 2),
        "passes": round(passes / len(seeds), 2),
        "seconds": round(seconds, 3),
        "quality": {name: float(value) for name, value in figures.items()},
    }


def steps_within(method: Method, budget: int) -> int:
    """Intervals that a fixed-step method can take with so many evaluations; 0 where not even one."""
    return budget // len(TABLEAUS[method].weights) if method in TABLEAUS else budget


def solver_table(
    sampler: Sampler,
    labels: list[int] | None,
    seeds: Sequence[int],
    quality: Quality,
    methods: Sequence[Method] = METHODS,
    budgets: Sequence[int] = BUDGETS,
    tolerances: Sequence[float] = TOLERANCES,
    conditions: GenerationConditions | None = None,
) -> list[Row]:
    """Measure solvers at budgets of evaluations, with the sampler's guidance.

    Args:
        seeds: one per sample; the same noise in all cells.
        methods: a fixed-step one takes the most steps within the budget; a cell below one step is left out.
        tolerances: of dopri5 (relative and absolute), which takes what evaluations it needs.
        conditions: texts and images of the samples, where the net takes any.

    Returns:
        Rows with `series` (the method), `method`, `budget` (None for dopri5), `steps` or `tolerance`, and those of
        `measure`.
    """
    rows = []
    for method in methods:
        settings: Iterable[Row] = (
            [{"budget": None, "tolerance": tolerance} for tolerance in tolerances]
            if method == "dopri5"
            else [{"budget": budget, "steps": steps_within(method, budget)} for budget in budgets]
        )
        for setting in settings:
            if setting.get("steps") == 0:
                continue
            tolerance = setting.get("tolerance", TOLERANCES[-1])
            solver = Solver(method, setting.get("steps", 1), rtol=tolerance, atol=tolerance)
            measured = measure(sampler.using(solver, sampler.guidance), labels, seeds, quality, conditions)
            rows.append({"series": method, "method": method, **setting, **measured})
            log.info("%s %s: %s", method, setting, measured)
    return rows


def guidance_table(
    sampler: Sampler,
    labels: list[int] | None,
    seeds: Sequence[int],
    quality: Quality,
    scales: Sequence[float] = SCALES,
    budgets: Sequence[int] = BUDGETS,
    method: Method = "euler",
    conditions: GenerationConditions | None = None,
) -> list[Row]:
    """Measure guidance scales at budgets of evaluations.

    Args:
        sampler: of a net with classes, texts or images; of its guidance, if any, all but the scale is kept.
        seeds: one per sample; the same noise in all cells.
        scales: of guidance; 1 is conditional and needs half the passes.
        method: a fixed-step solver, as dopri5 keeps no budget.
        conditions: texts and images of the samples, where the net takes any.

    Returns:
        Rows with `series` (the scale in words), `scale`, `method`, `budget`, `steps`, and those of `measure`.
    """
    if method == "dopri5":
        raise ValueError(f"guidance is compared at equal NFE: take a fixed-step method, not {method}")
    rows = []
    for scale in scales:
        guidance = copy.copy(sampler.guidance) or Guidance()
        guidance.scale = scale
        for budget in budgets:
            steps = steps_within(method, budget)
            if steps:
                measured = measure(sampler.using(Solver(method, steps), guidance), labels, seeds, quality, conditions)
                setting = {"series": f"scale {scale:g}", "scale": scale, "method": method, "budget": budget}
                rows.append({**setting, "steps": steps, **measured})
                log.info("%s: %s", setting, measured)
    return rows


def print_table(rows: Sequence[Row], title: str, console: Console | None = None) -> None:
    """Print one table per figure: a line per series, a column per budget; dopri5 has a line per tolerance."""
    console = console or Console()
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


def draw_table(rows: Sequence[Row], title: str) -> Figure:
    """Draw each figure against the evaluations, a line per series, on log axes where the values span enough."""
    names = list(rows[0]["quality"])
    drawing = new_figure(5.5 * len(names), 4.5)
    drawing.suptitle(title)
    for axes, name in zip(drawing.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _draw(axes, rows, name)
    return drawing


def _draw(axes: Axes, rows: Sequence[Row], name: str) -> None:
    for series in dict.fromkeys(row["series"] for row in rows):
        points = sorted((row["nfe"], row["quality"][name]) for row in rows if row["series"] == series)
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1.2, label=series)
    values = [row["quality"][name] for row in rows]
    if min(values) > 0 and max(values) > LOG_RANGE * min(values):
        axes.set_yscale("log")
    axes.set(xscale="log", xlabel="evaluations per sample (NFE)", ylabel=name)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")


def compare(
    sampler: Sampler,
    output: Path,
    quality: Quality,
    requests: SampleRequests,
    seed: int,
    methods: Sequence[Method] = METHODS,
    budgets: Sequence[int] = BUDGETS,
    scales: Sequence[float] = SCALES,
    tolerances: Sequence[float] = TOLERANCES,
    conditions: GenerationConditions | None = None,
) -> dict[str, list[Row]]:
    """Print, write and draw solvers x NFE ("solvers") and, for a net with conditions, guidance x NFE ("guidance").

    Args:
        requests: labels and seeds of the samples.
        seed: that they were drawn from, for the report.

    Returns:
        The rows of `solver_table` and `guidance_table`.
    """
    labels, seeds = requests
    if scales and isinstance(sampler.guidance, NestedGuidance):
        raise ValueError("nested guidance has a scale for each condition, and the table one for all: --scales '[]'")
    tables: dict[str, list[Row]] = {}
    if methods:
        tables["solvers"] = solver_table(sampler, labels, seeds, quality, methods, budgets, tolerances, conditions)
    if scales and (labels is not None or conditions is not None):
        tables["guidance"] = guidance_table(sampler, labels, seeds, quality, scales, budgets, conditions=conditions)
    tables = {name: rows for name, rows in tables.items() if rows}
    if not tables:
        raise ValueError("nothing to compare: name methods or, for a net with classes, scales, and budgets above 0")
    for name, rows in tables.items():
        print_table(rows, name)
        content = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": describe_machine(), "samples": len(seeds)}
        content |= {"seed": seed, "rows": rows}
        write_report(Path(output), {f"{name}.json": content, f"{name}.png": draw_table(rows, name)})
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
    prompts: list[str] | None = None,
    images: Path | None = None,
    masks: Path | None = None,
) -> None:
    """Compare solvers and guidance scales by quality at equal numbers of net calls (NFE): tables, JSON and plots.

    Args:
        run: run folder, checkpoint or export.
        output: folder for solvers.json, solvers.png, guidance.json and guidance.png.
        point_set: the set that a net of points was trained on; evaluated by the Chamfer distance to as many points.
        reference: real images, as for `zoo evaluate flow`; scikit-learn's digits when not given.
        train: the training images, likewise.
        extractor: see `zoo evaluate flow`.
        weights: file of the extractor, where it needs one.
        count: samples in each cell.
        labels: classes by number or name, taken in turns; all when not given.
        seed: of the noise, which all cells share.
        methods: solvers; all when not given, '[]' leaves that table out.
        budgets: net calls for a sample.
        scales: of guidance, for a net with classes, texts or images.
        guidance: of the first table; the run's when not given.
        val_every: of the digits' split, as in training.
        split_seed: of the digits' split, as in training.
        device: torch device.
        prompts: for a run that takes texts, in turns; likewise
        images: one, or a folder of them, for a run that takes images, and
        masks: of them, white where they are to be generated; see `zoo sample`.
    """
    sampler = load_sampler(run, None, guidance, device=device)
    quality = build_quality(
        sampler.sample_shape, point_set, reference, train, extractor, weights, val_every, split_seed, device
    )
    requested = sample_requests(count, seed, sampler.net.num_classes, sampler.label_numbers(labels))
    conditions = cycle_conditions(sampler, requested[1], prompts, image_files(images), image_files(masks))
    compare(sampler, output, quality, requested, seed, METHODS if methods is None else methods, budgets, scales,
            conditions=conditions)  # fmt: skip


def evaluate_straightness(sampler: Sampler, labels: Sequence[int] | None, seeds: Sequence[int]) -> float:
    """Mean `straightness` of the paths of samples; the solver's grid is that of the integral.

    On pairs, `val/loss` of FlowTask is the same integral along the pairs' own lines (with sigma_min 0, per element).

    Source: Liu et al., "Flow Straight and Fast" (2023), section 2.2.
    """
    if not seeds or (sampler.net.num_classes and len(labels or ()) != len(seeds)):
        raise ValueError(
            f"seeds are needed, and as many labels where the net has classes; found {len(seeds)} seeds, "
            f"{'no' if labels is None else len(labels)} labels and a net of {sampler.net.num_classes} classes"
        )
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
    labels, seeds = sample_requests(count, seed, sampler.net.num_classes)
    print(f"straightness of {count} paths: {evaluate_straightness(sampler, labels, seeds):.4f}")
