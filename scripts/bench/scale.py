"""What large corpora cost: python -m scripts.bench.scale index|order|listing|all [--quick].

The trees are made in code: their folders are real, their files are names in an index, and their sound is a file with
holes. What is measured is the path of the recipes: `zoo.hifigan.VocoderData` with a `root`.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from zoo.audio.corpora.index import FileIndex, file_list, write_index

from scripts.bench.tools import Cost, Finding, Settings, command, in_folders, read_clocks
from zoo.audio.corpora.cache import write_index as write_cache_index
from zoo.audio.corpora.corpus import cache_folder, list_folder
from zoo.cli.trainer import ZooCLI
from zoo.hifigan.data import VocoderData
from zoo.training.data import BucketBatches, ResumableBatches

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
QUICK_SIZES = (1_000, 70_000, 140_000)
FOLDER_FILES = 1000
RATE, SAMPLES = 22050, 4000  # of a made clip: its place in the file with holes is what costs, not its length
BATCHES = 200  # read before memory is looked at


def paths(root: Path, count: int) -> Iterator[str]:
    """Paths of a tree of speakers, in order."""
    for folder in range(0, count, FOLDER_FILES):
        speaker = f"{root}/speaker{folder // FOLDER_FILES:06d}"
        for number in range(folder, min(folder + FOLDER_FILES, count)):
            yield f"{speaker}/utterance{number:09d}.wav"


def make(folder: Path, count: int) -> None:
    """The folders of a tree, the list of its files and their cache, as a first run leaves them."""
    root, cache = folder / "tree", folder / "cache"
    for number in range(-(-count // FOLDER_FILES)):
        (root / f"speaker{number:06d}").mkdir(parents=True)
    kept = list_folder(cache, root, ((None, None), None))
    kept.mkdir(parents=True)
    seen = [(str(each), each.stat().st_mtime_ns) for each in [root, *sorted(root.iterdir())]]
    write_index(kept, str(root), paths(root, count), seen)
    index = FileIndex(kept)
    corpus = cache_folder(cache, root, RATE)
    corpus.mkdir()
    with (corpus / "audio.i16").open("wb") as audio:
        audio.truncate(2 * SAMPLES * count)
    facts: dict[str, object] = {"key": index.digest, "index": index.digest, "sample_rate": RATE, "bad": {}}
    lengths = np.full(count, SAMPLES, dtype=np.int64)
    write_cache_index(corpus, index.names, lengths, np.ones(count, np.float32), facts)


def data(folder: Path, workers: int) -> VocoderData:
    """The datamodule of a made tree, set up."""
    module = VocoderData(
        str(folder / "tree"), RATE, segment_samples=2048, cache=str(folder / "cache"), num_workers=workers
    )
    module.prepare_data()
    module.setup("fit")
    return module


def _memory(process: int | str = "self") -> dict[str, float]:
    """MiB of a process: all that is resident, and what it shares with no other."""
    lines = (line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:])
    found = {fields[0]: int(fields[1]) / 1024 for fields in lines}
    return {"resident": found["Rss:"], "own": found["Private_Clean:"] + found["Private_Dirty:"]}


def start(folder: Path, workers: int, position: tuple[int, int]) -> tuple[Cost, dict[str, float]]:
    """From the datamodule to the first batch: what it takes; after some more batches, the memory of all processes."""
    clocks = read_clocks()
    module = data(folder, workers)
    module.load_state_dict({"epoch": position[0], "batch": position[1], "keyed": None})
    loader: DataLoader[Any] = module.train_dataloader()
    batches = iter(loader)
    next(batches)
    took = read_clocks() - clocks
    for _ in islice(batches, BATCHES):
        pass
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    workers_own = {f"worker {number}": _memory(pid)["own"] for number, pid in enumerate(children)}
    return took, {"main": _memory()["resident"], **workers_own}


def first_batch(warmup: Path, folder: Path, workers: int, position: tuple[int, int]) -> tuple[Cost, dict[str, float]]:
    """`start`, with the main process' memory above that of a start on a small corpus."""
    torch.set_num_threads(1)
    _, before = start(warmup, 0, (0, 0))
    took, memory = start(folder, workers, position)
    return took, {**memory, "main": memory["main"] - before["main"]}


