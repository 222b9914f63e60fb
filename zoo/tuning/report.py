"""What a study writes: trials.csv and best.yaml."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from zoo.common.atomic_files import write_atomic
from zoo.common.reports import write_report
from zoo.tuning.search_space import recipe_values

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

BEST_NAME, TRIALS_NAME = "best.yaml", "trials.csv"
NOTES = ("step", "seconds", "reason")  # columns of trials.csv
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "RUNNING": "open", "FAIL": "failed"}


@dataclass(frozen=True)
class StudyConfig:
    """What all processes on a study share; stored with the study."""

    fit: list[str]  # recipe, fragments and flags of `zoo fit`
    search: list[str]  # the values of `--search`
    metric: str  # logged key that is optimised
    direction: str  # "min" or "max"
    keys: dict[str, str]  # the recipe's full key by each searched key, in which `init_args` may be left out


def planned_trials(study: Study) -> list[FrozenTrial]:
    """List the trials in order; of one that was taken up again after a kill, the last attempt."""
    trials = study.get_trials(deepcopy=False)
    return list({each.user_attrs["folder"]: each for each in trials if "folder" in each.user_attrs}.values())


def find_best(study: Study) -> FrozenTrial | None:
    """Return the finished trial with the best value."""
    return study.best_trial if any(each.state.name == "COMPLETE" for each in planned_trials(study)) else None


def write_results(study: Study, config: StudyConfig, folder: Path) -> None:
    """Write trials.csv and, when a trial has finished, best.yaml."""
    columns = ("trial", "state", "value", *NOTES, *config.keys)
    rows = []
    for trial in planned_trials(study):
        if trial.state.name in STATES:
            row = {"trial": trial.user_attrs["folder"], "state": STATES[trial.state.name], "value": trial.value}
            row |= {name: trial.user_attrs.get(name) for name in NOTES}
            rows.append(dict.fromkeys(columns) | row | recipe_values(trial))
    write_report(folder, {TRIALS_NAME: (columns, rows)})
    best = find_best(study)
    if best is None:
        return
    fragment = OmegaConf.create()
    for key, value in recipe_values(best).items():
        OmegaConf.update(fragment, config.keys[key], value, force_add=True)
    first = int(not config.fit[0].startswith("-"))
    command = shlex.join(["zoo", "fit", *config.fit[:first], str(folder / BEST_NAME), *config.fit[first:]])
    text = (
        f"# {config.metric} {best.value:.6g} at step {best.user_attrs.get('step')}: {best.user_attrs['folder']}, "
        f"best of {len(rows)} trials\n# Use: {command}\n{OmegaConf.to_yaml(fragment)}"
    )
    write_atomic(folder / BEST_NAME, lambda file: file.write(text.encode()))
