"""`zoo find-batch`: the largest batch that trains, and the smallest that is as fast.

Every size is tried by training some steps in a process of its own, which may run out of memory alone. On the CPU its
memory is limited to a share of what is free (`RLIMIT_DATA`; elsewhere than on Linux the peak is compared), on CUDA to
a share of the device's.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from zoo.common.checks import check_at_least, check_within
from zoo.common.environment import free_memory_bytes
from zoo.common.registry import allowed_packages
from zoo.common.reports import print_table, terminal_table

GIB = 2**30
FAST = 0.95  # of the best throughput
KEYS = ("token_budget", "batch_size")  # of data.init_args; the first that the recipe sets
OUT_OF_MEMORY = "out of memory"
ALLOCATORS = ("bad_alloc", "bad alloc", "could not create a memory", "can't start new thread")


@dataclass(frozen=True)
class BatchTrial:
    """The result of a batch size.

    Args:
        error: why it does not train; empty when it does.
        peak: bytes of the training process, on CUDA of the device.
        seconds: of a batch.
    """

    size: int
    error: str = ""
    peak: int = 0
    seconds: float = 1.0

    @property
    def rate(self) -> float:
        """Items a second; 0 when it does not train."""
        return 0.0 if self.error else self.size / self.seconds


@dataclass(frozen=True)
class RecipeFacts:
    """What a trial reports of the recipe.

    Args:
        key: of data.init_args that is the size of a batch.
        size: the recipe's.
        items: of the training set, which a batch cannot exceed; None where it is not known or not counted in items.
        accumulated: batches of a step.
        device: cpu or cuda.
        memory: bytes that may be used there.
    """

    key: str
    size: int
    items: int | None
    accumulated: int
    device: str
    memory: int


def find_batch(*fit: str, target: float = 0.8, max: int | None = None, steps: int = 3) -> int:
    """Find the largest batch that trains, and the smallest as fast: zoo find-batch RECIPE [options of fit].

    Each size trains some steps, in a process of its own, with all optimizers, on one device, with the longest items
    where items differ. The size is doubled from the recipe's until memory or items end, then halved in between.

    Args:
        *fit: a recipe, fragments and options of `zoo fit`; `--ckpt_path RUN` starts from a run's weights.
        target: share of the memory that may be used: of that which is free now, on CUDA of the device's.
        max: largest size that is tried.
        steps: that are timed.

    Returns:
        0.

    Raises:
        ValueError: when a number is out of its range, no batch trains, or the data has no size of batches.
    """
    check_within(0.01, 1, target=target)
    check_at_least(1, steps=steps, max=1 if max is None else max)
    facts, trial = run_batch_trial(fit, None, steps, target)
    if facts is None or trial.error not in ("", OUT_OF_MEMORY):
        raise ValueError(trial.error)
    recipe = facts
    trials = {trial.size: trial}

    def fits(size: int) -> bool:
        _, trials[size] = run_batch_trial(fit, f"--data.init_args.{recipe.key}={size}", steps, target, size)
        return not trials[size].error

    limit = min((each for each in (recipe.items, max) if each is not None), default=None)
    largest = search_batch_size(recipe.size, not trial.error, limit, fits)
    if largest is None:
        raise ValueError(f"not even {recipe.key}=1 trains within {_gib(recipe.memory)} of memory")
    if not trial.error and recipe.size > largest:  # the recipe's exceeds --max
        del trials[recipe.size]
    smallest = min(size for size, each in trials.items() if not each.error)
    while smallest > 1 and trials[smallest].rate >= FAST * _best_rate(trials) and fits(smallest // 2):
        smallest //= 2
    _print_result(recipe, trials, largest, limit, target)
    return 0


def search_batch_size(size: int, fits: bool, limit: int | None, fits_size: Callable[[int], bool]) -> int | None:
    """Double from a size that trains, or halve one that does not, then halve the interval.

    Args:
        fits: whether `size` trains.
        limit: largest size to try; None for no limit.
        fits_size: tries a size.

    Returns:
        The largest size that trains, up to an eighth of it; None when 1 does not.
    """
    low, high = (size, None) if fits else (0, size)
    if limit is not None and size > limit:
        low, high = (limit, None) if fits_size(limit) else (0, limit)
    while high is None and (limit is None or low < limit):
        larger = 2 * low if limit is None else min(2 * low, limit)
        low, high = (larger, None) if fits_size(larger) else (low, larger)
    while high is not None and low == 0 and high > 1:
        low, high = (high // 2, high) if fits_size(high // 2) else (0, high // 2)
    while high is not None and low and high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (middle, high) if fits_size(middle) else (low, middle)
    return low or None


def _best_rate(trials: dict[int, BatchTrial]) -> float:
    return max(each.rate for each in trials.values())


def run_batch_trial(
    fit: tuple[str, ...], option: str | None, steps: int, target: float, size: int = 0
) -> tuple[RecipeFacts | None, BatchTrial]:
    """Train some steps in another process.

    Args:
        option: that sets the size of a batch; None for the recipe's.

    Returns:
        What it reports of the recipe, if it came so far, and of the batch size.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    words = [*fit, option] if option else list(fit)
    arguments = (sender, words, steps, target, free_memory_bytes(), allowed_packages())
    process = context.Process(target=train_batches, args=arguments)
    process.start()
    sender.close()
    facts: RecipeFacts | None = None
    result: BatchTrial | None = None
    with contextlib.suppress(EOFError):
        while True:
            message = receiver.recv()
            facts, result = (message, result) if isinstance(message, RecipeFacts) else (facts, message)
    process.join()
    size = size or (facts.size if facts else 0)
    if result is not None:
        return facts, replace(result, size=size)
    if process.exitcode == -signal.SIGINT:
        raise KeyboardInterrupt
    # the kernel's killer, or a library that aborts where it gets no memory
    is_memory = process.exitcode in (-9, -signal.SIGABRT, -signal.SIGSEGV)  # SIGKILL has no name on Windows
    reason = OUT_OF_MEMORY if is_memory else f"the training process ended with {process.exitcode}"
    return facts, BatchTrial(size, reason)


