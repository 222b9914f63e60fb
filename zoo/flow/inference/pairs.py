"""Writing pairs for reflow and distillation: a teacher's samples with the noise that they were made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.progress import Progress

from zoo.common.folders import begin_output
from zoo.common.hardware import processes
from zoo.common.locks import writes_into
from zoo.common.ranges import at_least, within
from zoo.common.work import Share, write_part
from zoo.flow.data.pair_data import CHECKED_VALUES, META_NAME, row_type, shard_paths
from zoo.flow.inference.drawing import load_sampler, requests, sampler_settings
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.sampling import PAIRS
from zoo.flow.process.solvers import Solver

NOT_COMPARED = ("run",)  # a matter of where it lies; the teacher's weights are compared by their hash


def make_pairs(
    sampler: Sampler,
    output: Path,
    count: int,
    labels: Sequence[int | str] | None = None,
    seed: int = 0,
    shard_size: int = 1024,
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
    run: str = "",
    classes: list[str] | None = None,
) -> dict[str, int]:
    """Write a teacher's samples in shards, each with the seed of the noise that it was made of.

    Noise and label of pair i follow from `seed` and i alone, so the pairs are the same for any chunk, shard size or
    number of processes, as far as a sample does not depend on its chunk (see `Sampler`). `meta.json` says how they were
    made. A second call makes missing shards only.

    The arguments are those of `write_pairs`; of `world_size` processes each makes every world_size-th shard.

    Returns:
        Pairs that this process `made`, and `skipped` because they were there.

    Source: Liu et al., "Flow Straight and Fast" (2023), algorithm 1.
    """
    at_least(1, count=count, shard_size=shard_size)
    within(0, world_size - 1, rank=rank)
    if sampler.latents is not None:
        raise ValueError("make-pairs stores samples, and this run's net makes latents: reflow of latents is not there")
    if sampler.given_keys:
        raise ValueError("make-pairs stores labels, and this run's net is told of texts or images, too")
    chosen = sampler.label_numbers(labels)
    drawn, seeds = requests(count, seed, sampler.net.num_classes, chosen, PAIRS)
    classes = sampler.classes if classes is None else classes
    if classes is not None and len(classes) != sampler.net.num_classes:
        raise ValueError(f"{len(classes)} names of classes for a net of {sampler.net.num_classes} classes")
    net = sampler.net
    settings = sampler_settings(sampler) | {"num_classes": net.num_classes, "sample_shape": net.sample_shape}
    settings |= {"count": count, "labels": chosen, "classes": classes, "seed": seed, "shard_size": shard_size}
    begin_output(output, {"run": run, **settings}, META_NAME, NOT_COMPARED)
    indices = [range(start, min(start + shard_size, count)) for start in range(0, count, shard_size)]
    shards = list(zip(shard_paths(output, count, shard_size), indices, strict=True))
    share = Share(shards, lambda shard: shard[0].is_file(), rank, world_size)
    made = sum(len(part) for _, part in share.owed)
    with Progress(disable=not progress) as bar:
        task = bar.add_task(f"pairs in {output.name}", total=made)
        for path, part in share.owed:
            rows = np.zeros(len(part), row_type(net.sample_shape))
            rows["seed"] = seeds[part.start : part.stop]
            if drawn is not None:
                rows["label"] = drawn[part.start : part.stop]
            for done in _sample(sampler, rows):
                bar.advance(task, done)
            write_part(path, partial(np.save, arr=rows))
    return {"made": made, "skipped": sum(len(part) for _, part in share.mine) - made}


def _sample(sampler: Sampler, rows: np.ndarray) -> Iterator[int]:
    """Fill in samples, and what their noise begins with; yields how many at a time."""
    seeds, labels = rows["seed"].tolist(), rows["label"].tolist()
    start = 0
    for solution in sampler.solutions(labels if sampler.net.num_classes else None, seeds):
        part = slice(start, start + len(solution.x))
        rows["x0_start"][part] = sampler.noise(seeds[part]).flatten(1)[:, :CHECKED_VALUES].cpu().numpy()
        rows["x1"][part] = solution.x.numpy()
        yield len(solution.x)
        start = part.stop


@writes_into("output")
def write_pairs(
    run: Path,
    output: Path,
    count: int = 50000,
    labels: list[str | int] | None = None,
    seed: int = 63,
    solver: Solver | None = None,
    guidance: Guidance | None = None,
    shard_size: int = 1024,
    chunk: int | None = None,
    classes: list[str] | None = None,
    device: str = "cpu",
) -> dict[str, int]:
    """Write a run's samples with the noise that each was made of, to train on: reflow and distillation.

    A pair is the same for any chunk, shard size or number of processes, up to rounding. The same call goes on after a
    kill. Under torchrun the processes share the work.

    Args:
        run: run folder, checkpoint or export of the teacher.
        output: folder to write.
        count: pairs in all.
        labels: classes by number or name, taken in turns; all when not given.
        seed: of the noise.
        solver: the run's when not given; pairs deserve more steps than samples.
        guidance: the run's when not given; it is baked into the pairs.
        shard_size: pairs per file.
        chunk: pairs sampled at once; as the run says when not given.
        classes: names of the classes, to be noted; those of the run when not given.
        device: torch device.
    """
    sampler = load_sampler(run, solver, guidance, chunk, device)
    return make_pairs(sampler, output, count, labels, seed, shard_size, *processes(), run=str(run), classes=classes)
