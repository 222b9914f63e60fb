"""What a study writes: trials.csv, best.yaml, two plots, and a table on the terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from zoo.common.atomic_files import write_atomic
from zoo.common.environment import verbosity
from zoo.common.reports import new_figure, print_table, terminal_table, write_report
from zoo.runs.run_info import format_duration
from zoo.tuning.search_space import decode_value, to_fragment

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

BEST_NAME, TRIALS_NAME = "best.yaml", "trials.csv"
TABLE_ROWS = 20
COLUMNS = ("trial", "state", "value", "step", "seconds", "reason")  # of trials.csv, before the keys
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "RUNNING": "open", "FAIL": "failed"}
STRUCTURE = ("model", "data", "init_args", "dict_kwargs")


@dataclass(frozen=True)
class StudyConfig:
    """What all processes on a study share; stored with the study.

    Args:
        name: of the study in its storage.
        fit: recipe, fragments and flags of `zoo fit`.
        search: distributions of Optuna by key, as JSON.
        metric: logged key that is optimised.
        direction: "min" or "max".
        flags: options of `zoo fit` for every trial that follow from the metric and the name.
        keys: the complete key of a recipe for each key of `search`.
    """

    name: str
    fit: list[str]
    search: dict[str, str]
    metric: str
    direction: str
    flags: list[str]
    keys: dict[str, str]


def planned_trials(study: Study) -> list[FrozenTrial]:
    """List the trials in order; of one that was taken up again after a kill, the last attempt."""
    trials = study.get_trials(deepcopy=False)
    return list({each.user_attrs["folder"]: each for each in trials if "folder" in each.user_attrs}.values())


def find_best(study: Study, config: StudyConfig) -> FrozenTrial | None:
    """Return the finished trial with the best value."""
    finished = [each for each in planned_trials(study) if each.state.name == "COMPLETE"]
    return (min if config.direction == "min" else max)(finished, key=lambda each: each.value or 0.0, default=None)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Find the shortest endings that tell keys apart: `lr`, or `optimizer_g.lr` and `optimizer_d.lr`."""
    parts = {key: [name for name in key.split(".") if name not in STRUCTURE] or [key] for key in keys}
    names = {}
    for key, path in parts.items():
        others = [parts[other] for other in keys if other != key]
        lengths = (n for n in range(1, len(path) + 1) if all(other[-n:] != path[-n:] for other in others))
        names[key] = ".".join(path[-next(lengths, len(path)) :])
    return names if len(set(names.values())) == len(keys) else {key: key for key in keys}


def format_value(value: Any) -> str:
    """Format a value for a table."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _rows(study: Study) -> list[dict[str, Any]]:
    rows = []
    for trial in planned_trials(study):
        if trial.state.name in STATES:
            notes = {name: trial.user_attrs.get(name) for name in COLUMNS[3:]}
            values = {key: decode_value(trial.distributions[key], value) for key, value in trial.params.items()}
            row = {"trial": trial.user_attrs["folder"], "state": STATES[trial.state.name], "value": trial.value}
            rows.append(row | notes | values)
    return rows


def fit_command(config: StudyConfig, folder: Path) -> str:
    """Return the command that trains with the best values."""
    first = int(not config.fit[0].startswith("-"))
    return shlex.join(["zoo", "fit", *config.fit[:first], str(folder / BEST_NAME), *config.fit[first:]])


def write_results(study: Study, config: StudyConfig, folder: Path) -> None:
    """Write trials.csv and, when a trial has finished, best.yaml."""
    keys = list(config.search)
    rows = [dict.fromkeys(keys) | row for row in _rows(study)]
    write_report(folder, {TRIALS_NAME: ((*COLUMNS, *keys), rows)})
    best = find_best(study, config)
    if best is None:
        return
    values = {config.keys[key]: decode_value(best.distributions[key], value) for key, value in best.params.items()}
    text = (
        f"# {config.metric} {best.value:.6g} at step {best.user_attrs.get('step')}: {best.user_attrs['folder']}, "
        f"best of {len(rows)} trials of the study {config.name}\n# Use: {fit_command(config, folder)}\n"
        + yaml.safe_dump(to_fragment(values), sort_keys=False, allow_unicode=True)
    )
    write_atomic(folder / BEST_NAME, lambda file: file.write(text.encode()))


def write_plots(study: Study, config: StudyConfig, folder: Path) -> None:
    """Plot the values by trial and, from two different values on, the importance of each key."""
    import optuna

    finished = [each for each in planned_trials(study) if each.state.name == "COMPLETE"]
    if not finished:
        return
    figure = new_figure(7.0, 4.0)
    axes = figure.subplots()
    axes.plot([each.number for each in finished], [each.value or 0.0 for each in finished], "o")
    axes.set(xlabel="trial", ylabel=config.metric, title=config.name)
    plots = {"history.png": figure}
    if len({each.value for each in finished}) > 1:
        importances = optuna.importance.get_param_importances(study)
        names = short_names(list(config.search))
        figure = new_figure(7.0, 4.0)
        axes = figure.subplots()
        axes.barh([names[key] for key in reversed(importances)], list(reversed(importances.values())))
        axes.set(xlabel=f"importance for {config.metric}", title=config.name)
        plots["importance.png"] = figure
    write_report(folder, plots)


def print_study(study: Study, config: StudyConfig, folder: Path) -> None:
    """Print the trials, the best ones first, and the command that uses the best values."""
    sign = 1 if config.direction == "min" else -1
    order = list(STATES.values())
    rows = sorted(_rows(study), key=lambda row: (order.index(row["state"]), sign * (row["value"] or 0), row["trial"]))
    names = short_names(list(config.search))
    if verbosity() != "quiet":
        cells = []
        for row in rows[:TABLE_ROWS]:
            seconds = None if row["seconds"] is None else format_duration(row["seconds"])
            values = (row["value"], row["step"], seconds, *(row.get(key) for key in names))
            cells.append(
                (row["trial"], row["state"], *("-" if each is None else format_value(each) for each in values))
            )
        columns = ("trial", "state", config.metric, "step", "time", *names.values())
        print_table(terminal_table(columns, cells, left=columns[:2], whole=columns[:3], box=None, pad_edge=False))
        unfinished = sum(row["state"] == "open" for row in rows)
        print(f"{len(rows)} trials, {unfinished} of them open: {folder / TRIALS_NAME}")
    best = find_best(study, config)
    if best is not None:
        print(f"best: {config.metric} {best.value:.6g}, {folder / best.user_attrs['folder']}")
        print(f"      {fit_command(config, folder)}")
