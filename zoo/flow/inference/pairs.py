"""Writing pairs for reflow and distillation: a teacher's samples with the noise that they were made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least, check_within
from zoo.common.environment import process_rank
from zoo.common.journal import begin_output, pending_items
from zoo.common.locks import writes_into
from zoo.flow.data.pair_data import CHECKED_VALUES, META_NAME, row_type, shard_paths
from zoo.flow.inference.requests import cycle_conditions, image_files, load_sampler, sample_requests, sampler_settings
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.conditions import GenerationConditions
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
    prompts: Sequence[str] | None = None,
    images: Path | None = None,
    masks: Path | None = None,
) -> dict[str, int]:
    """Write a teacher's samples in shards, each with the seed of the noise that it was made of.

    Noise and label of pair i follow from `seed` and i alone, so the pairs are the same for any chunk, shard size or
    number of processes, as far as a sample does not depend on its chunk (see `Sampler`). `meta.json` says how they were
    made. A second call makes missing shards only. Of a flow in latents the shards hold these, on the autoencoder's own
    scale. Images that samples are given are stored, as the net's condition; prompts follow from the number of a pair.

    The arguments are those of `write_pairs`; of `world_size` processes each makes every world_size-th shard.

    Returns:
        Pairs that this process `made`, and `skipped` because they were there.

    Source: Liu et al., "Flow Straight and Fast" (2023), algorithm 1.
    """
    check_at_least(1, count=count, shard_size=shard_size)
    check_within(0, world_size - 1, rank=rank)
    files = image_files(images), image_files(masks)
    chosen = sampler.label_numbers(labels)
    label_list, seeds = sample_requests(count, seed, sampler.net.num_classes, chosen, PAIRS)
    classes = sampler.classes if classes is None else classes
    if classes is not None and len(classes) != sampler.net.num_classes:
        raise ValueError(f"{len(classes)} names of classes for a net of {sampler.net.num_classes} classes")
    net = sampler.net
    settings = sampler_settings(sampler) | {"num_classes": net.num_classes, "sample_shape": net.sample_shape}
    if sampler.latents is not None:
        settings["autoencoder"] = sampler.latents.autoencoder.fingerprint()
    settings |= {"count": count, "labels": chosen, "classes": classes, "seed": seed, "shard_size": shard_size}
    image_shape = None
    if sampler.request_keys:
        first = cycle_conditions(sampler, seeds[:1], prompts, *files)
        image_shape = None if first is None or first.images is None else list(first.images.shape[1:])
        settings |= {"prompts": None if prompts is None else list(prompts), "image_shape": image_shape}
        settings |= {"images": [path.name for path in files[0]], "masks": [path.name for path in files[1]]}
    elif prompts is not None or any(files):
        raise ValueError("the net takes no prompts and no images: leave them out")
    begin_output(output, {"run": run, **settings}, META_NAME, NOT_COMPARED, sweep=world_size == 1)
    indices = [range(start, min(start + shard_size, count)) for start in range(0, count, shard_size)]
    shards = list(zip(shard_paths(output, count, shard_size), indices, strict=True))
    pending = pending_items(shards, lambda shard: shard[0].is_file(), rank, world_size)
    made = sum(len(part) for _, part in pending)
    with Progress(disable=not progress) as bar:
        task = bar.add_task(f"pairs in {output.name}", total=made)
        for path, part in pending:
            rows = np.zeros(len(part), row_type(net.sample_shape, image_shape))
            rows["seed"] = seeds[part.start : part.stop]
            conditions = cycle_conditions(sampler, rows["seed"].tolist(), prompts, *files, first=part.start)
            if conditions is not None and conditions.images is not None:
                rows["image"] = conditions.images.numpy()
            if label_list is not None:
                rows["label"] = label_list[part.start : part.stop]
            for done in _sample(sampler, rows, conditions):
                bar.advance(task, done)
            write_atomic(path, partial(np.save, arr=rows))
    return {"made": made, "skipped": sum(len(part) for _, part in shards[rank::world_size]) - made}


def _sample(sampler: Sampler, rows: np.ndarray, conditions: GenerationConditions | None) -> Iterator[int]:
    """Fill in samples, and what their noise begins with; yields how many at a time."""
    seeds, labels = rows["seed"].tolist(), rows["label"].tolist()
    start = 0
    to_data = torch.nn.Identity() if sampler.latents is None else sampler.latents.denormalise
    labelled = labels if sampler.net.num_classes else None
    for solution in sampler.solutions(labelled, seeds, conditions=conditions, decode=False):
        part = slice(start, start + len(solution.x))
        rows["x0_start"][part] = sampler.noise(seeds[part]).flatten(1)[:, :CHECKED_VALUES].cpu().numpy()
        rows["x1"][part] = to_data(solution.x.to(sampler.device)).cpu().numpy()
        yield len(solution.x)
        start = part.stop


@writes_into("output", shared=True)
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
    prompts: list[str] | None = None,
    images: Path | None = None,
    masks: Path | None = None,
) -> dict[str, int]:
    """Write a run's samples with the noise that each was made of, to train on: reflow and distillation.

    A pair is the same for any chunk, shard size or number of processes, up to rounding. The same call resumes after a
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
        prompts: for a run that takes texts, in turns; likewise
        images: one, or a folder of them, for a run that takes images, and
        masks: of them, white where they are to be generated; see `zoo sample`.
    """
    sampler = load_sampler(run, solver, guidance, chunk, device)
    sources: dict[str, Any] = {"prompts": prompts, "images": images, "masks": masks}
    rank, world = process_rank()
    return make_pairs(
        sampler, output, count, labels, seed, shard_size, rank, world, run=str(run), classes=classes, **sources
    )
