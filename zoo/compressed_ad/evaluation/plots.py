"""Figures of evaluations: learning curves, tasks, sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.common.reports import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Facts = Mapping[str, Any]  # of an evaluation.json
BARS = 40  # tasks; more are shown as a sorted line
PANELS = {
    "latents": "latents K",
    "window": "window T",
    "ratio": "compression ratio T / K",
    "free": "steps between compressions T - K - 1",
}


def learning_curves(evaluations: Mapping[str, Facts], sources: Mapping[str, Sequence[float]] | None = None) -> Figure:
    """Plot the mean return of each episode, with the baselines of the first evaluation.

    Args:
        evaluations: facts by label.
        sources: further curves by label, such as that of the histories.
    """
    figure = new_figure(8.5, 4.2)
    axes = figure.subplots()
    first = next(iter(evaluations.values()))
    for label, facts in evaluations.items():
        curve = facts["summary"]["curve"]
        episodes = np.arange(1, len(curve["mean"]) + 1)
        (line,) = axes.plot(episodes, curve["mean"], label=label)
        if curve["low"][0] is not None:
            axes.fill_between(episodes, curve["low"], curve["high"], color=line.get_color(), alpha=0.2, linewidth=0)
    for label, values in (sources or {}).items():
        axes.plot(range(1, len(values) + 1), values, label=label, linewidth=1, linestyle="-.")
    baselines = first["baselines"]
    if baselines["oracle"] is not None:
        axes.axhline(baselines["oracle"], color="0.3", linestyle="--", linewidth=1, label="oracle")
    if baselines["explorer"] is not None:
        explorer = baselines["explorer"]
        axes.plot(range(1, len(explorer) + 1), explorer, color="0.5", linewidth=1, label="informed explorer")
    axes.axhline(baselines["random"], color="0.3", linestyle=":", linewidth=1, label="random")
    axes.set(xlabel="episode", ylabel="return", title=f"{first['env']['name']}, {_tasks(first)}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def task_curves(evaluations: Mapping[str, Facts]) -> Figure:
    """Plot the mean of the last episodes of each task: bars, or where there are many a sorted line."""
    figure = new_figure(9.0, 4.0)
    axes = figure.subplots()
    first = next(iter(evaluations.values()))["tasks"]
    names = [row["task"] for row in first]
    alike = all([row["task"] for row in facts["tasks"]] == names for facts in evaluations.values())
    if alike and len(names) <= BARS:
        width = 0.8 / len(evaluations)
        positions = np.arange(len(names)) - 0.4 + width / 2
        for number, (label, facts) in enumerate(evaluations.items()):
            axes.bar(positions + number * width, [row["last"] for row in facts["tasks"]], width, label=label)
        best = [np.nan if row["oracle"] is None else row["oracle"] for row in first]
        axes.plot(range(len(names)), best, "_", color="0.2", markersize=14, label="oracle")
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 12 else 0)
        axes.set(xlabel="task")
    else:
        for label, facts in evaluations.items():
            values = sorted((row["last"] for row in facts["tasks"]), reverse=True)
            axes.plot(np.linspace(0, 1, len(values)), values, label=label)
        axes.set(xlabel="share of the tasks, the best first")
    axes.set(ylabel="return", title="mean of the last episodes")
    axes.legend()
    return figure


def sweep_plot(evaluations: Mapping[str, Facts]) -> Figure | None:
    """Plot the return over latents, window, their ratio and the free space; None where they are equal."""
    settings = {label: policy_sizes(facts) for label, facts in evaluations.items()}
    names = [
        name for name in PANELS if len({values[name] for values in settings.values() if values[name] is not None}) > 1
    ]
    if not names:
        return None
    figure = new_figure(4.0 * len(names), 3.6)
    row: Sequence[Axes] = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for name, axes in zip(names, row, strict=True):
        points = {label: value for label, values in settings.items() if (value := values[name]) is not None}
        positions = sorted(set(points.values()))
        for key, colour, title in (("last", "C0", "last episodes"), ("mean", "C1", "all episodes")):
            rows = [evaluations[label]["summary"][key] for label in points]
            values = [row["mean"] for row in rows]
            axes.errorbar(list(points.values()), values, _errors(rows), fmt="o", color=colour, capsize=3, label=title)
            pairs = list(zip(points.values(), values, strict=True))
            means = [np.mean([value for at, value in pairs if at == position]) for position in positions]
            axes.plot(positions, means, color=colour)
        axes.set(xlabel=PANELS[name])
    row[0].set(ylabel="return")
    row[0].legend()
    return figure


def policy_sizes(facts: Facts) -> dict[str, float | None]:
    """Return latents, window, ratio and free space of an evaluated policy; None without a compressor."""
    window, latents = facts["policy"]["window"], facts["policy"]["num_latents"]
    if facts["policy"]["compressor"] is None:
        return {"latents": None, "window": window, "ratio": None, "free": None}
    ratio = window / latents if latents else None
    return {"latents": latents, "window": window, "ratio": ratio, "free": window - latents - 1}


def _errors(rows: Sequence[Mapping[str, float | None]]) -> list[list[float]]:
    """Lengths below and above the means; 0 where there is no interval."""
    ends = [(row["mean"] if row[end] is None else row[end], row["mean"]) for end in ("low", "high") for row in rows]
    lengths = [abs(float(end or 0.0) - float(mean or 0.0)) for end, mean in ends]
    return [lengths[: len(rows)], lengths[len(rows) :]]


def _tasks(facts: Facts) -> str:
    return f"{len(facts['tasks'])} tasks ({facts['split']}), {facts['seeds']} seeds"
