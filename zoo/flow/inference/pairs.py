"""Writing pairs for reflow and distillation: a teacher's samples with the noise that they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.common.checks import check_at_least, check_within
from zoo.common.environment import process_rank
from zoo.common.journal import begin_output
from zoo.common.locks import writes_into
from zoo.flow.data.pair_data import CHECKED_VALUES, FRAMING, META_NAME, STEM, row_type
from zoo.flow.inference.requests import GenerationRequest, check_label_conditions, load_sampler, sampler_settings
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.sampling import PAIRS
from zoo.flow.process.solvers import Solver
from zoo.training.array_files import write_array_files

# A matter of where the teacher lies, whose weights are compared by their hash, and how it read its images.
NOT_COMPARED = ("run", *FRAMING)


def make_pairs(
    sampler: Sampler,
    output: Path,
    request: GenerationRequest,
    shard_size: int = 1024,
    rank: int = 0,
    world_size: int = 1,
    run: str = "",
) -> dict[str, int]:
    """Write a teacher's samples in shards, each with the seed of the noise that it was made of; see `write_pairs`.

    Noise and label of a pair follow from seed and number alone. `meta.json` says how the pairs were made. A second call
    writes missing shards only; of `world_size` processes each writes every world_size-th. A flow in latents gives
    these, on the autoencoder's own scale.

    Returns:
        Pairs that this process `made`, and `skipped` because they were there.

    Source: Liu et al., "Flow Straight and Fast" (2023), algorithm 1.
    """
    check_at_least(1, shard_size=shard_size)
    check_within(0, world_size - 1, rank=rank)
    check_label_conditions(sampler, "make-pairs")
    labels, seeds = request.labels_and_seeds(sampler, PAIRS)
    settings = _settings(sampler, request)
    begin_output(
        output, {"run": run, **settings, "shard_size": shard_size}, META_NAME, NOT_COMPARED, sweep=world_size == 1
    )
    made = 0

    def rows(part: range) -> np.ndarray:
        nonlocal made
        made += len(part)
        rows = np.zeros(len(part), row_type(sampler.net.sample_shape))
        rows["seed"] = seeds[part.start : part.stop]
        if labels is not None:
            rows["label"] = labels[part.start : part.stop]
        _fill_samples(sampler, rows)
        return rows

    write_array_files(output / STEM, request.count, shard_size, rows, rank, world_size)
    starts = range(0, request.count, shard_size)[rank::world_size]
    return {"made": made, "skipped": sum(min(shard_size, request.count - start) for start in starts) - made}


def _settings(sampler: Sampler, request: GenerationRequest) -> dict[str, Any]:
    """What decides the pairs, and what their reader has to know."""
    net = sampler.net
    settings = sampler_settings(sampler) | {"num_classes": net.num_classes, "sample_shape": net.sample_shape}
    if sampler.latents is not None:
        settings["autoencoder"] = sampler.latents.autoencoder.fingerprint()
    settings |= {name: getattr(sampler, name) for name in FRAMING}
    labels = sampler.label_numbers(request.labels)
    return settings | {"count": request.count, "labels": labels, "classes": sampler.classes, "seed": request.seed}


def _fill_samples(sampler: Sampler, rows: np.ndarray) -> None:
    """Fill in samples, and what their noise begins with."""
    seeds, start = rows["seed"].tolist(), 0
    to_data = torch.nn.Identity() if sampler.latents is None else sampler.latents.denormalise
    labels = rows["label"].tolist() if sampler.net.num_classes else None
    for solution in sampler.solutions(labels, seeds, decode=False):
        part = slice(start, start + len(solution.x))
        rows["x0_start"][part] = sampler.noise(seeds[part]).flatten(1)[:, :CHECKED_VALUES].cpu().numpy()
        rows["x1"][part] = to_data(solution.x.to(sampler.device)).cpu().numpy()
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
    device: str = "cpu",
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
        device: torch device.
    """
    sampler = load_sampler(run, solver, guidance, chunk, device)
    request = GenerationRequest(count, seed, labels)
    return make_pairs(sampler, output, request, shard_size, *process_rank(), run=str(run))
