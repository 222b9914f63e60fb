"""The report on several evaluations: curves, tasks and sweeps, as one page."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import zoo
from zoo.common.locks import writes_into
from zoo.common.reports import markdown_table, replace_non_finite, write_report
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.base import build_env
from zoo.compressed_ad.evaluation import plots
from zoo.compressed_ad.evaluation.evaluate import NAME as EVALUATION
from zoo.compressed_ad.evaluation.evaluate import RETURNS_NAME
from zoo.compressed_ad.evaluation.summary import bootstrap_groups, last_episodes, speed

NAME = "report"
ARGUMENT_WIDTH = 120  # characters of an argument of the environment


@writes_into("output", positional=False)
def report(
    evaluations: Sequence[Path], output: Path, labels: Sequence[str] | None = None, source: Path | None = None
) -> dict[str, Any]:
    """Compare evaluations: curves with intervals, regret, bars per task, sweeps; figures, Markdown and JSON.

    The first evaluation is the reference: gains over it are paired where tasks, seeds and episodes are the same, and
    `episodes_to_reach` counts to shares of its final level, where that is above 0. Where latents K or window T differ,
    the return is plotted over them, over the compression ratio T / K and over the free space T - K - 1.

    Args:
        evaluations: folders that `zoo evaluate compressed_ad` wrote; the first is the reference.
        output: folder to write.
        labels: of the evaluations, one for each; the folders' names by default.
        source: a folder of histories (`zoo collect`), whose curve is added.

    Raises:
        FileNotFoundError: when a folder holds no finished evaluation.
        ValueError: when labels are not one for each or the same, or evaluations are of different environments.
    """
    facts_by_label = _read(evaluations, labels)
    output = Path(output)
    first = next(iter(facts_by_label.values()))
    sources = {} if source is None else {"source": source_curve(source, first)}
    returns = {
        label: np.load(Path(folder) / RETURNS_NAME, allow_pickle=False)
        for label, folder in zip(facts_by_label, evaluations, strict=True)
    }
    figures = {
        "curves.png": plots.learning_curves(facts_by_label, sources),
        "tasks.png": plots.task_curves(facts_by_label),
        "sweep.png": plots.sweep_plot(facts_by_label),
    }
    figures = {name: figure for name, figure in figures.items() if figure is not None}
    rows = [_row(label, facts, facts_by_label, returns) for label, facts in facts_by_label.items()]
    result = {
        "version": zoo.__version__,
        "env": first["env"],
        "evaluations": rows,
        "baselines": first["baselines"],
        "sources": sources,
        "notes": _notes(facts_by_label),
        "pictures": list(figures),
    }
    write_report(output, {**figures, f"{NAME}.md": markdown(result), f"{NAME}.json": result})
    print(output / f"{NAME}.md")
    return result


def markdown(result: Mapping[str, Any]) -> str:
    """Render the page: tables of results, speed, memory and settings, then the figures."""
    rows, first = result["evaluations"], result["evaluations"][0]
    heads = ("first episode", "last episodes", "all episodes", "regret", "gain over the first", "random to oracle")
    intervals = ("first", "last", "mean", "regret", "over_first")
    shares = list(first["episodes_to_reach"])
    gap = ("steps", "count", "before", "after", "random", "oracle")
    settings = ("compressor", "window", "latents", "ratio", "free", "parameters", "compressions_per_episode")

    def table(heads: Sequence[str], cells: Callable[[Mapping[str, Any]], list[str]], rows: Any = rows) -> str:
        return markdown_table(["evaluation", *heads], [[row["label"], *cells(row)] for row in rows])

    def result_cells(row: Mapping[str, Any]) -> list[str]:
        return [*(_interval(row[key]) for key in intervals), "-" if row["gain"] is None else f"{row['gain']:.0%}"]

    parts = [
        "# In-context learning",
        _env_line(result),
        table(heads, result_cells),
        "Means of an episode's return with 95 % bootstrap intervals over tasks and seeds.",
    ]
    if shares:
        parts += [
            f"## Episodes to reach shares of {first['label']}'s final level, {first['last']['mean']:.2f}",
            table(shares, lambda row: [_number(row["episodes_to_reach"][share], "never") for share in shares]),
        ]
    if probes := [row for row in rows if row["gap"]]:
        parts += [
            "## Memory gap",
            "Mean return before and after a time without reward, of the pairs that had found the goal.",
            table(gap, lambda row: [_number(row["gap"][key]) for key in gap], probes),
        ]
    parts += ["## Policies", table(settings, lambda row: [_number(row[key]) for key in settings])]
    parts += ["\n".join(f"- {note}" for note in result["notes"])] if result["notes"] else []
    parts += [f"![{name.removesuffix('.png')}]({name})" for name in result["pictures"]]
    return "\n\n".join(parts) + "\n"


def source_curve(folder: Path, facts: Mapping[str, Any]) -> list[float]:
    """Return the mean of each episode of stored histories, over the tasks of an evaluation that the store has.

    It ends with the history of the fewest episodes: later means would be of those alone whose episodes are short.

    Raises:
        ValueError: when it is of another environment, or has none of the tasks.
    """
    store = HistoryStore(folder)
    if store.env.describe() != build_env(facts["env"]).describe():
        raise ValueError(f"{folder} holds histories of {store.env.describe()}, the evaluation is of {facts['env']}")
    names = {row["task"] for row in facts["tasks"]}
    positions = [at for at, task in enumerate(store.tasks.tolist()) if " ".join(map(str, task)) in names]
    if not positions:
        raise ValueError(f"{folder} has no history of a task of the evaluation")
    returns = [store.returns(at) for at in positions]  # (streams, episodes) each, NaN behind a history's last
    shortest = min(int((~np.isnan(each)).sum(axis=1).min()) for each in returns)
    return np.mean([each[:, :shortest].mean(axis=0) for each in returns], axis=0).tolist()


def _read(evaluations: Sequence[Path], labels: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Facts of each evaluation by label."""
    if not evaluations:
        raise ValueError("a report needs at least one evaluation")
    names = [Path(folder).resolve().name for folder in evaluations] if labels is None else list(labels)
    if len(names) != len(evaluations) or len(set(names)) < len(names):
        raise ValueError(f"expected {len(evaluations)} different labels, one for each evaluation, found {names}")
    facts_by_label: dict[str, dict[str, Any]] = {}
    for name, folder in zip(names, evaluations, strict=True):
        path = Path(folder) / f"{EVALUATION}.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: {folder} holds no finished evaluation; run zoo evaluate compressed_ad"
            )
        facts = facts_by_label[name] = json.loads(path.read_text(encoding="utf-8"))
        if "summary" not in facts or "env" not in facts:
            raise ValueError(f"{path} is not of `zoo evaluate compressed_ad`")
    envs = {json.dumps(facts["env"], sort_keys=True) for facts in facts_by_label.values()}
    if len(envs) > 1:
        raise ValueError(f"the evaluations are of different environments: {'; '.join(sorted(envs))}")
    return facts_by_label


