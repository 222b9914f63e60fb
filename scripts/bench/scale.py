"""What the order of large sets costs: python -m scripts.bench.scale order [--quick]."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from scripts.bench.tools import Finding, Settings, command, in_folders, read_clocks
from zoo.cli.trainer import ZooCLI
from zoo.training.data import BucketBatches, ResumableBatches

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
QUICK_SIZES = (1_000, 70_000, 140_000)


def _in_a_process(function: Callable[..., Any], *args: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *args).result()


def growth(costs: Mapping[int, float]) -> float:
    """The exponent of a cost in the number of items: the slope of log cost over log n."""
    return float(np.polyfit(np.log(list(costs)), np.log(np.maximum(list(costs.values()), 1e-9)), 1)[0])


def _sizes(settings: Settings) -> Sequence[int]:
    return QUICK_SIZES if settings.quick else SIZES


def epoch(kind: str, count: int) -> dict[str, float]:
    """A whole epoch's order of a large set; a jump into its middle."""
    keyed = kind.startswith("keyed")
    lengths = np.random.default_rng(0).integers(16_000, 160_000, count, dtype=np.int32)

    def batches() -> ResumableBatches:
        made = BucketBatches(lengths, 16) if "length" in kind else ResumableBatches(count, 16)
        made.keyed = keyed
        return made

    before, clocks = _peak(), read_clocks()
    seen, number, middle = 0, len(batches()) * 2 // 3, []
    for place, keys in enumerate(batches()):
        seen += len(keys)
        if place == number:
            middle = keys
    took, peak = read_clocks() - clocks, _peak()
    resumed = batches()
    resumed.resume_at(0, number)
    clocks = read_clocks()
    if next(iter(resumed)) != middle:
        raise ValueError(f"{kind}: resumed at batch {number} of {count} items, and it is another batch")
    return {"ns": 1e9 * took.cpu / seen, "MiB": peak - before, "jump": 1000 * (read_clocks() - clocks).cpu}


def order(settings: Settings) -> list[Finding]:
    """An epoch's order by position beside a permutation in memory: a batch of 16 keys after the other."""
    findings = []
    for kind in ("keyed", "in memory", "keyed, by length", "in memory, by length"):
        costs = {}
        for count in _sizes(settings):
            found = costs[count] = _in_a_process(epoch, kind, count)
            details = {"MiB more": found["MiB"], "ms to resume at 2/3": found["jump"]}
            findings.append(Finding(f"{kind}, {count:,} items", found["ns"], "CPU ns an item", details=details))
        whole = growth({count: found["ns"] * count for count, found in costs.items()})
        findings.append(Finding(f"{kind}, growth of an epoch", whole, "exponent"))
    return findings


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    command(
        "scale",
        in_folders({"order": order}, partial(Settings, partial(ZooCLI, "fit"))),
    )
