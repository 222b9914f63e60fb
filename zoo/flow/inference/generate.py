"""Many samples into a folder, one file each, by one process or several, and again after a kill."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.progress import track

from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_within
from zoo.common.environment import process_rank
from zoo.common.journal import begin_output, pending_items
from zoo.common.locks import writes_into
from zoo.common.reports import write_report
from zoo.common.tensors import state_digest
from zoo.flow import rendering
from zoo.flow.inference.forms import ANIMATED_IMAGES
from zoo.flow.inference.requests import GenerationRequest, load_sampler, sampler_settings
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.solvers import Solver

LABELS_NAME, JOINED_NAME = "labels.csv", "samples.npy"
GRID_IMAGES = 100


def generate(
    sampler: Sampler,
    output: Path,
    request: GenerationRequest,
    rank: int = 0,
    world_size: int = 1,
    grid: bool = True,
    trajectory: bool = False,
) -> dict[str, Any]:
    """Write samples, one file each; the same call resumes after a kill. See `sample`.

    Processes share the work by `rank` and `world_size` and need not talk to each other: the one that ends last writes
    what is made of all samples. Sample i is the same, to the bit, for any number of processes and kills; for another
    `sampler.chunk` it is the same but for rounding, and with dopri5 but for its tolerances.

    Returns:
        `done` samples of this call, `skipped` ones that existed, `missing` ones of other processes, `nfe` of a sample
        (with dopri5 the most that a chunk took), `seconds` of work, `written`: further files by name.
    """
    started = time.perf_counter()
    check_within(0, world_size - 1, rank=rank)
    folder = _SampleFolder(sampler, Path(output).resolve(), request)
    if grid or trajectory:
        rendering.check_drawable(sampler.sample_shape)
    begin_output(folder.path, folder.settings(), notes=("classes", "resize", "background"), sweep=world_size == 1)
    if rank == 0:
        folder.write_labels()
    chunks = [
        range(first, min(first + sampler.chunk, request.count)) for first in range(0, request.count, sampler.chunk)
    ]
    pending = pending_items(
        chunks, lambda chunk: all(folder.files[index].exists() for index in chunk), rank, world_size
    )
    results = [folder.write_chunk(chunk) for chunk in track(pending, "samples", disable=rank > 0)]
    done = sum(count for count, _ in results)
    missing = sum(not path.exists() for path in folder.files)
    written = [] if missing else folder.finish(grid, trajectory)
    return {
        "done": done,
        "skipped": sum(map(len, chunks[rank::world_size])) - done,
        "missing": missing,
        "nfe": max((nfe for _, nfe in results), default=0),
        "seconds": round(time.perf_counter() - started, 3),
        "written": [path.name for path in written],
    }


class _SampleFolder:
    """The folder of `zoo sample`: `0.png`, `1.png`, ... (`.npy` where samples are no images), tables and pictures."""

    def __init__(self, sampler: Sampler, path: Path, request: GenerationRequest) -> None:
        self.sampler = sampler
        self.path = path
        self.request = request
        self.labels, self.seeds = request.labels_and_seeds(sampler)
        self.names = sampler.class_names(self.labels)
        self.conditions = request.conditions(sampler, self.seeds)
        self.suffix = ".png" if rendering.is_image(sampler.sample_shape) else ".npy"
        self.files = [path / f"{index}{self.suffix}" for index in range(request.count)]

    def settings(self) -> dict[str, Any]:
        """What decides the samples, for settings.json."""
        request, sampler = self.request, self.sampler
        labels = sampler.label_numbers(request.labels)
        settings: dict[str, Any] = {
            "count": request.count,
            "labels": labels,
            "seed": request.seed,
            "classes": sampler.classes,
            "resize": sampler.resize,
            "background": sampler.background,
        }
        if self.conditions is not None:
            images = self.conditions.images
            settings["prompts"] = None if request.prompts is None else list(request.prompts)
            settings["images"] = None if images is None else state_digest({"images": images})
        return settings | sampler_settings(sampler)

    def write_labels(self) -> None:
        """Write file, label (0 without classes), seed, class and conditions of each sample."""
        count = len(self.seeds)
        columns: dict[str, Sequence[Any]] = {"file": [path.name for path in self.files]}
        columns |= {"label": self.labels or [0] * count, "seed": self.seeds}
        columns |= {} if self.names is None else {"class": self.names}
        turns = {"prompt": list(self.request.prompts or ())}
        turns |= {name: [path.name for path in paths] for name, paths in self.request.files().items()}
        columns |= {key: [each[index % len(each)] for index in range(count)] for key, each in turns.items() if each}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        write_report(self.path, {LABELS_NAME: (list(columns), rows)})

    def select(self, rows: slice) -> tuple[list[int] | None, list[int], GenerationConditions | None]:
        """Labels, seeds and conditions of some samples."""
        conditions = None if self.conditions is None else self.conditions.rows(rows)
        return None if self.labels is None else self.labels[rows], self.seeds[rows], conditions

    def write_chunk(self, chunk: range) -> tuple[int, int]:
        """Compute a whole chunk, as an uninterrupted call would; return the number of files written, and the NFE."""
        labels, seeds, conditions = self.select(slice(chunk.start, chunk.stop))
        (solution,) = self.sampler.solutions(labels, seeds, conditions=conditions)
        pending = [index for index in chunk if not self.files[index].exists()]
        for index in pending:
            sample = solution.x[index - chunk.start]
            if self.suffix == ".png":
                rendering.write_png(self.files[index], rendering.to_pixels(sample[None])[0])
            else:
                write_atomic(self.files[index], partial(np.save, arr=sample.numpy()))
        return len(pending), solution.nfe

    def finish(self, grid: bool, trajectory: bool) -> list[Path]:
        """Write what is made of all samples, once they exist; return the files."""
        written, animated = [], ANIMATED_IMAGES
        if self.suffix == ".npy":
            joined = np.stack([np.load(path) for path in self.files])
            written.append(self.path / JOINED_NAME)
            write_atomic(written[-1], partial(np.save, arr=joined))
            animated = len(joined)
        if trajectory:
            states = self.sampler.trajectory(*self.select(slice(animated)))
            written.append(self.path.with_name(f"{self.path.name}_trajectory.gif"))
            rendering.write_gif(written[-1], rendering.frames(states, self.labels, self.names))
        if grid:
            written.append(self.path.with_name(f"{self.path.name}_grid.png"))
            if self.suffix == ".npy":
                picture = rendering.frames(torch.from_numpy(joined)[None], self.labels)[0]
            else:
                tiles = np.stack([np.atleast_3d(np.asarray(Image.open(path))) for path in self.files[:GRID_IMAGES]])
                picture = rendering.labelled_grid(tiles, self.names and self.names[:GRID_IMAGES])
            rendering.write_png(written[-1], picture)
        return written


@writes_into("output", shared=True)
def sample(
    run: Path,
    output: Path,
    count: int = 500,
    labels: list[str | int] | None = None,
    seed: int = 63,
    solver: Solver | None = None,
    guidance: Guidance | None = None,
    chunk: int | None = None,
    grid: bool = True,
    trajectory: bool = False,
    device: str = "cpu",
    prompts: list[str] | str | None = None,
    images: Path | None = None,
    masks: Path | None = None,
) -> dict[str, Any]:
    """Draw samples from a run into a folder: 0.png, ..., labels.csv, a grid; with --trajectory true an animation.

    Sample i is the same for any chunk, device or number of processes, up to rounding. The same call resumes after a
    kill; under torchrun the processes share the work. Samples that are no images become `.npy` files.

    Args:
        run: run folder, checkpoint or export; its averaged weights, where it has them.
        output: folder to write.
        count: samples.
        labels: classes by number (1 to K) or name, taken in turns; all when not given. A name of digits needs quotes:
            --labels '["7"]'.
        seed: of the noise.
        solver: the run's when not given, e.g. --solver.method heun2 --solver.steps 10.
        guidance: the run's when not given, e.g. --guidance.scale 2; 1 is the conditional field.
        chunk: samples integrated together; as the run says when not given.
        grid: write the first 100 as one picture, OUTPUT_grid.png.
        trajectory: write an animation of the first 64 from noise to data, OUTPUT_trajectory.gif.
        device: torch device.
        prompts: texts in turns, for a run that takes them: --prompts "a cat", or '["a", "b"]'; "" is none.
        images: likewise: one, or a folder of them, by name.
        masks: likewise, white where an image is to be generated; random rectangles when not given.
    """
    sampler = load_sampler(run, solver, guidance, chunk, device)
    prompts = [prompts] if isinstance(prompts, str) else prompts
    request = GenerationRequest(count, seed, labels, prompts, images, masks)
    return generate(sampler, output, request, *process_rank(), grid, trajectory)
