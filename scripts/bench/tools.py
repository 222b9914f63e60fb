"""One runner of benchmarks and evidence: costs by turns, findings with targets, results as a table and as JSON.

On a shared machine absolute times say little. Contestants therefore alternate, and what counts is the median of the
ratios of neighbouring runs, by processor time of this process and its ended children.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import Any, Protocol, TypeVar

import lightning as L
import torch
from rich.console import Console
from rich.table import Table

from zoo.common.atomic_files import write_atomic
from zoo.common.environment import describe_machine, peak_resident_bytes
from zoo.common.locks import is_locked
from zoo.runs.run_info import read_run


@dataclass(frozen=True)
class Cost:
    """What something took, or a reading of both clocks.

    Args:
        wall: seconds that passed.
        cpu: seconds of processor time, all threads together, ended child processes included.
    """

    wall: float
    cpu: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall - other.wall, self.cpu - other.cpu)

    def __truediv__(self, parts: float) -> Cost:
        return Cost(self.wall / parts, self.cpu / parts)


def read_clocks() -> Cost:
    """Read wall and processor time."""
    children = os.times()
    return Cost(time.perf_counter(), time.process_time() + children.children_user + children.children_system)


def cost_of(function: Callable[[], object]) -> Cost:
    """Run a function once; returns what it took."""
    before = read_clocks()
    function()
    return read_clocks() - before


def interleave(contestants: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 1) -> dict[str, list[Cost]]:
    """Run all contestants by turns: A B C, A B C, ...

    Args:
        contestants: what to run, by name.
        rounds: number of turns, >= 1.
        warmup: turns before them that are not counted.

    Returns:
        The costs of each contestant, one a round, in order.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for number in range(warmup + rounds):
        for name, function in contestants.items():
            cost = cost_of(function)
            if number >= warmup:
                costs[name].append(cost)
    return costs


Costs = Mapping[str, Sequence[Cost]]
# of `zoo fit` where the training is only measured: no end, no validation, no checkpoints
ENDLESS = (
    "--trainer.max_steps=1000000",
    "--trainer.limit_val_batches=0",
    "--trainer.num_sanity_val_steps=0",
    "--checkpoints.every_n_steps=1000000",
)


class Fit(Protocol):
    """A training ready to start: what the command line builds from a recipe."""

    trainer: L.Trainer
    model: Any
    datamodule: Any


class _Enough(Exception):
    """Ends a training that is only measured."""


class _Turns(L.Callback):
    """Lets another loop run between two steps of the trainer.

    A turn of the trainer is the time from the start of one step to the start of a later one: with everything that
    Lightning, callbacks, loggers and the loader do in between.
    """

    def __init__(self, other: Callable[[], object], rounds: int, steps: int, warmup: int) -> None:
        self.other = other
        self.rounds, self.steps, self.warmup = rounds, steps, warmup
        self.costs: dict[str, list[Cost]] = {"trainer": [], "other": []}
        self._began: Cost | None = None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        now = read_clocks()
        done = trainer.global_step - self.warmup
        if done >= 0 and done % self.steps == 0:
            if done > 0 and self._began is not None:
                self.costs["trainer"].append((now - self._began) / self.steps)
                self.costs["other"].append(cost_of(lambda: self._others(self.steps)) / self.steps)
            else:
                self._others(self.warmup)
            if len(self.costs["other"]) == self.rounds:
                # in the middle of a step no checkpoint is written, which the training's end would do
                raise _Enough
            self._began = read_clocks()

    def _others(self, steps: int) -> None:
        for _ in range(steps):
            self.other()


def interleave_with_trainer(
    fit: Fit, other: Callable[[], object], rounds: int, steps: int = 1, warmup: int = 1
) -> dict[str, list[Cost]]:
    """Run a training under the Trainer and another loop by turns.

    Args:
        fit: the training, with at least `warmup + rounds * steps + 1` batches to go.
        other: one step of the other loop, with its own nets and batches.
        rounds: number of turns.
        steps: steps of a turn.
        warmup: steps of each before the first turn.

    Returns:
        Costs of one step (mean over a turn), one a round, of "trainer" and "other".

    Raises:
        ValueError: when the training ended before.
    """
    turns = _Turns(other, rounds, steps, warmup)
    fit.trainer.callbacks.append(turns)  # type: ignore[attr-defined]
    try:
        fit.trainer.fit(fit.model, fit.datamodule)
    except _Enough:
        return turns.costs
    raise ValueError(f"the training ended after {fit.trainer.global_step} steps, too few for {rounds} rounds")


def ratios(numerator: Sequence[Cost], denominator: Sequence[Cost]) -> Cost:
    """Medians of the ratios of neighbouring runs, by wall and by processor time."""
    pairs = list(zip(numerator, denominator, strict=True))
    return Cost(
        statistics.median(a.wall / b.wall for a, b in pairs),
        statistics.median(a.cpu / b.cpu for a, b in pairs),
    )


def median(costs: Sequence[Cost]) -> Cost:
    """Medians of wall and processor time."""
    return Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs))


def times_as_fast(name: str, costs: Costs, at_least: float | None = None, **more: Any) -> Finding:
    """How often the first of two contestants runs while the second runs once, by processor time."""
    zoo_result, other = costs.values()
    ratio = ratios(other, zoo_result)
    details = {"by wall time, x": ratio.wall, **cpu_ms(costs), **more, "rounds": len(zoo_result)}
    return Finding(name, ratio.cpu, "x", at_least=at_least, details=details)


def cpu_ms(costs: Costs) -> dict[str, float]:
    """Median milliseconds of processor time of each contestant."""
    return {f"{name}, cpu ms": 1000 * median(each).cpu for name, each in costs.items()}


