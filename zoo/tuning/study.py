"""`zoo tune`: a study of Optuna over keys of a recipe, whose trials are runs of `zoo fit`.

The trials of a study are queued in its database when it begins; any number of processes take them from there. Each
records heartbeats while it trains. A trial whose heartbeats stop is queued again by the next process that looks, and
continues from its newest checkpoint.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import optuna
import yaml
from omegaconf import OmegaConf
from optuna import Study
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, Trial

from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least
from zoo.common.environment import exit_on_sigterm, verbosity
from zoo.common.locks import lock_folder
from zoo.common.registry import import_options
from zoo.common.reports import write_report
from zoo.runs.run_folder import CONFIG_NAME, CSV_NAME
from zoo.runs.run_info import flatten_config, read_curves
from zoo.tuning.search_space import RESERVED_KEYS, grid_points, limit_flags, parse_search_space, recipe_values, suggest

BEST_NAME, TRIALS_NAME = "best.yaml", "trials.csv"
NOTES = ("step", "seconds", "reason")  # columns of trials.csv
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "RUNNING": "open", "FAIL": "failed"}
DATABASE, OUTPUT_LOG = "study.db", "output.log"
DEFAULT_TRIALS, MAX_FAILURES = 20, 3
HEARTBEAT_SECONDS, GRACE_SECONDS = 10, 40  # a trial without a heartbeat for so long is queued again
LOCK_SECONDS = 300.0
POLL_SECONDS = 1.0
STOP_CODES = (130, 143, -signal.SIGINT, -signal.SIGTERM)


class TrialError(RuntimeError):
    """A trial failed; the study continues."""


@dataclass(frozen=True)
class StudyConfig:
    """What all processes on a study share; stored with the study."""

    fit: list[str]  # recipe, fragments and flags of `zoo fit`
    search: list[str]  # the values of `--search`
    metric: str  # logged key that is optimised
    direction: str  # "min" or "max"
    keys: dict[str, str]  # the recipe's full key by each searched key, in which `init_args` may be left out
    sampler: str = "tpe"  # "tpe", "random" or "grid"


def main(
    *recipe: str,
    search: list[str] = [],  # noqa: B006
    metric: str | None = None,
    direction: Literal["min", "max"] | None = None,
    trials: int | None = None,
    prune: bool = False,
    startup: int = 5,
    sampler: Literal["tpe", "random", "grid"] | None = None,
    output: Path | None = None,
    storage: str | None = None,
) -> int:
    """Search a recipe's keys for the best metric: zoo tune RECIPE --search ...

    Trials are runs in OUTPUT/trial_0000 and so on. The same command again, at the same time or after a kill, works on
    the same study; `zoo tune --output DIR` alone continues the one there.

    Args:
        *recipe: a recipe, fragments to lay over it, and flags of `zoo fit`, the same for every trial.
        search: KEY=log(low, high), uniform(low, high[, step]), int(low, high[, step]) or choice(a, b); repeatable.
        metric: whose best value over a trial's validations counts; the recipe's checkpoints.monitor when not given.
        direction: min or max; that of the recipe's monitor, min for another metric.
        trials: of the whole study, failed ones included; 20, or every point of a grid, when not given.
        prune: stop trials whose best value is worse than the median of the others at the same validation.
        startup: trials that finish before any is pruned.
        sampler: tpe, random, or grid: every combination of choices once; tpe when not given.
        output: folder of the study; runs/tune/SYSTEM/RECIPE when not given.
        storage: a URL of SQLAlchemy such as postgresql://host/db; sqlite in OUTPUT/study.db when not given.

    Returns:
        0; 1 when no trial has succeeded.
    """
    check_at_least(1, trials=1 if trials is None else trials, startup=startup)
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    first = Path(next((word for word in recipe if not word.startswith("-")), "study"))
    folder = (output or Path("runs", "tune", first.parent.name, first.stem)).absolute()
    with lock_folder(folder, "tune", LOCK_SECONDS):
        study, config = open_study(folder, storage, recipe, search, metric, direction, sampler)
        starts = study.user_attrs.get("starts", 0)
        study.set_user_attr("starts", starts + 1)  # two processes must not sample the same values
        points = grid_points(parse_search_space(config.search)) if config.sampler == "grid" else None
        queue_trials(study, trials, points)
    tpe = partial(optuna.samplers.TPESampler, constant_liar=True)
    study.sampler = (tpe if config.sampler == "tpe" else optuna.samplers.RandomSampler)(seed=starts)
    study.pruner = optuna.pruners.MedianPruner(startup, n_warmup_steps=2) if prune else optuna.pruners.NopPruner()
    with exit_on_sigterm():  # so that the trial under way is ended
        run_study(study, config, folder)
    return 0 if find_best(study) else 1


def open_study(
    folder: Path,
    url: str | None,
    fit: Sequence[str],
    search: list[str],
    metric: str | None,
    direction: str | None,
    sampler: str | None = None,
) -> tuple[Study, StudyConfig]:
    """Load the study of a folder, or check its recipe and search space and begin it."""
    try:
        storage = RDBStorage(
            url or f"sqlite:///{quote((folder / DATABASE).as_posix())}",
            engine_kwargs={"pool_pre_ping": True} if url else {"connect_args": {"timeout": 60}},
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )
    except Exception as error:  # of SQLAlchemy and its drivers
        raise ValueError(f"--storage: {str(error).splitlines()[0]}") from error
    name = folder.as_posix() if url else "study"
    requested = {"fit": list(fit), "search": search, "metric": metric, "direction": direction, "sampler": sampler}
    names = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage) if name in names else None
    saved = study.user_attrs.get("config") if study else None
    chosen = sampler or "tpe"  # also of a study of a version that did not record it
    config = (
        StudyConfig(**{"sampler": chosen, **saved})
        if saved
        else define_study(list(fit), search, metric, direction, chosen)
    )
    for key, value in requested.items():
        if value and value != getattr(config, key):
            raise ValueError(f"{folder}: the study there has another {key}: {getattr(config, key)}, not {value}")
    if study is None:
        goal: Any = "minimize" if config.direction == "min" else "maximize"
        study = optuna.create_study(study_name=name, storage=storage, direction=goal)
    study.set_user_attr("config", asdict(config))
    return study, config


def define_study(
    fit: list[str], search: list[str], metric: str | None, direction: str | None, sampler: str
) -> StudyConfig:
    """Describe a new study, after `zoo fit` has parsed the recipe with the limits of every key."""
    if not fit:
        raise ValueError("tune needs a recipe (`zoo list` names them), or --output with the folder of a study")
    if any(word.partition("=")[0].removeprefix("--") in RESERVED_KEYS[:2] for word in fit):
        raise ValueError("tune sets ckpt_path and trainer.default_root_dir of its trials itself: leave them out")
    space = parse_search_space(search)
    flags_set = {word.partition("=")[0].removeprefix("--").replace("init_args.", "") for word in fit}
    if twice := [key for key in space if key.replace("init_args.", "") in flags_set]:
        raise ValueError(f"--{twice[0]} is given and searched: leave one of them out")
    for flags in itertools.zip_longest(*(limit_flags(key, each) for key, each in space.items())):
        command = fit_command([*fit, *(flag for flag in flags if flag), "--print_config"])
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
    recipe = yaml.safe_load(done.stdout)
    monitor, mode = (recipe["checkpoints"][key] for key in ("monitor", "mode"))
    metric = metric or monitor
    if metric is None:
        raise ValueError(f"{fit[0]} names no checkpoints.monitor: give the --metric to optimise, such as val/loss")
    flat = flatten_config(recipe)
    full = {key.removesuffix(".class_path").replace("init_args.", ""): key for key in flat}  # a class by its place, too
    full |= {key.replace("init_args.", ""): key for key in flat}
    keys = {key: full.get(key.replace("init_args.", ""), key) for key in space}
    return StudyConfig(fit, search, metric, direction or (mode if metric == monitor else "min"), keys, sampler)


def fit_command(words: Sequence[str]) -> list[str]:
    """Return the command of a process that runs `zoo fit` with the packages that this one admits."""
    return [sys.executable, "-m", "zoo", *import_options(), "fit", *words]


def queue_trials(study: Study, trials: int | None, points: Sequence[dict[str, Any]] | None) -> None:
    """Queue the trials that a study still lacks; `points` are the values of those of a grid."""
    total = trials or study.user_attrs.get("trials") or (DEFAULT_TRIALS if points is None else len(points))
    total = total if points is None else min(total, len(points))
    if total < (count := len(planned_trials(study))):
        raise ValueError(f"--trials {total}: the study has {count} trials already, finished or queued")
    study.set_user_attr("trials", total)
    for number in range(len(planned_trials(study)), total):
        study.enqueue_trial(points[number] if points else {}, user_attrs={"folder": f"trial_{number:04d}"})
    if points and total < len(points):
        notify(f"--trials {total}: the first {total} of the grid's {len(points)} combinations")


def run_study(study: Study, config: StudyConfig, folder: Path) -> None:
    """Train queued trials until none is left or `MAX_FAILURES` in a row have failed, and write the results."""
    failures: list[str] = []

    def record_trial(study: Study, trial: FrozenTrial) -> None:
        if trial.state.name != "FAIL":
            failures.clear()
        elif "folder" in trial.user_attrs:
            failures.append(f"{trial.user_attrs['folder']}: {trial.user_attrs.get('reason')}")
        write_results(study, config, folder)

    notify(f"study in {folder}: {config.direction} {config.metric}, {len(planned_trials(study))} trials")
    while wait_for_trial(study):
        objective = partial(run_trial, config=config, folder=folder)
        study.optimize(objective, n_trials=1, catch=TrialError, callbacks=[record_trial])
        if len(failures) >= MAX_FAILURES:
            raise ValueError(f"{len(failures)} trials in a row failed (the same command continues): {failures[-1]}")
    write_results(study, config, folder)
    notify(f"{len(planned_trials(study))} trials: {folder / TRIALS_NAME}")
    if find_best(study):
        print((folder / BEST_NAME).read_text(encoding="utf-8"))


def wait_for_trial(study: Study) -> bool:
    """Return whether a trial is queued; one that another process lost is queued again within the grace period."""
    end = time.monotonic() + GRACE_SECONDS + HEARTBEAT_SECONDS
    while True:
        optuna.storages.fail_stale_trials(study)
        states = {trial.state.name for trial in study.get_trials(deepcopy=False)}
        if "WAITING" in states or "RUNNING" not in states or time.monotonic() > end:
            return "WAITING" in states
        time.sleep(POLL_SECONDS)


def run_trial(trial: Trial, config: StudyConfig, folder: Path) -> float:
    """Train a trial, or what is left of it, and return its best value; queue it again when a signal stops it."""
    if not re.fullmatch(r"trial_\d+", trial.user_attrs.get("folder", "")):
        raise TrialError  # another process took the last trial of the queue
    run, start = folder / trial.user_attrs["folder"], time.monotonic()
    flags = suggest(trial, parse_search_space(config.search))
    notify(f"{run.name}: {' '.join(flags)}")
    try:
        code = train(trial, config, run, flags)
    except (SystemExit, KeyboardInterrupt) as stop:
        notify(f"{run.name}: stopped; the same command continues it")
        if isinstance(stop, SystemExit):  # of a KeyboardInterrupt Optuna tells it itself
            trial.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        trial.study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)
        raise
    value, step = (min if config.direction == "min" else max)(read_curve(run, config.metric), default=(None, None))
    trial.set_user_attr("step", step)
    trial.set_user_attr("seconds", round(time.monotonic() - start, 1))
    if code is None:
        notify(f"{run.name}: pruned, {config.metric} {value} at step {step}")
        raise optuna.TrialPruned
    if code != 0 or value is None:
        trial.set_user_attr("reason", failure_reason(run, code, config.metric))
        notify(f"{run.name}: failed: {trial.user_attrs['reason']}")
        raise TrialError
    notify(f"{run.name}: {config.metric} {value:.6g} at step {step}")
    return value


def read_curve(run: Path, metric: str) -> list[tuple[float, int]]:
    """Read a run's validations as (value, batches trained)."""
    points = dict(read_curves(run / CSV_NAME).get(metric, []))
    return [(value, int(step) + 1) for step, value in points.items()]


