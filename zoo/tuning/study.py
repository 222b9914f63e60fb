"""`zoo tune`: a study of Optuna over keys of a recipe, whose trials are runs of `zoo fit`.

The trials of a study are queued in its database when it begins; any number of processes take them from there. Each
records heartbeats while it trains. A trial whose heartbeats stop is queued again by the next process that looks, and
continues from its newest checkpoint.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from zoo.cli.recipes import SETTINGS_SUFFIXES
from zoo.common.checks import check_at_least
from zoo.common.environment import verbosity
from zoo.common.locks import lock_folder
from zoo.common.registry import allowed_packages
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.run_folder import CSV_NAME
from zoo.runs.run_info import path_size, read_curves
from zoo.tuning.report import (
    StudyConfig,
    find_best,
    format_value,
    planned_trials,
    print_study,
    short_names,
    write_plots,
    write_results,
)  # fmt: skip
from zoo.tuning.search_space import (
    RESERVED_KEYS,
    complete_key,
    grid_points,
    limit_values,
    parse_search_space,
    suggest,
    to_flag,
)  # fmt: skip

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, Trial

DATABASE, OUTPUT_LOG = "study.db", "output.log"
DEFAULT_TRIALS = 20
HEARTBEAT_SECONDS, GRACE_SECONDS = 10, 40  # a trial without a heartbeat for so long is queued again
LOCK_SECONDS = 300.0
POLL_SECONDS = 0.5
STOP_SECONDS = 600.0  # that a pruned trial has to save
# Set by what starts several ranks; a trial starts its ranks itself.
RANK_VARIABLES = re.compile(r"(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|SLURM_(PROCID|LOCALID|NODEID|NTASKS.*)")
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
STOP_CODES = {128 + number for number in STOP_SIGNALS} | {-number for number in STOP_SIGNALS}


class TrialError(RuntimeError):
    """A trial failed; the message is the reason in one line."""


def main(
    *fit: str,
    search: list[str] = [],  # noqa: B006
    metric: str | None = None,
    direction: Literal["min", "max"] | None = None,
    trials: int | None = None,
    prune: bool = False,
    startup: int = 5,
    warmup: int = 1,
    sampler: Literal["tpe", "random", "grid"] = "tpe",
    seed: int = 0,
    output: Path | None = None,
    study: str | None = None,
    storage: str | None = None,
    max_failures: int = 3,
) -> int:
    """Search a recipe's keys for the best metric: zoo tune RECIPE --search 'KEY=log(1e-5, 1e-3)' ... --trials 40.

    Trials are runs in OUTPUT/trial_0000 and so on. The same command again, at the same time or after a kill, works on
    the same study; `zoo tune --output DIR` alone continues the one there. OUTPUT then holds trials.csv, best.yaml
    for `zoo fit RECIPE best.yaml`, and plots.

    Args:
        *fit: a recipe, fragments to lay over it, and flags of `zoo fit`, the same for every trial.
        search: KEY=log(low, high), KEY=uniform(low, high[, step]), KEY=int(low, high[, step]), KEY=choice(a, b), or a
            YAML file of these; repeatable.
        metric: whose best value over a trial's validations counts; the recipe's checkpoints.monitor when not given.
        direction: min or max; that of the recipe's monitor, min for another metric.
        trials: of the whole study, failed ones included; 20, or every point of a grid, when not given.
        prune: stop trials whose best value is worse than the median of the others at the same validation.
        startup: trials that finish before any is pruned.
        warmup: validations of a trial before it may be pruned.
        sampler: tpe, random, or grid: every combination of choices and steps once.
        seed: of the sampler; the trials' own is the recipe's.
        output: folder of the study; runs/tune/SYSTEM/RECIPE when not given.
        study: its name in the storage; SYSTEM/RECIPE when not given.
        storage: a URL of SQLAlchemy such as postgresql://host/db; sqlite in OUTPUT/study.db when not given.
        max_failures: trials that may fail one after the other before this process gives up.

    Returns:
        0; 1 when no trial has succeeded, or too many in a row have failed.

    Raises:
        ValueError: a wrong key, value or search space, or another study in this folder.
        ImportError: without Optuna.
    """
    check_at_least(1, trials=DEFAULT_TRIALS if trials is None else trials, startup=startup, max_failures=max_failures)
    check_at_least(0, warmup=warmup, seed=seed)
    try:
        import optuna
    except ImportError as error:
        raise ImportError(f"tune needs Optuna: pip install 'zoo[tune]' ({error})") from error
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    space = parse_search_space(search) if search or fit else {}
    points = grid_points(space) if sampler == "grid" and space else None
    folder = output or Path("runs", "tune", _recipe_name(fit))
    with lock_folder(folder, "tune", LOCK_SECONDS):
        opened, config = open_study(folder, fit, space, metric, direction, study, storage)
        starts = opened.user_attrs.get("starts", 0)
        opened.set_user_attr("starts", starts + 1)  # two processes must not sample the same values
        queue_trials(opened, trials, points)
    samplers = {"tpe": partial(optuna.samplers.TPESampler, constant_liar=True)}
    opened.sampler = samplers.get(sampler, optuna.samplers.RandomSampler)(seed=seed + starts)
    opened.pruner = optuna.pruners.MedianPruner(startup, warmup + 1) if prune else optuna.pruners.NopPruner()
    return run_study(opened, config, folder, max_failures)


def _recipe_name(fit: Sequence[str]) -> str:
    """Return `SYSTEM/RECIPE` of the first recipe or file that a command line names."""
    for word in fit:
        if not word.startswith("-") and ("/" in word or word.endswith(SETTINGS_SUFFIXES)):
            path = Path(word).absolute().with_suffix("")
            system = path.parent.parent if path.parent.name == "configs" else path.parent
            return f"{system.name}/{path.name}"
    return "study"


def open_storage(url: str) -> RDBStorage:
    """Open a database of Optuna that keeps heartbeats and queues a trial again when they stop.

    Raises:
        ValueError: for a URL that cannot be opened.
    """
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback

    engine = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    try:
        return RDBStorage(
            url,
            engine_kwargs=engine,
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )
    except Exception as error:  # of SQLAlchemy and its drivers
        shown = re.sub("//.*@", "//…@", url)
        raise ValueError(f"--storage {shown}: {str(error).splitlines()[0]}") from error


def open_study(
    folder: Path, fit: Sequence[str], space: Mapping[str, BaseDistribution], metric: str | None,
    direction: str | None, name: str | None, url: str | None,
) -> tuple[Study, StudyConfig]:  # fmt: skip
    """Load a study, or check its recipe and search space and begin it.

    Raises:
        ValueError: the storage holds another study of this name.
    """
    import optuna
    from optuna.distributions import distribution_to_json

    exists = url is not None or (folder / DATABASE).is_file()
    if not fit and not exists:
        raise ValueError("tune needs a recipe (`zoo list` names them), or --output with the folder of a study")
    storage = open_storage(url or f"sqlite:///{(folder / DATABASE).as_posix()}") if exists else None
    names = optuna.get_all_study_names(storage) if storage else []
    name = name or (names[0] if len(names) == 1 and (not fit or url is None) else _recipe_name(fit))
    search = {key: distribution_to_json(each) for key, each in space.items()}
    if storage is not None and name in names:
        study = optuna.load_study(study_name=name, storage=storage)
        if saved := study.user_attrs.get("config"):
            given = {"fit": list(fit), "search": search, "metric": metric, "direction": direction}
            given |= {"output": str(folder.absolute())} if url else {}
            known = saved | {"output": study.user_attrs["output"]}
            for key, value in given.items():
                if value and value != known[key]:
                    raise ValueError(f"{folder}: the study {name} has another {key}: {known[key]}, not {value}")
            return study, StudyConfig(**saved)
    if not fit:
        raise ValueError(f"{folder}: no study {name} (those in the storage: {', '.join(names) or 'none'})")
    config = define_study(name, fit, space, search, metric, direction)
    storage = storage or open_storage(f"sqlite:///{(folder / DATABASE).as_posix()}")
    goal: Literal["minimize", "maximize"] = "minimize" if config.direction == "min" else "maximize"
    study = optuna.create_study(study_name=name, storage=storage, direction=goal, load_if_exists=True)
    study.set_user_attr("output", str(folder.absolute()))
    study.set_user_attr("config", asdict(config))
    return study, config


def define_study(
    name: str, fit: Sequence[str], space: Mapping[str, BaseDistribution], search: dict[str, str],
    metric: str | None, direction: str | None,
) -> StudyConfig:  # fmt: skip
    """Describe a new study, after the recipe has been parsed with the limits of every key."""
    if any(word.partition("=")[0].removeprefix("--") in RESERVED_KEYS[:2] for word in fit):
        raise ValueError("tune sets ckpt_path and trainer.default_root_dir of its trials itself: leave them out")
    limits = [[to_flag(key, value) for value in limit_values(each)] for key, each in space.items()]
    flags = [[flag for flag in row if flag] for row in itertools.zip_longest(*limits)]
    recipe = parse_recipe([[*fit, *row] for row in flags])
    monitor, mode = recipe["checkpoints"]["monitor"], recipe["checkpoints"]["mode"]
    metric = metric or monitor
    if metric is None:
        raise ValueError(f"{fit[0]} names no checkpoints.monitor: give the --metric to optimise, such as val/loss")
    direction = direction or (mode if metric == monitor else "min")
    more = []
    if (metric, direction) != (monitor, mode):
        more = [f"--checkpoints.monitor={metric}", f"--checkpoints.mode={direction}"]
    if "wandb" in recipe["loggers"] and recipe["wandb"]["group"] is None:
        more.append(f"--wandb.group={name}")
    return StudyConfig(
        name, list(fit), search, metric, direction, more, {key: complete_key(recipe, key) for key in space}
    )


def parse_recipe(commands: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Parse arguments of `zoo fit` in a process that gives its memory back.

    Returns:
        The config of the first command.

    Raises:
        SystemExit: when one is refused; the process has printed why.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        texts = [pool.submit(print_config, command, allowed_packages()).result() for command in commands]
    for text in texts:
        if isinstance(text, int):
            raise SystemExit(text)
    return dict(yaml.safe_load(str(texts[0])))


def print_config(fit: Sequence[str], packages: Sequence[str]) -> str | int:
    """Return what `zoo fit ... --print_config` prints, or its exit code."""
    from zoo.cli.main import main as run_command

    words = [word for name in packages for word in ("--allow-import", name)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = run_command(["fit", *fit, *words, "--print_config"])
    return code or printed.getvalue()


def queue_trials(study: Study, trials: int | None, points: Sequence[Mapping[str, Any]] | None) -> None:
    """Queue the trials that a study still lacks.

    Args:
        trials: of the whole study; those it has, all points, or 20 when None.
        points: values of the trials of a grid.
    """
    total = trials or study.user_attrs.get("trials") or (DEFAULT_TRIALS if points is None else len(points))
    total = total if points is None else min(total, len(points))
    study.set_user_attr("trials", total)
    for number in range(len(planned_trials(study)), total):
        study.enqueue_trial(dict(points[number]) if points else {}, user_attrs={"folder": f"trial_{number:04d}"})
    if points and total < len(points):
        notify(f"--trials {total}: the first {total} of the grid's {len(points)} combinations")


def run_study(study: Study, config: StudyConfig, folder: Path, max_failures: int) -> int:
    """Train queued trials until none is left; returns the exit code.

    Raises:
        ValueError: `max_failures` trials in a row failed.
    """
    failures: list[str] = []

    def record_trial(study: Study, trial: FrozenTrial) -> None:
        if trial.state.name != "FAIL":
            failures.clear()
        elif "folder" in trial.user_attrs:
            failures.append(f"{trial.user_attrs['folder']}: {trial.user_attrs.get('reason')}")
        write_results(study, config, folder)

    notify(f"study {config.name} in {folder}: {config.direction} {config.metric}, {len(planned_trials(study))} trials")
    with _stop_by_signal():
        while wait_for_trial(study):
            objective = partial(run_trial, config=config, folder=folder)
            study.optimize(objective, n_trials=1, catch=TrialError, callbacks=[record_trial])
            if len(failures) >= max_failures:
                raise ValueError(
                    f"{len(failures)} trials in a row failed, the last one {failures[-1]} "
                    "(--max_failures allows more; the same command continues)"
                )
    write_results(study, config, folder)
    write_plots(study, config, folder)
    print_study(study, config, folder)
    return 0 if find_best(study, config) else 1


@contextlib.contextmanager
def _stop_by_signal() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def wait_for_trial(study: Study) -> bool:
    """Return whether a trial is queued; one that another process lost is queued again within the grace period."""
    import optuna
    from optuna.trial import TrialState

    end = time.monotonic() + GRACE_SECONDS + HEARTBEAT_SECONDS
    while True:
        optuna.storages.fail_stale_trials(study)
        states = {trial.state for trial in study.get_trials(deepcopy=False)}
        if TrialState.WAITING in states:
            return True
        if TrialState.RUNNING not in states or time.monotonic() > end:
            return False
        time.sleep(2 * POLL_SECONDS)


def run_trial(trial: Trial, config: StudyConfig, folder: Path) -> float:
    """Train a trial, or what is left of it.

    Returns:
        Its best value.

    Raises:
        TrialError: it failed.
        TrialPruned: by the study's pruner.
        SystemExit: a signal stopped this process or the training; the trial is queued again.
    """
    import optuna
    from optuna.distributions import json_to_distribution

    if not re.fullmatch(r"trial_\d+", trial.user_attrs.get("folder", "")):
        raise TrialError("another process took the last trial of the queue")
    run, begun = folder / trial.user_attrs["folder"], time.monotonic()
    values = suggest(trial, {key: json_to_distribution(text) for key, text in config.search.items()})
    names = short_names(list(values))
    notify(f"{run.name}: {', '.join(f'{names[key]} {format_value(value)}' for key, value in values.items())}")
    try:
        code = train(trial, config, run, [to_flag(key, value) for key, value in values.items()])
    except SystemExit:
        notify(f"{run.name}: stopped; the same command continues it")
        trial.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        again = next(each for each in trial.study.get_trials() if each.number == trial.number)
        optuna.storages.RetryHeartbeatStaleTrialCallback()(trial.study, again)
        raise
    curve = read_curve(run, config.metric)
    value, step = (min if config.direction == "min" else max)(curve, default=(None, None))
    trial.set_user_attr("step", step)
    trial.set_user_attr("seconds", round(trial.user_attrs.get("seconds", 0.0) + time.monotonic() - begun, 1))
    if code is None:
        notify(f"{run.name}: pruned, {config.metric} {value} at step {step}")
        raise optuna.TrialPruned
    if code != 0 or value is None:
        reason = failure_reason(run, code, config.metric)
        trial.set_user_attr("reason", reason)
        notify(f"{run.name}: failed: {reason}")
        raise TrialError(reason)
    notify(f"{run.name}: {config.metric} {value:.6g} at step {step}")
    return value


def read_curve(run: Path, metric: str) -> list[tuple[float, int]]:
    """Read a run's validations as (value, batches trained)."""
    points = dict(read_curves(run / CSV_NAME).get(metric, []))
    return [(value, int(step) + 1) for step, value in points.items()]