def onnx_session(path: Path) -> Any:
    """An exported graph in onnxruntime on the CPU, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def peak_memory(function: Callable[..., object], *args: Any) -> tuple[float, float]:
    """Run a function in a fresh process.

    Args:
        function: importable by name.
        args: what it takes; one thread is used.

    Returns:
        Peak resident memory in MiB before the call (interpreter and imports), and after it.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_peaks, function, args).result()


def _peaks(function: Callable[..., object], args: Sequence[Any]) -> tuple[float, float]:
    torch.set_num_threads(1)
    before = _peak_mib()
    function(*args)
    return before, _peak_mib()


def _peak_mib() -> float:
    return peak_resident_bytes() / 2**20


@dataclass(frozen=True)
class Finding:
    """One measured figure.

    Args:
        name: what was measured.
        value: the figure.
        unit: of it.
        at_most: target that the figure must not exceed; None for none.
        at_least: target that it must reach; None for none.
        details: further figures and circumstances, plain values.
    """

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The target in words, "" without one."""
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f">= {self.at_least:g}" if self.at_least is not None else ""

    @property
    def passed(self) -> bool | None:
        """Whether the target is met (never by NaN); None without a target."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return self.value >= self.at_least if self.at_least is not None else None


def command(
    system: str, benchmarks: Mapping[str, Callable[[bool], Sequence[Finding]]], *options_of: argparse.ArgumentParser
) -> None:
    """The command line of a system's benchmarks: runs them, prints a table for each, writes the figures as JSON.

    Args:
        system: as in the names of its folders.
        benchmarks: by name; each takes whether to be quick.
        options_of: parsers of the system's own options, without help.
    """
    parser = argparse.ArgumentParser(description=f"Benchmarks of {system}", parents=options_of)
    parser.add_argument("benchmark", choices=[*benchmarks, "all"])
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures are no evidence")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1 keeps waiting threads out of the figures")
    parser.add_argument("--output", type=Path, default=Path("runs/bench") / system, help="folder of the JSON files")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in benchmarks if options.benchmark == "all" else [options.benchmark]:
        findings = benchmarks[name](options.quick)
        show(f"{name}: {(benchmarks[name].__doc__ or '').strip()}", findings)
        save(options.output / f"{name}.json", findings, benchmark=name, quick=options.quick)


def train_once(folder: Path, arguments: Sequence[str], quick: bool = False) -> None:
    """Run `zoo fit` in another process until the folder's run is finished.

    A killed run resumes from its last checkpoint; a run that another process trains is waited for.

    Args:
        folder: of the run, as the arguments say.
        arguments: of `zoo`.
        quick: two steps, validated by one batch.

    Raises:
        subprocess.CalledProcessError: when the training fails.
    """
    # max_steps stays: schedules count it
    short = (
        "--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.val_check_interval=1",
        "--trainer.limit_val_batches=1", "--trainer.log_every_n_steps=1",
    )  # fmt: skip
    while is_locked(folder):
        time.sleep(1)
    if read_run(folder, folder).state != "finished":
        more = (*(short if quick else ()), "--ckpt_path=auto")
        subprocess.run([sys.executable, "-m", "zoo", *arguments, *more], check=True)


def save(path: Path, findings: Sequence[Finding], **circumstances: Any) -> None:
    """Write findings, machine and date as JSON.

    Args:
        path: the file, replaced as a whole.
        findings: what was measured.
        circumstances: further plain values, such as `quick`.
    """
    rows = [{**asdict(finding), "passed": finding.passed} for finding in findings]
    content = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": describe_machine(),
        **circumstances,
        "findings": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda file: file.write(json.dumps(content, indent=2).encode()))


def show(title: str, findings: Sequence[Finding]) -> None:
    """Print findings as a table, each with its target and whether it is met."""
    table = Table(title=title, title_justify="left")
    for column in ("measured", "value", "target", "result", "details"):
        table.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for each in findings:
        result = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[each.passed]
        details = ", ".join(f"{key} {_format_short(value)}" for key, value in each.details.items())
        table.add_row(each.name, f"{_format_short(each.value)} {each.unit}", each.target, result, details)
    Console().print(table)


def _format_short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


@dataclass(frozen=True)
class Settings:
    """What every benchmark is given.

    Args:
        build_fit: builds model, data and trainer from the arguments of `zoo fit`, as the command line does.
        folder: an empty folder for temporary files.
        quick: measure little, to see that everything runs; figures are then no evidence.
    """

    build_fit: Callable[[list[str]], Fit]
    folder: Path
    quick: bool = False

    def few(self, full: int, quick: int) -> int:
        """Choose a number of repetitions."""
        return quick if self.quick else full


S = TypeVar("S", bound=Settings)


def in_folders(
    benchmarks: Mapping[str, Callable[[S], Sequence[Finding]]], settings: Callable[[Path, bool], S]
) -> dict[str, Callable[[bool], Sequence[Finding]]]:
    """Give each benchmark a temporary folder, for `scripts.bench.tools.command`.

    Args:
        benchmarks: by name.
        settings: makes what they are given of a folder and whether to be quick.
    """

    def in_a_folder(benchmark: Callable[[S], Sequence[Finding]]) -> Callable[[bool], Sequence[Finding]]:
        def run(quick: bool) -> Sequence[Finding]:
            with tempfile.TemporaryDirectory() as folder:
                return benchmark(settings(Path(folder), quick))

        return update_wrapper(run, benchmark)

    return {name: in_a_folder(benchmark) for name, benchmark in benchmarks.items()}
