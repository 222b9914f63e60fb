"""Pictures: exact match with intervals, reliability diagram, risk and coverage; arms of the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.common.report import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Facts = Mapping[str, Any]  # what `zoo.ci_llm.evaluation.evaluate.evaluate` returns


def accuracy(facts: Facts) -> Figure:
    """Draw bars of exact match with 95 % intervals, strict beside flexible, one group for each way to answer."""
    kinds = facts["accuracy"]
    systems = list(next(iter(kinds.values())))
    figure = new_figure(max(6.0, 0.7 * len(systems) + 2), 4.2)
    axes = figure.subplots()
    width = 0.8 / len(kinds)
    for number, (kind, found) in enumerate(kinds.items()):
        means, low, high = (
            100 * np.array([found[system][key] for system in systems]) for key in ("mean", "low", "high")
        )
        errors = np.nan_to_num([means - low, high - means]).clip(min=0)
        places = np.arange(len(systems)) + (number - (len(kinds) - 1) / 2) * width
        axes.bar(places, means, width, yerr=errors, capsize=2, label=kind)
    axes.set_xticks(range(len(systems)), systems, rotation=45, ha="right")
    axes.set(ylabel="exact match, %", title=f"{facts['count']} questions")
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    return figure


def reliability(facts: Facts) -> Figure:
    """Draw accuracy over confidence of the tokens, for each rule that joins the agents."""
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


def risk(facts: Facts) -> Figure:
    """Draw the error rate among the questions whose vote agrees most."""
    figure = new_figure(5.0, 4.0)
    axes = figure.subplots()
    axes.plot(facts["risk_coverage"]["coverage"], facts["risk_coverage"]["risk"], "o-", markersize=3)
    axes.set(xlabel="coverage", ylabel="risk (share of wrong votes)", title="kept by agreement of the agents")
    axes.set(xlim=(0, 1.02), ylim=(0, 1))
    axes.grid(alpha=0.3)
    return figure


def arms(arms: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw likelihood, diversity and exact match of arms: a dot for the mean, a tick for each run.

    Args:
        arms: what `scripts.evidence.ci_llm.gather` tells of each: `label`, and figures as lists with an entry per run.
    """
    panels = {
        "NLL, nats per token": {"nll_mean": "mean agent", "nll_best": "best agent", "nll_ensemble": "ensemble"},
        "pairwise KL, nats": {"pairwise_kl": "KL"},
        "exact match": {"em_single": "single agent", "em_ensemble": "ensemble", "em_vote": "vote"},
    }
    figure = new_figure(4.6 * len(panels), 1.8 + 0.5 * len(arms))
    places = np.arange(len(arms))
    for axes, (title, keys) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        for number, (key, label) in enumerate(keys.items()):
            at = places + 0.2 * (number - (len(keys) - 1) / 2)
            (line,) = axes.plot([np.mean(arm[key]) for arm in arms], at, "o", label=label)
            for place, arm in zip(at, arms, strict=True):
                axes.plot(arm[key], [place] * len(arm[key]), "|", color=line.get_color(), markersize=7)
        axes.set(title=title)
        axes.set_yticks(places, [arm["label"] for arm in arms])
        axes.grid(alpha=0.3)
        if len(keys) > 1:
            axes.legend(fontsize="small", ncols=len(keys), loc="upper center", bbox_to_anchor=(0.5, -0.12))
    figure.axes[0].set_ylim(len(arms) - 0.5, -0.5)
    return figure
