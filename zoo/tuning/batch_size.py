"""`zoo find-batch`: the largest batch that trains, and the smallest that is as fast.

Every try is a training of some steps in a process of its own, which may run out of memory alone. On the CPU its memory
is limited to a share of what is free (`RLIMIT_DATA`; elsewhere than on Linux only the peak is looked at), on CUDA to a
share of the device's; the tries on CUDA were not run here.
"""

from __future__ import annotations

import contextlib
import json as text
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zoo.common.hardware import free_memory_bytes
from zoo.common.ranges import at_least, within
from zoo.common.registry import admitted
from zoo.common.report import show_table, terminal_table

GIB = 2**30
FAST = 0.95  # of the best throughput
KEYS = ("token_budget", "batch_size")  # of data.init_args; the first that the recipe sets
OUT_OF_MEMORY = "out of memory"
ALLOCATORS = ("bad_alloc", "bad alloc", "could not create a memory", "can't start new thread")


@dataclass(frozen=True)
class Try:
    """What became of a batch size.

    Args:
        error: why it does not train; empty when it does.
        peak: bytes of the training process, on CUDA of the device.
    """

    size: int
    error: str = ""
    peak: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.size / self.seconds


@dataclass(frozen=True)
class Facts:
    """What a try tells of the recipe.

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


def main(*fit: str, target: float = 0.8, max: int | None = None, steps: int = 3) -> int:
    """Find the largest batch that trains, and the smallest as fast: zoo find-batch RECIPE [options of fit].

    Each try trains some steps, in a process of its own, with all optimizers, on one device, with the longest items
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
    within(0.01, 1, target=target)
    at_least(1, steps=steps, max=1 if max is None else max)
    tries: dict[int, Try] = {}
    facts: Facts | None = None

    def trains(size: int | None) -> bool:
        nonlocal facts
        found, tried = attempt(fit, size, facts.key if facts else None, steps, target)
        if found is not None:
            facts = replace(found, size=facts.size if facts else found.size)
        tries[tried.size] = tried
        return not tried.error

    fits = trains(None)
    if facts is None or not (fits or tries[facts.size].error == OUT_OF_MEMORY):
        raise ValueError(next(iter(tries.values())).error)
    most = min((each for each in (facts.items, max) if each is not None), default=None)
    largest = _search(facts.size, fits, most, trains)
    if largest is None:
        raise ValueError(f"not even {facts.key}=1 trains within {_gib(facts.memory)} of memory")
    if fits and facts.size > largest:  # the recipe's exceeds --max
        del tries[facts.size]
    best = max_rate(tries)
    small = min(size for size, each in tries.items() if not each.error)
    while small > 1 and tries[small].rate >= FAST * best and trains(small // 2):
        small, best = small // 2, max_rate(tries)
    _tell(facts, tries, largest, best, most, target)
    return 0


def _search(size: int, fits: bool, most: int | None, trains: Any) -> int | None:
    """Double from a size that trains, or halve one that does not, then halve the interval.

    Args:
        most: largest size to try; None for no limit.
        trains: tries a size.

    Returns:
        The largest size that trains, up to an eighth of it; None when 1 does not.
    """
    low, high = (size, None) if fits else (0, size)
    if most is not None and size > most:
        low, high = (most, None) if trains(most) else (0, most)
    while high is None and (most is None or low < most):
        following = 2 * low if most is None else min(2 * low, most)
        low, high = (following, None) if trains(following) else (low, following)
    while high is not None and low == 0 and high > 1:
        low, high = (high // 2, high) if trains(high // 2) else (0, high // 2)
    while high is not None and low and high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (middle, high) if trains(middle) else (low, middle)
    return low or None


def max_rate(tries: dict[int, Try]) -> float:
    """The best throughput."""
    return max(each.rate for each in tries.values() if not each.error)


def attempt(
    fit: tuple[str, ...], size: int | None, key: str | None, steps: int, target: float
) -> tuple[Facts | None, Try]:
    """Train some steps in another process.

    Args:
        size: of the batch; the recipe's when None.
        key: of data.init_args that sets it.

    Returns:
        What it tells of the recipe, if it came so far, and what became of it.
    """
    with tempfile.TemporaryDirectory(prefix="zoo-trial-") as folder:
        answer = Path(folder) / "answer.json"
        asked = {
            "fit": fit if size is None else [*fit, f"--data.init_args.{key}={size}"],
            "steps": steps,
            "target": target,
            "packages": list(admitted()),
            "free": free_memory_bytes(),
            "answer": str(answer),
        }
        command = [sys.executable, "-m", "zoo.tuning.batch_size", text.dumps(asked)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        told = text.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
    facts = Facts(**told["facts"]) if "facts" in told else None
    size = size or (facts.size if facts else 0)
    if "seconds" in told:
        return facts, Try(size, "", told["peak"], told["seconds"])
    if "error" in told:
        return facts, Try(size, told["error"])
    if done.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    if done.returncode in (-9, -6, -11):  # the kernel's killer, or a library that aborts where it gets no memory
        return facts, Try(size, OUT_OF_MEMORY)
    last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or [""])[-1]
    return facts, Try(size, last.removeprefix("zoo: error: ") or f"the training process ended with {done.returncode}")


def _tell(facts: Facts, tries: dict[int, Try], largest: int, best: float, most: int | None, target: float) -> None:
    unit = "token" if facts.key == "token_budget" else "item"
    rows = []
    for size, each in sorted(tries.items()):
        values = (each.seconds / size, each.seconds * facts.accumulated, 0.0 if each.error else each.rate)
        timed = [_gib(each.peak), *(f"{value:.4g}" for value in values)]
        rows.append((str(size), *([""] * 4 if each.error else timed), each.error))
    heads = [facts.key, "peak memory", f"s per {unit}", "s per step", f"{unit}s per s", ""]
    show_table(terminal_table(heads, rows, left=[""]))
    smallest = min(size for size, each in tries.items() if not each.error and each.rate >= FAST * best)
    whose = "the free memory" if facts.device == "cpu" else "the device's memory"
    why = "all items of the training set" if most == facts.items else "the most that was asked for"
    end = f", {why}" if largest == most else ""
    print(f"largest that trains within {target:.0%} of {whose} ({_gib(facts.memory)}): {largest}{end}")
    print(f"smallest within {1 - FAST:.0%} of the best throughput ({best:.4g} {unit}s per s): {smallest}")
    if largest != facts.size:
        print(f"the recipe's rates are for {facts.key} {facts.size}: `zoo find-lr` with the new one, or lr_scaling")
    print(f"--data.init_args.{facts.key}={largest}")


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB"


def train_some(asked: dict[str, Any]) -> None:
    """Train some steps, as the process that `attempt` starts; writes its answer as far as it comes."""
    from zoo.cli.quiet import filter_warnings
    from zoo.cli.trials import ENDLESS, train, trial
    from zoo.common.registry import admit
    from zoo.training import errors

    with contextlib.suppress(OSError):  # the kernel, short of memory, takes this process and no other
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    filter_warnings()
    admit(asked["packages"])
    told: dict[str, Any] = {}
    try:
        with trial(asked["fit"], **ENDLESS) as cli:
            _measure(cli, asked, told, train)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}".lower()
        memory = isinstance(error, MemoryError) or any(mark in said for mark in (*errors.OUT_OF_MEMORY, *ALLOCATORS))
        explained = "" if memory else errors.explain(error, {}) if isinstance(error, Exception) else "see above"
        told["error"] = OUT_OF_MEMORY if memory else " ".join(str(explained or error or said).split())
    Path(asked["answer"]).write_text(text.dumps(told), encoding="utf-8")


def _measure(cli: Any, asked: dict[str, Any], told: dict[str, Any], train: Any) -> None:
    import torch
    from lightning.pytorch.callbacks import Checkpoint

    from zoo.common.hardware import peak_memory_bytes
    from zoo.training.cost import Cost

    model, data, trainer = cli.model, cli.datamodule, cli.trainer
    key = next((name for name in KEYS if getattr(data, name, None) is not None), None)
    if key is None:
        raise ValueError(f"data: {type(data).__name__} takes no batch_size that could be found")
    device = trainer.strategy.root_device
    whole = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else asked["free"]
    memory = int(asked["target"] * whole)
    facts = {"key": key, "size": getattr(data, key), "items": None, "accumulated": trainer.accumulate_grad_batches}
    told["facts"] = facts | {"device": device.type, "memory": memory}
    Path(asked["answer"]).write_text(text.dumps(told), encoding="utf-8")  # should it be killed
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(asked["target"], device)
    else:
        limit_memory(memory)
    _take_longest(data)
    if hasattr(model, "discriminator_start"):  # its memory is the run's from there on
        model.discriminator_start = 0
    cost = Cost(asked["steps"] * trainer.accumulate_grad_batches)
    kept = [each for each in trainer.callbacks if not isinstance(each, Checkpoint)]
    trainer.callbacks, trainer.loggers = [*kept, cost], []
    train(cli)
    with contextlib.suppress(TypeError, AttributeError):  # a stream has no length, other data no set
        told["facts"]["items"] = len(data.train_set) if key == "batch_size" else None
    peak = peak_memory_bytes(device)
    if peak > memory:
        told["error"] = OUT_OF_MEMORY
    else:
        told |= {"peak": peak, "seconds": cost.step_seconds + cost.wait_seconds}


def _take_longest(data: Any) -> None:
    """Let all training batches be as large as the largest, whose memory is what counts."""
    train_batches = getattr(data, "train_batches", None)
    if train_batches is None:
        return

    def longest(rank: int, world: int) -> Any:
        batches = train_batches(rank, world)
        batches.take_longest()
        return batches

    data.train_batches = longest


def limit_memory(count: int) -> None:
    """Let this process hold at most so many bytes, of which some are held now; without effect but on Linux."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/status", encoding="ascii") as file:
        lines = [line.split() for line in file]
    held = {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("VmData:", "VmRSS:")}
    limit = held["VmData:"] + max(0, count - held["VmRSS:"])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    train_some(text.loads(sys.argv[1]))
