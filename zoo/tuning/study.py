"""`zoo tune`: a study of Optuna over a recipe's keys, whose trials are runs.

Each trial is `zoo fit` in a process of its own and in a run folder of its own, `OUTPUT/trial_0007`. Any number of
processes work on one study. Who asks for a trial, or takes one up, holds the study's lock; who trains it holds the
trial's, which the system drops when a process is killed. So a trial that is open and not held belongs to nobody, and
the next process that looks goes on with it: from its newest checkpoint, else anew.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from filelock import BaseFileLock, FileLock, Timeout

from zoo.cli.recipes import find_recipe, pairs, read_files, recipes_named
from zoo.common.atomic import write_atomic
from zoo.common.hardware import die_with_parent
from zoo.common.options import CONFIG_OPTIONS, verbosity
from zoo.common.ranges import at_least
from zoo.common.reading.configs import read_mapping
from zoo.common.registry import admitted
from zoo.runs.folder import find_checkpoint
from zoo.runs.listing import CSV_NAME, read_curves, size_of
from zoo.training.signals import EXIT_CODES
from zoo.tuning.report import folder_name, short_names, show_study, shown, write_best, write_plots, write_trials
from zoo.tuning.search import Definition, Space, option, parse_space, parse_spaces

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, Trial

STUDY_FILE, JOURNAL, LOCKS, OUTPUT_LOG = "study.yaml", "study.journal", ".locks", "output.log"
DEFAULT_TRIALS = 20
POLL_SECONDS = 0.5
STOP_SECONDS = 600.0  # that a pruned trial has to save
PRUNED_AT = "pruned at validation"
# What starts several ranks tells them; a trial is a process of its own, which starts its ranks itself.
RANK_VARIABLES = re.compile(r"(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|SLURM_(PROCID|LOCALID|NODEID|NTASKS.*)")
STOPPED = {*EXIT_CODES.values(), -signal.SIGTERM, -signal.SIGINT}


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
    the same study; `zoo tune --output DIR` alone goes on with the one there. OUTPUT then holds trials.csv, best.yaml
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
        storage: a URL such as sqlite:///study.db, or a journal file; OUTPUT/study.journal when not given.
        max_failures: trials that may fail one after the other before this process gives up.

    Returns:
        0; 1 when no trial has succeeded, or too many in a row have failed.

    Raises:
        ValueError: a wrong key, value or search space, or another study in this folder.
        ImportError: without Optuna.
    """
    at_least(1, trials=DEFAULT_TRIALS if trials is None else trials, startup=startup, max_failures=max_failures)
    at_least(0, warmup=warmup, seed=seed)
    try:
        import optuna
    except ImportError as error:
        raise ImportError(f"tune needs Optuna: pip install 'zoo[tune]' ({error})") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    folder = output or Path("runs", "tune", _recipe_name(fit))
    there = _read_definition(folder)
    if not fit and there is None:
        raise ValueError("tune needs a recipe (`zoo list` names them), or --output with the folder of a study")
    wished: dict[str, Any] = {"fit": list(fit) or None, "metric": metric, "mode": direction, "name": study}
    if search or there is None:
        wished["search"] = {each.key: str(each) for each in parse_spaces(search)}
    _compare(there, wished, folder)
    spaces = [parse_space(key, text, STUDY_FILE) for key, text in (there.search if there else wished["search"]).items()]
    grid = itertools.product(*(each.points() for each in spaces)) if sampler == "grid" else None
    points = None if grid is None else list(itertools.islice(grid, trials))
    definition = there or _define(wished)
    pruner = optuna.pruners.MedianPruner(startup, warmup + 1) if prune else None
    most = (trials or DEFAULT_TRIALS) if points is None else len(points)
    tuner = Tuner(folder, spaces, most, max_failures, pruner, sampler, seed, points)
    with tuner.alone():
        there = _read_definition(folder)  # another process may have begun it meanwhile
        _compare(there, wished, folder)
        tuner.open(there or definition, storage, begun=next(folder.glob("trial_*"), None) is not None)
    return tuner.run()


