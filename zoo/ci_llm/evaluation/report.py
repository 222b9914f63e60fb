"""The report of an evaluation: tables on the screen, items.jsonl, evaluation.json, evaluation.csv, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from zoo.common.reports import new_figure, terminal_table, write_report
from zoo.common.statistics import bootstrap_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, ITEMS_NAME = "evaluation", "items.jsonl"
KINDS = ("strict", "flexible")
SINGLE = "agents, mean"  # the baseline: an agent at random
_STATISTICS = ("mean", "se", "low", "high", "gain", "gain_low", "gain_high")
_CALIBRATION = ("brier", "ece")
COLUMNS = ("system", *(f"{kind}_{statistic}" for kind in KINDS for statistic in _STATISTICS), "nll", *_CALIBRATION)


def compute_accuracies(rows: Sequence[Mapping[str, Any]], agents: int) -> dict[str, dict[str, dict[str, float]]]:
    """Exact match of every system.

    Args:
        rows: a row per question, see `zoo.ci_llm.evaluation.answering.grade`; where one lacks a system, it is wrong.

    Returns:
        By extraction and system: mean, standard error, ends of the 95 % bootstrap interval over questions, and the
        paired gain over the mean of the single agents with its interval. NaN where a single question gives none.
    """
    systems = list(dict.fromkeys(system for row in rows for system in row["correct"][KINDS[0]]))
    singles = [system for system in systems if system.startswith("agent_")]
    accuracies: dict[str, dict[str, dict[str, float]]] = {}
    for kind in KINDS:
        correct = {
            system: np.array([float(row["correct"][kind].get(system, False)) for row in rows]) for system in systems
        }
        baseline = np.mean([correct[system] for system in singles], axis=0) if singles else np.zeros(len(rows))
        if agents > 1:
            correct[SINGLE] = baseline
        accuracies[kind] = {system: _statistics(values, baseline) for system, values in correct.items()}
    return accuracies


def _statistics(values: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    mean, gain = bootstrap_mean(values), bootstrap_mean(values - baseline)
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    numbers = (mean.mean, error, mean.low, mean.high, gain.mean, gain.low, gain.high)
    return dict(zip(_STATISTICS, map(float, numbers), strict=True))


def report_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per system, see `COLUMNS`; calibration where the agents are combined token by token."""
    rows = []
    agents = facts["likelihood"].get("mean", {})
    nll = {SINGLE: agents.get("nll_mean", math.nan)}
    nll |= {name: scores["nll_ensemble"] for name, scores in facts["likelihood"].items()}
    for system in facts["accuracy"][KINDS[0]]:
        row: dict[str, Any] = {"system": system}
        for kind in KINDS:
            row |= {f"{kind}_{key}": value for key, value in facts["accuracy"][kind][system].items()}
        scores = facts["likelihood"].get(system, {})
        row["nll"] = nll.get(system, agents.get(f"nll_{system}", math.nan))
        rows.append(row | {key: scores.get(key, math.nan) for key in _CALIBRATION})
    return rows


def write_evaluation(output: Path, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write items.jsonl, evaluation.csv, the figures and, last, evaluation.json."""
    files = {
        ITEMS_NAME: rows,
        f"{NAME}.csv": (COLUMNS, report_rows(facts)),
        f"{NAME}.png": _accuracy_figure(facts) if facts["accuracy"][KINDS[0]] else None,
        "reliability.png": _reliability_figure(facts) if facts["reliability"] else None,
        f"{NAME}.json": facts,
    }
    write_report(output, files)


def _accuracy_figure(facts: Mapping[str, Any]) -> Figure:
    """Plot bars of exact match, strict and flexible, with 95 % intervals, a group for each system."""
    kinds = facts["accuracy"]
    systems = list(next(iter(kinds.values())))
    figure = new_figure(max(6.0, 0.7 * len(systems) + 2), 4.2)
    axes = figure.subplots()
    width = 0.8 / len(kinds)
    for number, (kind, by_system) in enumerate(kinds.items()):
        means, low, high = (
            100 * np.array([by_system[system][key] for system in systems]) for key in ("mean", "low", "high")
        )
        errors = np.nan_to_num([means - low, high - means]).clip(min=0)
        centers = np.arange(len(systems)) + (number - (len(kinds) - 1) / 2) * width
        axes.bar(centers, means, width, yerr=errors, capsize=2, label=kind)
    axes.set_xticks(range(len(systems)), systems, rotation=45, ha="right")
    axes.set(ylabel="exact match, %", title=f"{facts['count']} questions")
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    return figure


def _reliability_figure(facts: Mapping[str, Any]) -> Figure:
    """Plot accuracy over confidence of the tokens, for each rule."""
    figure = new_figure(5.0, 4.6)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1, label="calibrated")
    for name, bins in facts["reliability"].items():
        error = facts["likelihood"][name]["ece"]
        points = [[row[key] for row in bins] for key in ("confidence", "accuracy")]
        axes.plot(*points, "o-", markersize=3, label=f"{name}, ECE {error:.3f}")
    axes.set(xlabel="confidence", ylabel="accuracy", title="answer tokens", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    return figure


def print_report(facts: Mapping[str, Any]) -> None:
    """Print exact match of every system, likelihoods and diversity."""
    console = Console()
    failed = f", {facts['failed']} failed and counted as wrong" if facts["failed"] else ""
    lines = []
    for row in report_rows(facts):
        accuracy = [f"{100 * row[f'{kind}_mean']:.1f} ± {100 * row[f'{kind}_se']:.1f}" for kind in KINDS]
        scores = [_format(row[key]) for key in ("nll", "ece")]
        lines.append([row["system"], *accuracy, f"{100 * row['flexible_gain']:+.1f}", *scores])
    heads = ("system", *(f"{kind} %" for kind in KINDS), "gain", "NLL", "ECE")
    title = f"{facts['name']}: {facts['count']} questions{failed}"
    console.print(terminal_table(heads, lines, title, heads[:1], heads))
    if facts["first_error"]:
        console.print(f"the first failure: {facts['first_error']}")
    if facts["likelihood"]:
        heads = ("figure", "value")
        lines = [[key, _format(value)] for key, value in facts["likelihood"]["mean"].items()]
        console.print(terminal_table(heads, lines, left=heads))


def _format(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"