def train(trial: Trial, config: StudyConfig, run: Path, flags: Sequence[str]) -> int | None:
    """Run `zoo fit` and report its validations to the study; return the exit code, None for a pruned trial."""
    process, reported = start_fit(config, run, flags), 0
    try:
        while True:
            code = process.poll()
            for value, _ in read_curve(run, config.metric)[reported:]:
                reported += 1
                trial.report(value, reported)
                if code is None and trial.should_prune():
                    return None
            if code in STOP_CODES:
                raise SystemExit(128 + abs(code) % 128)
            if code is not None:
                return code
            time.sleep(POLL_SECONDS)
    finally:
        process.terminate()
        process.wait()


def start_fit(config: StudyConfig, run: Path, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start `zoo fit` for a trial, from the newest valid checkpoint of its run folder or from the start."""
    words = [*config.fit, f"--checkpoints.monitor={config.metric}", f"--checkpoints.mode={config.direction}", *flags]
    if any(word.partition("=")[0] == "--allow-import" for word in words):  # is never taken from a study's database
        raise ValueError(f"{run.parent}: the study's command admits packages; give --allow-import yourself")
    words += [f"--trainer.default_root_dir={run}", *(["--ckpt_path", str(run)] if any(run.glob("*.ckpt")) else [])]
    run.mkdir(parents=True, exist_ok=True)
    with (run / OUTPUT_LOG).open("ab") as log:
        return subprocess.Popen(
            fit_command(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=None if os.name == "nt" else die_with_parent,
        )  # fmt: skip


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; for `preexec_fn`, does nothing outside of Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def failure_reason(run: Path, code: int, metric: str) -> str:
    """Describe in one line why a trial failed."""
    if code == 0:
        return f"no finite {metric} was logged; see metrics.csv for the metrics there are"
    log = (run / OUTPUT_LOG).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((" ".join(line.split()) for line in reversed(log) if "error:" in line), f"exit code {code}")


def notify(line: str) -> None:
    """Print a line, unless the command is quiet."""
    if verbosity() != "quiet":
        print(line, flush=True)


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
    fragment, config_file = OmegaConf.create(), folder / best.user_attrs["folder"] / CONFIG_NAME
    for key, value in recipe_values(best).items():
        option = config.keys[key]
        if option.endswith(".class_path") and config_file.is_file():
            option = option.removesuffix(".class_path")
            value = OmegaConf.select(OmegaConf.load(config_file), option)  # with arguments kept of another class
        OmegaConf.update(fragment, option, value, force_add=True)
    command = shlex.join(["zoo", "fit", *config.fit, "--config", str(folder / BEST_NAME), *import_options()])
    text = (
        f"# {config.metric} {best.value:.6g} at step {best.user_attrs.get('step')}: {best.user_attrs['folder']}, "
        f"best of {len(rows)} trials\n# Use: {command}\n{OmegaConf.to_yaml(fragment)}"
    )
    write_atomic(folder / BEST_NAME, lambda file: file.write(text.encode()))