def _recipe_name(fit: Sequence[str]) -> str:
    """`<system>/<recipe>` of the first file that a command line names."""
    for word, value, _ in pairs(fit):
        if word in ("", *CONFIG_OPTIONS) and value:
            path = find_recipe(value).absolute()
            folder = path.parent.parent if path.parent.name == "configs" else path.parent
            return f"{folder.name}/{path.stem}"
    return "study"


def _read_definition(folder: Path) -> Definition | None:
    path = folder / STUDY_FILE
    try:
        return Definition(**read_mapping(path)) if path.is_file() else None
    except TypeError as error:
        raise ValueError(f"{path} describes no study of zoo tune: {error}") from error


def _compare(there: Definition | None, wished: Mapping[str, Any], folder: Path) -> None:
    """Refuse to join a study that is another than the wished one."""
    for key, value in wished.items():
        known = getattr(there, key, None)
        if there is not None and value is not None and value != known:
            raise ValueError(
                f"{folder} holds a study with another {'command' if key == 'fit' else key} ({known}, here {value}): "
                "give the same, or another --output"
            )


def _define(wished: Mapping[str, Any]) -> Definition:
    """Describe a new study; every key and a sample of the values are checked against the recipe."""
    fit, search = wished["fit"], wished["search"]
    spaces = [parse_space(key, text, "--search") for key, text in search.items()]
    named = recipes_named(list(fit))
    for each in spaces:
        read_files([*named, *(option(each.key, value) for value in each.samples()[:1])])
    if any(word in ("--ckpt_path", "--trainer.default_root_dir") for word, _, _ in pairs(fit)):
        raise ValueError("tune sets ckpt_path and trainer.default_root_dir of its trials itself: leave them out")
    samples = itertools.zip_longest(*([option(each.key, value) for value in each.samples()] for each in spaces))
    recipe = _parsed([[*named, *(each for each in together if each)] for together in samples])
    metric = wished["metric"] or recipe["monitor"]
    if metric is None:
        raise ValueError(f"{fit[0]} names no checkpoints.monitor: give the --metric to optimise, such as val/loss")
    mode = wished["mode"] or (recipe["mode"] if metric == recipe["monitor"] else "min")
    own = (metric, mode) == (recipe["monitor"], recipe["mode"])
    name = wished["name"] or _recipe_name(fit)
    more = [] if own else [f"--checkpoints.monitor={metric}", f"--checkpoints.mode={mode}"]
    more += [f"--wandb.group={name}"] if "wandb" in recipe["loggers"] and recipe["group"] is None else []
    return Definition(name, list(fit), dict(search), metric, mode, more, uuid.uuid4().hex)


def _parsed(commands: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Parse arguments of `zoo fit` with all their types, in a process that gives its memory back.

    Returns:
        What the recipe says that a study needs.

    Raises:
        SystemExit: with code 2, after the one line that says what is wrong.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(parse_all, commands, admitted()).result()
    if "error" in found:
        raise ValueError(found["error"])
    if "code" in found:
        raise SystemExit(found["code"])
    return found


def parse_all(commands: Sequence[Sequence[str]], packages: Sequence[str]) -> dict[str, Any]:
    """What `_parsed` does in its process."""
    from zoo.cli.parser import limit_names
    from zoo.cli.quiet import filter_warnings, quietly
    from zoo.cli.trainer import ZooCLI
    from zoo.common.registry import admit

    class Parsed(ZooCLI):
        """Builds nothing."""

        def _set_seed(self) -> None:
            """Nothing."""

        def before_instantiate_classes(self) -> None:
            """Nothing."""

        def instantiate_classes(self) -> None:
            """Nothing."""

    filter_warnings()
    admit(packages)
    limit_names()
    try:
        with quietly():
            parsed = [Parsed("fit", list(command)).config for command in commands]
    except SystemExit as stop:
        return {"code": stop.code}
    except ValueError as error:
        return {"error": " ".join(str(error).split())}
    config = parsed[0]
    kept = {"monitor": config["checkpoints.monitor"], "mode": config["checkpoints.mode"]}
    return {**kept, "loggers": list(config["loggers"]), "group": config["wandb.group"]}


class _JournalLock:
    """A lock for Optuna's journal that a killed process drops at once; who takes it cuts off a torn last line."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.lock = journal, FileLock(f"{journal}.lock")

    def acquire(self) -> bool:
        """Wait for it."""
        self.lock.acquire()
        with contextlib.suppress(FileNotFoundError), self.journal.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Give it back."""
        self.lock.release()


def open_storage(storage: str | None, folder: Path) -> BaseStorage:
    """Optuna's storage of a URL or a journal file; the journal of the study's folder when None.

    Raises:
        ValueError: for a URL that Optuna cannot open.
    """
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    if storage is None or "://" not in storage:
        journal = Path(storage) if storage else folder / JOURNAL
        journal.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(journal), lock_obj=_JournalLock(journal)))  # type: ignore[arg-type]
    waiting = {"connect_args": {"timeout": 60}} if storage.startswith("sqlite") else {"pool_pre_ping": True}
    try:
        return RDBStorage(storage, engine_kwargs=waiting)
    except Exception as error:  # SQLAlchemy's and its drivers'
        said = str(error).splitlines()[0]
        raise ValueError(f"--storage {re.sub('//.*@', '//…@', storage)}: {said}") from error