def _print_result(
    facts: RecipeFacts, trials: dict[int, BatchTrial], largest: int, limit: int | None, target: float
) -> None:
    unit, best = "token" if facts.key == "token_budget" else "item", _best_rate(trials)
    rows = []
    for size, each in sorted(trials.items()):
        times = (each.seconds / size, each.seconds * facts.accumulated, each.rate)
        cells = [""] * 4 if each.error else [_gib(each.peak), *(f"{value:.4g}" for value in times)]
        rows.append((str(size), *cells, each.error))
    heads = [facts.key, "peak memory", f"s per {unit}", "s per step", f"{unit}s per s", ""]
    print_table(terminal_table(heads, rows, left=[""]))
    smallest = min(size for size, each in trials.items() if each.rate >= FAST * best)
    whose = "the free memory" if facts.device == "cpu" else "the device's memory"
    reason = "all items of the training set" if limit == facts.items else "the most that was asked for"
    end = f", {reason}" if largest == limit else ""
    print(f"largest that trains within {target:.0%} of {whose} ({_gib(facts.memory)}): {largest}{end}")
    print(f"smallest within {1 - FAST:.0%} of the best throughput ({best:.4g} {unit}s per s): {smallest}")
    if largest != facts.size:
        print(f"the recipe's rates are for {facts.key} {facts.size}: `zoo find-lr` with the new one, or lr_scaling")
    print(f"--data.init_args.{facts.key}={largest}")


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB"


def train_batches(
    results: Connection, fit: Sequence[str], steps: int, target: float, free: int, packages: Sequence[str]
) -> None:
    """Train some steps, as the process that `run_batch_trial` starts; sends `RecipeFacts` and a `BatchTrial`."""
    from zoo.cli.log_filters import filter_warnings
    from zoo.cli.trials import ENDLESS, trial
    from zoo.common.registry import allow_packages
    from zoo.training import errors

    with contextlib.suppress(OSError):  # the kernel, short of memory, takes this process and no other
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    filter_warnings()
    allow_packages(packages)
    try:
        with trial(fit, **ENDLESS) as cli:
            result = measure_batch(cli, results, steps, target, free)
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}".lower()
        is_memory = isinstance(error, MemoryError) or any(each in text for each in (*errors.OUT_OF_MEMORY, *ALLOCATORS))
        message = (errors.explain_error(error, {}) if isinstance(error, Exception) else "see above") or error or text
        result = BatchTrial(0, OUT_OF_MEMORY if is_memory else " ".join(str(message).split()))
    results.send(result)


def measure_batch(cli: Any, results: Connection, steps: int, target: float, free: int) -> BatchTrial:
    """Send the facts of the recipe, and train some steps."""
    import torch
    from lightning.pytorch.callbacks import Checkpoint

    from zoo.cli.trials import train
    from zoo.common.environment import peak_memory_bytes
    from zoo.training.step_cost import StepCost

    model, data, trainer = cli.model, cli.datamodule, cli.trainer
    key = next((name for name in KEYS if getattr(data, name, None) is not None), None)
    if key is None:
        raise ValueError(f"data: {type(data).__name__} takes no batch_size that could be found")
    device = trainer.strategy.root_device
    is_cuda = device.type == "cuda"
    memory = int(target * (torch.cuda.get_device_properties(device).total_memory if is_cuda else free))
    facts = RecipeFacts(key, getattr(data, key), None, trainer.accumulate_grad_batches, device.type, memory)
    results.send(facts)  # should it be killed
    if is_cuda:
        torch.cuda.set_per_process_memory_fraction(target, device)
    else:
        limit_memory(memory)
    _use_longest_items(data)
    if hasattr(model, "discriminator_start"):  # its memory is the run's from there on
        model.discriminator_start = 0
    cost = StepCost(steps * trainer.accumulate_grad_batches)
    trainer.callbacks = [*(each for each in trainer.callbacks if not isinstance(each, Checkpoint)), cost]
    trainer.loggers = []
    train(cli)
    with contextlib.suppress(TypeError, AttributeError):  # a stream has no length, other data no set
        results.send(replace(facts, items=len(data.train_set) if key == "batch_size" else None))
    peak = peak_memory_bytes(device)
    return BatchTrial(0, OUT_OF_MEMORY if peak > memory else "", peak, cost.step_seconds + cost.wait_seconds)


def _use_longest_items(data: Any) -> None:
    """Let all training batches be as large as the largest, whose memory is what counts."""
    train_batches = getattr(data, "train_batches", None)
    if train_batches is None:
        return

    def longest_batches(rank: int, world: int) -> Any:
        batches = train_batches(rank, world)
        batches.use_longest_items()
        return batches

    data.train_batches = longest_batches


def limit_memory(count: int) -> None:
    """Let this process use at most so many bytes, those in use included; without effect elsewhere than on Linux."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/status", encoding="ascii") as file:
        lines = [line.split() for line in file]
    used = {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("VmData:", "VmRSS:")}
    limit = used["VmData:"] + max(0, count - used["VmRSS:"])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
