"""What an evaluation of a crowd leaves behind: tables on the screen, items.jsonl, evaluation.json, .csv, pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from zoo.ci_llm.evaluation import plots
from zoo.ci_llm.losses.metrics import BINS
from zoo.common.report import terminal_table, write_report
from zoo.common.statistics import bootstrap_mean

NAME, ITEMS_NAME = "evaluation", "items.jsonl"
KINDS = ("strict", "flexible")
SINGLE = "agents, mean"  # the baseline: an agent taken at random
_FIGURES = ("mean", "se", "low", "high", "gain", "gain_low", "gain_high")
_JOINED = ("brier", "ece", "ece_scaled")
COLUMNS = ("system", *(f"{kind}_{figure}" for kind in KINDS for figure in _FIGURES), "nll", *_JOINED)


def accuracies(rows: Sequence[Mapping[str, Any]], agents: int) -> dict[str, dict[str, dict[str, float]]]:
    """Exact match of every way to answer.

    Args:
        rows: a row per question, see `zoo.ci_llm.evaluation.answering.grade`; where one lacks a way, it is wrong.

    Returns:
        By extraction and system: mean, standard error, ends of the 95 % bootstrap interval over questions, and the
        paired gain over the mean of the single agents with its interval. NaN where a single question gives none.
    """
    systems = list(dict.fromkeys(system for row in rows for system in row["correct"][KINDS[0]]))
    singles = [system for system in systems if system.startswith("agent_")]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for kind in KINDS:
        right = {
            system: np.array([float(row["correct"][kind].get(system, False)) for row in rows]) for system in systems
        }
        base = np.mean([right[system] for system in singles], axis=0) if singles else np.zeros(len(rows))
        if agents > 1:
            right[SINGLE] = base
        found[kind] = {system: _figures(values, base) for system, values in right.items()}
    return found


def _figures(values: np.ndarray, base: np.ndarray) -> dict[str, float]:
    mean, gain = bootstrap_mean(values), bootstrap_mean(values - base)
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    numbers = (mean.mean, error, mean.low, mean.high, gain.mean, gain.low, gain.high)
    return dict(zip(_FIGURES, map(float, numbers), strict=True))


def reliability(tokens: Mapping[str, Tensor], bins: int = BINS) -> list[dict[str, float]]:
    """Confidence and accuracy of the tokens in bins of equal width; empty bins are left out.

    Args:
        tokens: `confidence` and `correct` (N,).

    Returns:
        Rows with `confidence`, `accuracy` and `share` of the tokens.
    """
    confidence, correct = tokens["confidence"].double(), tokens["correct"].double()
    at = (confidence * bins).ceil().long().clamp(1, bins) - 1
    counts = torch.bincount(at, minlength=bins)
    sums = [torch.zeros(bins, dtype=torch.float64).index_add_(0, at, each) for each in (confidence, correct)]
    return [
        {
            "confidence": float(sums[0][each] / counts[each]),
            "accuracy": float(sums[1][each] / counts[each]),
            "share": float(counts[each] / len(at)),
        }
        for each in range(bins)
        if counts[each]
    ]


def report_rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per way to answer, see `COLUMNS`; calibration where the agents are joined token by token."""
    rows = []
    agents = facts["likelihood"].get("mean", {})
    known = {SINGLE: agents.get("nll_mean", math.nan)}
    known |= {name: scores["nll_ensemble"] for name, scores in facts["likelihood"].items()}
    for system in facts["accuracy"][KINDS[0]]:
        row: dict[str, Any] = {"system": system}
        for kind in KINDS:
            row |= {f"{kind}_{key}": value for key, value in facts["accuracy"][kind][system].items()}
        scores = facts["likelihood"].get(system, {})
        row["nll"] = known.get(system, agents.get(f"nll_{system}", math.nan))
        rows.append(row | {key: scores.get(key, math.nan) for key in _JOINED})
    return rows


def write_evaluation(output: Path, facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write items.jsonl, evaluation.csv, the pictures and, last, evaluation.json."""
    files = {
        ITEMS_NAME: rows,
        f"{NAME}.csv": (COLUMNS, report_rows(facts)),
        f"{NAME}.png": plots.accuracy(facts) if facts["accuracy"][KINDS[0]] else None,
        "reliability.png": plots.reliability(facts) if facts["reliability"] else None,
        "risk_coverage.png": plots.risk(facts) if facts["risk_coverage"] is not None else None,
        f"{NAME}.json": facts,
    }
    write_report(output, files)


def show(facts: Mapping[str, Any], console: Console | None = None) -> None:
    """Print exact match of every way to answer, and likelihoods and diversity."""
    console = console or Console()
    failed = f", {facts['failed']} failed and counted as wrong" if facts["failed"] else ""
    lines = []
    for row in report_rows(facts):
        shown = [f"{100 * row[f'{kind}_mean']:.1f} ± {100 * row[f'{kind}_se']:.1f}" for kind in KINDS]
        scores = [_short(row[key]) for key in ("nll", "ece")]
        lines.append([row["system"], *shown, f"{100 * row['flexible_gain']:+.1f}", *scores])
    heads = ("answered by", *(f"{kind} %" for kind in KINDS), "gain", "NLL", "ECE")
    title = f"{facts['name']}: {facts['count']} questions{failed}"
    console.print(terminal_table(heads, lines, title, heads[:1], heads))
    if facts["first_error"]:
        console.print(f"the first failure: {facts['first_error']}")
    if facts["likelihood"]:
        figures = dict(facts["likelihood"]["mean"])
        figures |= {f"sliced Wasserstein, {key}": value for key, value in facts["sliced_wasserstein"].items()}
        heads = ("figure", "value")
        lines = [[key, _short(value)] for key, value in figures.items()]
        console.print(terminal_table(heads, lines, left=heads))


def _short(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"