def train(trial: Trial, config: StudyConfig, run: Path, values: Sequence[str]) -> int | None:
    """Run `zoo fit` for a trial and report its validations to the study.

    Returns:
        The exit code; None when the trial was pruned.

    Raises:
        SystemExit: the training was stopped by a signal.
    """
    reported, size = 0, -1

    def should_prune() -> bool:
        nonlocal reported, size
        before, size = size, path_size(run / CSV_NAME)
        for value, _ in read_curve(run, config.metric)[reported:] if size != before else ():
            reported += 1
            trial.report(value, reported)
            if trial.should_prune():
                return True
        return False

    if should_prune():
        return None
    process = start_fit(config, run, values)
    end = None
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if end is None and should_prune():
                end = time.monotonic() + STOP_SECONDS
                process.terminate()
            if end is not None and time.monotonic() > end:
                process.kill()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if end is not None and process.returncode != 0:
        return None
    if process.returncode in STOP_CODES:
        raise SystemExit(abs(process.returncode) % 128 + 128)
    should_prune()  # reports the last validation
    return process.returncode


def start_fit(config: StudyConfig, run: Path, values: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start `zoo fit` for a trial, from the newest valid checkpoint of its run folder or from the start."""
    words = [*config.fit, *config.flags, *values]
    if any(word.partition("=")[0] == "--allow-import" for word in words):  # is never taken from a study's database
        raise ValueError(f"{run.parent}: the study's command admits packages; give --allow-import yourself")
    command = [sys.executable, "-m", "zoo", *(word for name in allowed_packages() for word in ("--allow-import", name))]
    command += ["fit", *words, f"--trainer.default_root_dir={run}"]
    if any(run.glob("*.ckpt")):
        try:
            command += ["--ckpt_path", str(find_checkpoint(run))]
        except (ValueError, FileNotFoundError):
            shutil.rmtree(run)
    run.mkdir(parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not RANK_VARIABLES.fullmatch(key)}
    with (run / OUTPUT_LOG).open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            preexec_fn=None if os.name == "nt" else die_with_parent,
        )  # fmt: skip


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def failure_reason(run: Path, code: int | None, metric: str) -> str:
    """Describe in one line why a trial failed."""
    if code == 0:
        logged = [key for key in read_curves(run / CSV_NAME) if key.startswith("val/")]
        return f"no finite value of {metric} was logged (val/ metrics: {', '.join(logged) or 'none'})"
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = (run / OUTPUT_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "error:" in line] or [line for line in lines if line.strip()]
    return " ".join(errors[-1].split()) if errors else f"exit code {code}"


def notify(line: str) -> None:
    """Print a line, unless the command is quiet."""
    if verbosity() != "quiet":
        print(line, flush=True)