def _row(
    label: str, facts: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], returns: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Row of the tables; speed is against the first evaluation's final level."""
    reference_label, reference = next(iter(others.items()))
    summary = facts["summary"]
    return {
        "label": label,
        "run": facts["run"],
        "tasks": len(facts["tasks"]),
        "split": facts["split_from"],
        **{key: facts[key] for key in ("seeds", "episodes", "greedy", "compressions_per_episode", "gap")},
        **{key: summary[key] for key in ("first", "last", "mean", "regret", "gain")},
        "over_first": None
        if facts is reference
        else _paired(facts, returns[label], reference, returns[reference_label]),
        "episodes_to_reach": speed(np.array(summary["curve"]["mean"]), reference["summary"]["last"]["mean"]),
        "compressor": facts["policy"]["compressor"],
        "parameters": facts["policy"]["parameters"],
        **plots.policy_sizes(facts),
    }


def _paired(
    facts: Mapping[str, Any], returns: np.ndarray, reference: Mapping[str, Any], others: np.ndarray
) -> dict[str, float | None] | None:
    """Mean difference of the last episodes, pair by pair; None where tasks, seeds or episodes differ."""
    names, expected = ([row["task"] for row in each["tasks"]] for each in (facts, reference))
    if returns.shape != others.shape or names != expected:
        return None
    tail = returns.shape[2] - last_episodes(returns.shape[2])
    gains = (returns[:, :, tail:].astype(np.float64) - others[:, :, tail:]).mean(2, keepdims=True)
    low, high = bootstrap_groups(gains)
    return replace_non_finite({"mean": float(gains.mean()), "low": float(low[0]), "high": float(high[0])})


def _notes(facts_by_label: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Differences of the evaluations that limit the comparison."""
    notes = []
    for key, name in (("episodes", "numbers of episodes"), ("seeds", "numbers of seeds"), ("greedy", "ways to choose")):
        if len({facts[key] for facts in facts_by_label.values()}) > 1:
            values = ", ".join(f"{label} {facts[key]}" for label, facts in facts_by_label.items())
            notes.append(f"The evaluations have different {name} ({key}): {values}.")
    if len({tuple(row["task"] for row in facts["tasks"]) for facts in facts_by_label.values()}) > 1:
        notes.append("The evaluations are of different tasks; the baselines are those of the first.")
    return notes


def _env_line(result: Mapping[str, Any]) -> str:
    described = {key: textwrap.shorten(str(value), ARGUMENT_WIDTH) for key, value in result["env"].items()}
    arguments = ", ".join(f"{key} {value}" for key, value in described.items() if key != "name")
    baselines = result["baselines"]
    best = _number(baselines["oracle"], "is unknown")
    return (
        f"{result['env']['name']} ({arguments}). An episode of random actions returns {baselines['random']:.2f}, the "
        f"best possible {best}."
    )


def _interval(value: Mapping[str, float | None] | None) -> str:
    if value is None or value["mean"] is None:
        return "-"
    ends = "" if value["low"] is None else f" [{value['low']:.2f}, {value['high']:.2f}]"
    return f"{value['mean']:.2f}{ends}"


def _number(value: Any, missing: str = "-") -> str:
    return missing if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
