"""What a study leaves behind: a table, trials.csv, best.yaml and plots."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from zoo.common.atomic import write_atomic
from zoo.common.options import verbosity
from zoo.common.report import show_table, terminal_table, write_report
from zoo.runs.details import duration
from zoo.runs.listing import read_settings
from zoo.tuning.search import Definition, Space, label, nested

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

BEST_NAME, TRIALS_NAME = "best.yaml", "trials.csv"
SHOWN = 20  # trials in the table of the terminal
FIXED = ("trial", "state", "value", "step", "seconds", "reason")  # columns of trials.csv, before those of the keys
_STATES = {"COMPLETE": "finished", "FAIL": "failed", "RUNNING": "open"}
_STRUCTURE = ("model", "data", "init_args", "dict_kwargs")


def folder_name(number: int) -> str:
    """The run folder of a trial within that of its study."""
    return f"trial_{number:04d}"


def shown(value: Any) -> str:
    """A value as a table shows it."""
    return f"{value:.4g}" if isinstance(value, float) else str(label(value))


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The shortest endings that tell keys apart: `lr`, or `optimizer_g.lr` beside `optimizer_d.lr`."""
    plain = {key: [part for part in key.split(".") if part not in _STRUCTURE] or [key] for key in keys}
    names = {}
    for key, parts in plain.items():
        others = [plain[other] for other in keys if other != key]
        lengths = (n for n in range(1, len(parts) + 1) if all(other[-n:] != parts[-n:] for other in others))
        names[key] = ".".join(parts[-next(lengths, len(parts)) :])
    return names if len(set(names.values())) == len(keys) else {key: key for key in keys}


def _row(trial: FrozenTrial) -> dict[str, Any]:
    attributes = trial.user_attrs
    state = _STATES.get(trial.state.name, trial.state.name.lower())
    row = {"trial": folder_name(trial.number), "state": state, "value": trial.value if state != "failed" else None}
    return {**row, **{name: attributes.get(name) for name in FIXED[3:]}, **trial.params}


def write_trials(study: Study, definition: Definition, folder: Path) -> None:
    """Write trials.csv, a row per trial."""
    rows = [_row(trial) for trial in study.get_trials(deepcopy=False)]
    keys = list(definition.search)
    write_report(folder, {TRIALS_NAME: ((*FIXED, *keys), [dict.fromkeys(keys) | row for row in rows])})


def _best(study: Study) -> FrozenTrial | None:
    finished = any(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False))
    return study.best_trial if finished else None


def write_best(study: Study, definition: Definition, spaces: Sequence[Space], folder: Path) -> FrozenTrial | None:
    """Write the best trial's values as a fragment of a recipe; the trial, None while there is none."""
    best = _best(study)
    if best is None:
        return None
    values = {space.key: space.value(best.params[space.key]) for space in spaces}
    run = folder / folder_name(best.number)
    lines = [
        f"# {definition.metric} {best.value:.6g} at step {best.user_attrs.get('step')}, reached by {run.name}",
        f"# of the study {definition.name}, the best of {len(study.get_trials(deepcopy=False))} trials.",
        f"# Use: {use_of(definition, folder)}",
    ]
    text = yaml.safe_dump(nested(read_settings(run), values), sort_keys=False, allow_unicode=True)
    write_atomic(folder / BEST_NAME, lambda file: file.write(("\n".join(lines) + "\n" + text).encode()))
    return best


def use_of(definition: Definition, folder: Path) -> str:
    """The command that trains with the best values."""
    first = int(not definition.fit[0].startswith("-"))
    words = ["zoo", "fit", *definition.fit[:first], str(folder / BEST_NAME), *definition.fit[first:]]
    return " ".join(shlex.join(words).split())


def write_plots(study: Study, definition: Definition, folder: Path) -> list[str]:
    """Draw history, parameter importances, slices and parallel coordinates; the names of the files.

    Importances need two finished trials with different values, and a search over more than one of them.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    from zoo.common.report import write_figure

    names = short_names(list(definition.search))
    finished = [trial for trial in study.get_trials() if trial.state.name == "COMPLETE"]
    plain = _renamed(study, names)
    drawn: dict[str, Any] = {
        "history": plots.plot_optimization_history,
        "slices": plots.plot_slice,
        "parallel": plots.plot_parallel_coordinate,
    }
    if len({trial.value for trial in finished}) > 1:
        drawn["importance"] = plots.plot_param_importances
    written = []
    for name, plot in drawn.items() if finished else ():
        with warnings.catch_warnings(), pyplot.rc_context():
            warnings.simplefilter("ignore")
            axes = plot(plain, target_name=definition.metric)
            figure = (axes if hasattr(axes, "figure") else axes.flat[0]).figure
            figure.set_size_inches(max(8.0, 3.5 * len(names)) if name in ("slices", "parallel") else 8.0, 5.0)
            write_figure(folder / f"{name}.png", figure)
            pyplot.close("all")
        written.append(f"{name}.png")
    return written


def _renamed(study: Study, names: Mapping[str, str]) -> Study:
    """A copy of a study whose keys have short names."""
    import optuna

    copy = optuna.create_study(direction=study.direction)
    for trial in study.get_trials():
        if trial.state.is_finished() and set(trial.params) == set(names):
            trial.params = {names[key]: value for key, value in trial.params.items()}
            trial.distributions = {names[key]: value for key, value in trial.distributions.items()}
            copy.add_trial(trial)
    return copy


def show_study(study: Study, definition: Definition, folder: Path) -> None:
    """Print the trials, the best ones first, and where the rest is."""
    rows = [_row(trial) for trial in study.get_trials(deepcopy=False)]
    sign = 1 if definition.mode == "min" else -1
    order = ("finished", "pruned", "open", "failed")
    rows.sort(key=lambda row: (order.index(row["state"]), sign * (row["value"] or 0), row["trial"]))
    names = short_names(list(definition.search))
    columns = ("trial", "state", definition.metric, "step", "time", *names.values())
    cells = [
        (row["trial"], row["state"], *(_cell(row[name]) for name in ("value", "step")),
         "-" if row["seconds"] is None else duration(row["seconds"]), *(_cell(row.get(key)) for key in names))
        for row in rows[:SHOWN]
    ]  # fmt: skip
    if verbosity() != "quiet":
        show_table(terminal_table(columns, cells, left=columns[:2], whole=columns[:3], box=None, pad_edge=False))
        more = f"{len(rows) - SHOWN} more in {TRIALS_NAME}; " if len(rows) > SHOWN else ""
        unfinished = sum(row["state"] == "open" for row in rows)
        if unfinished:
            print(f"{unfinished} trials are open: other processes train them, or the same command takes them up")
        print(f"{more}{folder}: {TRIALS_NAME}, plots, {BEST_NAME if _best(study) else 'no trial has succeeded'}")
    best = _best(study)
    if best is not None:
        print(f"best: {definition.metric} {best.value:.6g}, {folder / folder_name(best.number)}")
        print(f"      {use_of(definition, folder)}")


def _cell(value: Any) -> str:
    return "-" if value is None else shown(value)
