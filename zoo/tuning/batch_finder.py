"""`zoo find-batch`: the largest batch that trains; each is tried in a process, which may run out of memory alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Checkpoint

from zoo.cli.build_run import train, trial
from zoo.cli.log_filters import filter_warnings
from zoo.common.checks import check_at_least, check_within
from zoo.common.environment import OUT_OF_MEMORY, free_memory_bytes, peak_memory_bytes
from zoo.common.registry import allow_packages, allowed_packages
from zoo.common.reports import print_table
from zoo.training import errors
from zoo.training.callbacks.loggers import RunInfoLogger
from zoo.training.step_cost import StepCost

GIB = 2**30
KEYS = ("token_budget", "batch_size")  # of data.init_args; the first that the recipe sets
MEMORY_ERROR = "out of memory"
ALLOCATORS = ("bad_alloc", "bad alloc", "could not create a memory", "can't start new thread")


@dataclass(frozen=True)
class BatchTrial:
    """The result of a batch size."""

    key: str = ""  # of data.init_args that is the size of a batch
    size: int = 0
    memory: int = 0  # bytes that may be used
    error: str = ""  # why it does not train
    peak: int = 0  # bytes of the training process, on CUDA of the device
    rate: float = 0.0  # items or tokens a second
    items: int | None = None  # of the training set; None where a batch is not counted in items


def find_batch(*recipe: str, target: float = 0.8, max: int | None = None, steps: int = 3) -> int:
    """Find the largest batch that trains: zoo find-batch RECIPE.

    Each size trains some steps, in a separate process, with all optimizers, on one device, with the longest items
    where items differ. The size is doubled from the recipe's until memory or items end, or halved until it trains.

    Args:
        *recipe: a recipe, fragments and options of `zoo fit`; `--ckpt_path RUN` starts from a run's weights.
        target: share of the memory that may be used: of that which is free now, on CUDA of the device's.
        max: largest size that is tried.
        steps: that are timed.
    """
    check_within(0.01, 1, target=target)
    check_at_least(1, steps=steps, max=1 if max is None else max)
    first = run_batch_trial(recipe, steps, target)
    if first.error not in ("", MEMORY_ERROR):
        raise ValueError(first.error)
    trials = {first.size: first}

    def fits(size: int) -> bool:
        trials[size] = run_batch_trial([*recipe, f"--data.init_args.{first.key}={size}"], steps, target)
        return not trials[size].error

    limit = min(first.items or math.inf, max or math.inf)
    largest = search_batch_size(first.size, not first.error, limit, fits)
    if not largest:
        raise ValueError(f"not even {first.key}=1 trains within {first.memory / GIB:.2f} GiB of memory")
    _print_result(trials, first, largest)
    return 0


def search_batch_size(size: int, fits: bool, limit: float, fits_size: Callable[[int], bool]) -> int:
    """Double from a size that trains (`fits`) up to a limit, or halve one that does not.

    Returns the largest size of which `fits_size` was true; 0 when 1 does not train.
    """
    if size > limit:
        size = int(limit)
        fits = fits_size(size)
    while fits and size < limit and fits_size(larger := int(min(2 * size, limit))):
        size = larger
    while not fits and size:
        size //= 2
        fits = size > 0 and fits_size(size)
    return size


def run_batch_trial(fit: Sequence[str], steps: int, target: float) -> BatchTrial:
    """Train some steps in another process; one that dies while it trains has run out of memory."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, fit, steps, target, free_memory_bytes(), allowed_packages())
    process = context.Process(target=train_batches, args=arguments)
    process.start()
    sender.close()
    result = BatchTrial(error="the training process ended before it trained")
    with contextlib.suppress(EOFError):
        while True:
            result = receiver.recv()
    process.join()
    return result


def train_batches(
    results: Connection, fit: Sequence[str], steps: int, target: float, free: int, packages: Sequence[str]
) -> None:
    """Train some steps, as the process that `run_batch_trial` starts; sends a `BatchTrial` before and one after."""
    with contextlib.suppress(OSError):  # the kernel, short of memory, takes this process and no other
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    filter_warnings()
    allow_packages(packages)
    result = BatchTrial()
    try:
        with trial(fit) as cli:
            result = describe_batch(cli, target, free)
            results.send(replace(result, error=MEMORY_ERROR))  # should this process be killed
            result = measure_batch(cli, result, steps)
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}".lower()
        is_memory = isinstance(error, MemoryError) or any(each in text for each in (*OUT_OF_MEMORY, *ALLOCATORS))
        explained = errors.explain_error(error, {}) if isinstance(error, Exception) else "see above"
        message = MEMORY_ERROR if is_memory else " ".join(str(explained or error or text).split()) or text
        result = replace(result, error=message)
    results.send(result)


def describe_batch(cli: Any, target: float, free: int) -> BatchTrial:
    """Return the recipe's batch and the memory that it may take."""
    data, device = cli.datamodule, cli.trainer.strategy.root_device
    key = next((name for name in KEYS if getattr(data, name, None) is not None), None)
    if key is None:
        raise ValueError(f"data: {type(data).__name__} takes no batch_size that could be found")
    if device.type == "cuda":
        free = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(target, device)
    return BatchTrial(key, getattr(data, key), int(target * free))


def measure_batch(cli: Any, batch: BatchTrial, steps: int) -> BatchTrial:
    """Train some steps with the longest items."""
    data, trainer = cli.datamodule, cli.trainer
    if hasattr(cli.model, "discriminator_start"):  # its memory is the run's from there on
        cli.model.discriminator_start = 0
    data.longest_first = True  # of a ZooDataModule
    cost = StepCost(steps, trainer.accumulate_grad_batches)
    writers = (Checkpoint, RunInfoLogger)
    trainer.callbacks = [*(each for each in trainer.callbacks if not isinstance(each, writers)), cost]
    trainer.loggers = []
    train(cli)
    has_length = batch.key == "batch_size" and hasattr(getattr(data, "train_set", None), "__len__")
    items = len(data.train_set) if has_length else None  # a stream has no length, other data no set
    peak = peak_memory_bytes(trainer.strategy.root_device)
    if peak > batch.memory:
        return replace(batch, error=MEMORY_ERROR)
    rate = batch.size * trainer.accumulate_grad_batches / (cost.step_seconds + cost.wait_seconds)
    return replace(batch, peak=peak, rate=rate, items=items)


def _print_result(trials: dict[int, BatchTrial], recipe: BatchTrial, largest: int) -> None:
    rows = [
        (str(size), f"{each.peak / GIB:.2f} GiB" if each.peak else "", f"{each.rate:.4g}", each.error)
        for size, each in sorted(trials.items())
    ]
    unit = "tokens" if recipe.key == "token_budget" else "items"
    print_table([recipe.key, "peak memory", f"{unit} per s", ""], rows, left=[""])
    print(f"largest that trains within {recipe.memory / GIB:.2f} GiB: {largest}")
    if largest != recipe.size:
        print(f"the recipe's rates are for {recipe.key} {recipe.size}: `zoo find-lr` with the new one, or lr_scaling")
    print(f"--data.init_args.{recipe.key}={largest}")