class Tuner:
    """One process on a study.

    Args:
        most: trials of the whole study.
        max_failures: in a row, after which this process ends.
        pruner: of Optuna.
        sampler: "tpe" or "random".
        points: values of all trials, where they are a grid.
    """

    study: Study
    definition: Definition

    def __init__(
        self, folder: Path, spaces: Sequence[Space], most: int, max_failures: int = 3, pruner: BasePruner | None = None,
        sampler: str = "random", seed: int = 0, points: Sequence[tuple[Any, ...]] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.spaces, self.most, self.max_failures = folder, spaces, most, max_failures
        self.pruner, self.sampler, self.seed, self.points = pruner, sampler, seed, points

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the study's lock."""
        with self._lock("study"):
            yield

    def _lock(self, name: str) -> BaseFileLock:
        locks = self.folder / LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / name)

    def open(self, definition: Definition, storage: str | None, begun: bool) -> None:
        """Load the study, or begin it.

        Args:
            begun: whether the folder holds trials.

        Raises:
            ValueError: the storage holds another study of this name, or not the one that was begun here.
        """
        import optuna

        self.definition = definition
        path = self.folder / STUDY_FILE
        if not path.is_file():
            text = yaml.safe_dump(asdict(definition), sort_keys=False, allow_unicode=True, width=120)
            write_atomic(path, lambda file: file.write(text.encode()))
        opened = open_storage(storage, self.folder)
        names = optuna.get_all_study_names(opened)
        if definition.name not in names and begun:
            raise ValueError(
                f"{self.folder} holds trials of the study {definition.name!r}, which is not in "
                f"{storage or self.folder / JOURNAL}: give the --storage that it was begun with"
            )
        direction: Literal["minimize", "maximize"] = "minimize" if definition.mode == "min" else "maximize"
        self.study = optuna.create_study(
            storage=opened, study_name=definition.name, direction=direction, load_if_exists=True
        )
        known = self.study.user_attrs.get("key")
        if known is None:
            self.study.set_user_attr("key", definition.key)
        elif known != definition.key:
            raise ValueError(
                f"the study {definition.name!r} in {storage} has its trials in another folder than {self.folder}: "
                "give that as --output, or another name by --study"
            )

    def run(self) -> int:
        """Train trials until the study has all of them; the exit code."""
        before = {number: signal.signal(number, _leave) for number in EXIT_CODES if number != signal.SIGINT}
        done = self.study.get_trials(deepcopy=False)
        tell(f"study {self.definition.name} in {self.folder}: {len(done)} of {self.most} trials begun, {self._goal()}")
        failed = 0
        try:
            while (claimed := self._claim()) is not None:
                trial, lock = claimed
                try:
                    reason = self._train(trial)
                finally:
                    lock.release()
                failed = failed + 1 if reason else 0
                with self.alone():
                    write_trials(self.study, self.definition, self.folder)
                    write_best(self.study, self.definition, self.spaces, self.folder)
                if failed >= self.max_failures:
                    raise ValueError(
                        f"{failed} trials in a row failed, the last one, {folder_name(trial.number)}: {reason} "
                        "(--max_failures allows more; the same command goes on)"
                    )
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            with self.alone():
                write_trials(self.study, self.definition, self.folder)
        with self.alone():
            best = write_best(self.study, self.definition, self.spaces, self.folder)
            write_plots(self.study, self.definition, self.folder)
        show_study(self.study, self.definition, self.folder)
        return 0 if best else 1

    def _value(self, value: float | None) -> str:
        return f"{self.definition.metric} {'unknown' if value is None else f'{value:.6g}'}"

    def _goal(self) -> str:
        return f"{'lowest' if self.definition.mode == 'min' else 'highest'} {self.definition.metric}"

    def _claim(self) -> tuple[Trial, BaseFileLock] | None:
        """Take up an open trial that nobody holds, else begin one; None when the study has all its trials."""
        from optuna.trial import Trial, TrialState

        with self.alone():
            trials = self.study.get_trials(deepcopy=False)
            for open_trial in (each for each in trials if each.state == TrialState.RUNNING):
                lock = self._lock(folder_name(open_trial.number))
                try:
                    lock.acquire(timeout=0)
                except Timeout:
                    continue
                if self._stored(open_trial._trial_id).state == TrialState.RUNNING:  # its owner may just have ended it
                    self._prepare(open_trial.number)
                    return self._suggested(Trial(self.study, open_trial._trial_id)), lock
                lock.release()
            if len(trials) >= self.most:
                return None
            lock = self._lock(folder_name(len(trials)))
            lock.acquire()
            self._prepare(len(trials))
            return self._suggested(self.study.ask()), lock

    def _prepare(self, number: int) -> None:
        """Have the sampler draw what depends on the seed, the trial's number and the trials before it alone."""
        from optuna import samplers
        from optuna.pruners import NopPruner

        seed = (self.seed * 1_000_003 + number) % 2**32
        drawn: BaseSampler = (
            samplers.RandomSampler(seed)
            if self.sampler != "tpe"
            else samplers.TPESampler(seed=seed, constant_liar=True)
        )
        if self.points is not None:
            point = dict(zip((each.key for each in self.spaces), self.points[number % len(self.points)], strict=True))
            drawn = samplers.PartialFixedSampler(point, drawn)
        self.study.sampler, self.study.pruner = drawn, self.pruner or NopPruner()

    def _stored(self, trial_id: int) -> FrozenTrial:
        return self.study._storage.get_trial(trial_id)

    def _suggested(self, trial: Trial) -> Trial:
        for space in self.spaces:
            space.suggest(trial)
        return trial

    def _train(self, trial: Trial) -> str:
        """Train a trial, or what is left of it, and tell the study; the reason where it failed."""
        from optuna.trial import TrialState

        folder, known, code = self.folder / folder_name(trial.number), trial.user_attrs, None
        values = {space.key: space.suggest(trial) for space in self.spaces}
        begun = time.monotonic()
        names = short_names(list(values))
        tell(f"{folder.name}: {', '.join(f'{names[key]} {shown(value)}' for key, value in values.items())}")
        self._report(trial, folder)
        if PRUNED_AT not in known:
            self._judge(trial, 0)  # taken up
        if PRUNED_AT not in trial.user_attrs:
            code = self._fit(trial, folder, [option(key, value) for key, value in values.items()])
        seconds = known.get("seconds", 0.0) + time.monotonic() - begun
        trial.set_user_attr("seconds", round(seconds, 1))
        points = self._report(trial, folder)
        value, step = (min if self.definition.mode == "min" else max)(points, default=(None, None))
        trial.set_user_attr("step", step)
        if code in STOPPED and PRUNED_AT not in trial.user_attrs:
            tell(f"{folder.name}: stopped by a signal; the same command goes on with it")
            raise SystemExit(code if code > 0 else 128 - code)
        if PRUNED_AT in trial.user_attrs and code != 0:
            self.study.tell(trial, state=TrialState.PRUNED)
            when = f"pruned at validation {trial.user_attrs[PRUNED_AT]}"
            tell(f"{folder.name}: {when}, {self._value(value)} at step {step}")
            return ""
        reason = "" if code == 0 and value is not None else self._reason(folder, code)
        if reason:
            trial.set_user_attr("reason", reason)
            self.study.tell(trial, state=TrialState.FAIL)
            tell(f"{folder.name}: failed: {reason}")
        else:
            self.study.tell(trial, value)
            best = self.study.best_trial
            tell(
                f"{folder.name}: {self._value(value)} at step {step} "
                f"(best so far {best.value:.6g}, {folder_name(best.number)})"
            )
        return reason

    def _fit(self, trial: Trial, folder: Path, values: Sequence[str]) -> int:
        """Run `zoo fit` for a trial, stop it when it is pruned; its exit code."""
        definition = self.definition
        command = [sys.executable, "-m", "zoo", *(word for name in admitted() for word in ("--allow-import", name))]
        command += ["fit", *definition.fit, *definition.more, *values, f"--trainer.default_root_dir={folder}"]
        command += _resumed(folder)
        folder.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not RANK_VARIABLES.fullmatch(key)}
        dies = None if os.name == "nt" else die_with_parent
        with (folder / OUTPUT_LOG).open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=kept, preexec_fn=dies
            )
        deadline, size = None, 0
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                size, before = size_of(folder / CSV_NAME), size
                if size != before and deadline is None:
                    known = len(self._stored(trial._trial_id).intermediate_values)
                    self._report(trial, folder)
                    if self._judge(trial, known):
                        process.terminate()
                        deadline = time.monotonic() + STOP_SECONDS
                if deadline is not None and time.monotonic() > deadline:
                    process.kill()
        except BaseException:  # this process ends: the trial saves, and is taken up later
            tell(f"{folder.name}: stopping; the same command goes on with it")
            process.terminate()
            process.wait()
            raise
        return process.returncode

    def _report(self, trial: Trial, folder: Path) -> list[tuple[float, int]]:
        """Report the validations that a run has logged since; all of them as (value, batches trained)."""
        points = dict(read_curves(folder / CSV_NAME).get(self.definition.metric, []))
        reported = self._stored(trial._trial_id).intermediate_values
        for number, value in enumerate(points.values(), start=1):
            if number not in reported:
                trial.report(value, number)
        return [(value, int(step) + 1) for step, value in points.items()]

    def _judge(self, trial: Trial, known: int) -> bool:
        """Whether a trial is to be pruned at a validation behind the first `known`; note at which.

        Each is judged, not the last alone: there may be no other trial with as many.
        """
        stored = self._stored(trial._trial_id)
        for number in range(known + 1, len(stored.intermediate_values) + 1):
            then = copy.copy(stored)
            then.intermediate_values = {at: value for at, value in stored.intermediate_values.items() if at <= number}
            if self.study.pruner.prune(self.study, then):
                trial.set_user_attr(PRUNED_AT, number)
                return True
        return False

    def _reason(self, folder: Path, code: int | None) -> str:
        """Why a trial failed, in one line."""
        if code == 0:
            logged = [key for key in read_curves(folder / CSV_NAME) if key.startswith("val/")]
            return (
                f"no finite value of {self.definition.metric} was logged (val/ metrics: {', '.join(logged) or 'none'})"
            )
        said = (folder / OUTPUT_LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in said if "error:" in line] or [line for line in said if line.strip()]
        if code is not None and code < 0 and signal.Signals(-code).name in ("SIGKILL", "SIGABRT", "SIGSEGV"):
            errors = [f"killed by {signal.Signals(-code).name}"]
        return " ".join(errors[-1].split()) if errors else f"exit code {code}"


def _resumed(folder: Path) -> list[str]:
    """The option that goes on with a trial's newest sound checkpoint; without one, nothing of it is kept."""
    if next(folder.glob("*.ckpt"), None) is None:
        return []
    try:
        return ["--ckpt_path", str(find_checkpoint(folder))]
    except (ValueError, FileNotFoundError):
        shutil.rmtree(folder)
        return []


def _leave(number: int, frame: object) -> None:
    raise SystemExit(EXIT_CODES[signal.Signals(number)])


def tell(line: str) -> None:
    """Print a line, unless little is to be told."""
    if verbosity() != "quiet":
        print(line, flush=True)
