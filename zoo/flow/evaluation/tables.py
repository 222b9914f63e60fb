"""Quality for a number of evaluations: solvers against each other, and guidance scales, as tables and figures.

All cells of a table start from the same noise. NFE counts evaluations of the field for one sample: a guided evaluation
runs the net once on twice the batch and counts as one; `passes` counts rows through the net, so it is two there.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from rich.console import Console
from torch import Tensor, nn

from zoo.common.hardware import machine
from zoo.common.report import new_figure, terminal_table, write_report
from zoo.flow.inference.drawing import load_sampler, requests
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.solvers import TABLEAUS, Grid, Method, Solver

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


from zoo.flow.process.sampling import straightness

log = logging.getLogger(__name__)

Row = dict[str, Any]
Quality = Callable[[Tensor, list[int] | None], Mapping[str, float]]
"""Figures of samples (B, ...), float32 on the CPU, and their labels (None without classes)."""

METHODS: tuple[Method, ...] = get_args(Method)
BUDGETS = (1, 2, 5, 10, 20, 50)
SCALES = (1.0, 1.5, 2.0, 3.0, 5.0, 7.5)
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
CAPTION = (
    "NFE: evaluations of the field per sample; a guided one is one call of the net on twice the batch. "
    "@n: n evaluations were made, the most below the budget, or as many as dopri5 chose."
)
LOG_RANGE = 3  # figures that differ by more are drawn on a log axis


def measure(sampler: Sampler, labels: list[int] | None, seeds: Sequence[int], quality: Quality) -> Row:
    """Draw samples and judge them.

    Args:
        sampler: with the solver and guidance to judge.

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
        solutions = list(sampler.solutions(labels, seeds))
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
    grid: Grid = "uniform",
    tolerances: Sequence[float] = TOLERANCES,
) -> list[Row]:
    """Measure solvers at budgets of evaluations, with the sampler's guidance.

    Args:
        seeds: one per sample; the same noise in all cells.
        methods: solvers. A fixed-step one takes the most steps within the budget; a cell whose budget is below one
            step is left out.
        tolerances: of dopri5 (relative and absolute), which takes what evaluations it needs.

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
            solver = Solver(method, setting.get("steps", 1), grid, rtol=tolerance, atol=tolerance)
            found = measure(sampler.using(solver, sampler.guidance), labels, seeds, quality)
            rows.append({"series": method, "method": method, **setting, **found})
            log.info("%s %s: %s", method, setting, found)
    return rows


def guidance_table(
    sampler: Sampler,
    labels: list[int],
    seeds: Sequence[int],
    quality: Quality,
    scales: Sequence[float] = SCALES,
    budgets: Sequence[int] = BUDGETS,
    method: Method = "euler",
    grid: Grid = "uniform",
) -> list[Row]:
    """Measure guidance scales at budgets of evaluations.

    Args:
        sampler: a loaded run of a net with classes; of its guidance, if any, all but the scale is kept.
        seeds: one per sample; the same noise in all cells.
        scales: of guidance; 1 is conditional and needs half the passes.
        method: a fixed-step solver.

    Returns:
        Rows with `series` (the scale in words), `scale`, `method`, `budget`, `steps`, and those of `measure`.

    Raises:
        ValueError: when the method is dopri5, which keeps no budget.
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
                found = measure(sampler.using(Solver(method, steps, grid), guidance), labels, seeds, quality)
                setting = {"series": f"scale {scale:g}", "scale": scale, "method": method, "budget": budget}
                rows.append({**setting, "steps": steps, **found})
                log.info("%s: %s", setting, found)
    return rows


def show(rows: Sequence[Row], title: str, console: Console | None = None) -> None:
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
        cells = [[line, *(found.get(key, "") for key in keys)] for line, found in lines.items()]
        console.print(terminal_table(heads, cells, f"{title}: {name}", heads[:1]))
    console.print(CAPTION)


def figure(rows: Sequence[Row], title: str) -> Figure:
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


def save(output: Path, name: str, rows: Sequence[Row], **circumstances: Any) -> None:
    """Write rows as `<name>.json` (with machine and date) and their figure as `<name>.png`."""
    content = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine(), **circumstances, "rows": list(rows)}
    write_report(output, {f"{name}.json": content, f"{name}.png": figure(rows, name)})


def sweep(
    sampler: Sampler,
    output: Path,
    quality: Quality,
    count: int = 500,
    labels: Sequence[int] | None = None,
    seed: int = 63,
    methods: Sequence[Method] = METHODS,
    budgets: Sequence[int] = BUDGETS,
    scales: Sequence[float] = SCALES,
    tolerances: Sequence[float] = TOLERANCES,
    guidance_method: Method = "euler",
    grid: Grid = "uniform",
) -> dict[str, list[Row]]:
    """Measure, print, write and draw solvers x NFE and, for a net with classes, guidance x NFE.

    Args:
        sampler: a loaded run; the solvers are compared with its guidance.
        output: folder for `solvers.json`, `solvers.png`, `guidance.json` and `guidance.png`; older ones are replaced.
        quality: tells figures of samples and labels: a `zoo.flow.evaluation.comparison.Comparison`, for instance.
        count: samples in each cell.
        labels: classes, taken in turns; None for all.
        seed: of the noise.
        methods: solvers to compare; none leaves that table out.
        scales: of guidance to compare; none leaves that table out.
        tolerances: of dopri5.
        guidance_method: solver of the second table.

    Returns:
        Rows by table, "solvers" and "guidance"; see `solver_table` and `guidance_table`.

    Raises:
        ValueError: when an argument is out of range, or there is nothing to compare.
    """
    chosen, seeds = requests(count, seed, sampler.net.num_classes, labels)
    tables: dict[str, list[Row]] = {}
    if methods:
        tables["solvers"] = solver_table(sampler, chosen, seeds, quality, methods, budgets, grid, tolerances)
    if scales and chosen is not None:
        tables["guidance"] = guidance_table(sampler, chosen, seeds, quality, scales, budgets, guidance_method, grid)
    tables = {name: rows for name, rows in tables.items() if rows}
    if not tables:
        raise ValueError("nothing to compare: name methods or, for a net with classes, scales, and budgets above 0")
    for name, rows in tables.items():
        show(rows, name)
        save(Path(output), name, rows, samples=count, seed=seed, grid=grid)
    return tables


def evaluate_straightness(sampler: Sampler, labels: Sequence[int] | None, seeds: Sequence[int]) -> float:
    """Mean straightness of the paths that a model samples on.

    On pairs, `val/loss` of FlowTask is the same integral along the pairs' own lines (with sigma_min 0, per element).

    Args:
        sampler: the model, in evaluation mode; its solver's grid is that of the integral.
        labels: one class per sample; None for a net without classes.

    Returns:
        Mean over the samples of the integral of |(x_1 - x_0) - v(t, x_t)|^2 over t, 0 where one Euler step is exact.

    Raises:
        ValueError: when there are no seeds, or labels and net do not go together.

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
    """Tell how far a run's paths are from straight lines; 0 is a net that one Euler step samples exactly.

    Args:
        run: run folder, checkpoint or export.
        count: paths.
        seed: of the noise.
        solver: the run's when not given; its grid is that of the integral.
        guidance: the run's when not given.
        device: torch device.
    """
    sampler = load_sampler(run, solver, guidance, device=device)
    labels, seeds = requests(count, seed, sampler.net.num_classes)
    print(f"straightness of {count} paths: {evaluate_straightness(sampler, labels, seeds):.4f}")