def _in_a_process(function: Callable[..., Any], *args: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *args).result()


def growth(costs: Mapping[int, float]) -> float:
    """The exponent of a cost in the number of items: the slope of log cost over log n."""
    return float(np.polyfit(np.log(list(costs)), np.log(np.maximum(list(costs.values()), 1e-9)), 1)[0])


def _sizes(settings: Settings) -> Sequence[int]:
    return QUICK_SIZES if settings.quick else SIZES


def index(settings: Settings) -> list[Finding]:
    """A start on a corpus that was seen before: time to the first batch, memory above that of a small corpus."""
    findings, cpu, memory = [], {}, {}
    draw = random.Random(0)
    warmup = settings.folder / "small"
    _in_a_process(make, warmup, FOLDER_FILES)
    for count in _sizes(settings):
        folder = settings.folder / str(count)
        _in_a_process(make, folder, count)
        position = (draw.randrange(1, 9), draw.randrange(count // 32))
        for workers in (0, 2):
            runs = [_in_a_process(first_batch, warmup, folder, workers, position) for _ in range(settings.few(3, 1))]
            took, more = min(runs, key=lambda run: run[0].cpu)
            details = {"CPU seconds": took.cpu, "resumed at (epoch, batch)": position}
            details |= {f"MiB more, {name}" if name == "main" else f"MiB own, {name}": m for name, m in more.items()}
            name = f"first batch, {count:,} files, {workers} workers"
            findings.append(Finding(name, took.wall, "s", at_most=2.0, details=details))
            if not workers:
                cpu[count], memory[count] = took.cpu, more["main"]
        findings.append(Finding(f"memory of the main process, {count:,} files", memory[count], "MiB", at_most=300))
    findings.append(Finding("growth of CPU seconds", growth(cpu), "exponent", at_most=0.9))
    return findings


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


def listed(folder: Path, count: int) -> dict[str, float]:
    """List a made tree, its files in a random order of folders as a file system gives them."""
    before, clocks = _peak(), read_clocks()
    root = folder / "tree"

    def find(enter: Callable[[str], None]) -> Iterator[str]:
        places = list(range(-(-count // FOLDER_FILES)))
        random.Random(0).shuffle(places)
        for place in places:
            yield from (
                f"{root}/speaker{place:06d}/utterance{number:09d}.wav"
                for number in range(min((place + 1) * FOLDER_FILES, count) - 1, place * FOLDER_FILES - 1, -1)
            )

    found = file_list(folder / "kept", find)
    took, peak = read_clocks() - clocks, _peak()
    if len(found) != count or (isinstance(found, FileIndex) and found.names[count // 3][-13:-4] != f"{count // 3:09d}"):
        raise ValueError(f"{len(found)} files listed of {count}, or in another order")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"us": 1e6 * took.cpu / count, "MiB": peak - before, "bytes": size / count}


def listing(settings: Settings) -> list[Finding]:
    """The first listing of a corpus, without what the file system takes: sorting and writing."""
    findings, costs = [], {}
    for count in _sizes(settings):
        folder = settings.folder / str(count)
        folder.mkdir()
        found = _in_a_process(listed, folder, count)
        costs[count] = found["us"] * count
        details = {"MiB more": found["MiB"], "bytes a file": found["bytes"]}
        findings.append(Finding(f"listing, {count:,} files", found["us"], "CPU us a file", details=details))
    return [*findings, Finding("growth of a listing", growth(costs), "exponent", at_most=1.15)]


if __name__ == "__main__":
    command(
        "scale",
        in_folders({"index": index, "order": order, "listing": listing}, partial(Settings, partial(ZooCLI, "fit"))),
    )
