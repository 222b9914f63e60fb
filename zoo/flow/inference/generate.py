"""Many samples into a folder, one file each, by one process or several, and again after a kill."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_within
from zoo.common.environment import process_rank
from zoo.common.journal import begin_output, pending_items
from zoo.common.locks import writes_into
from zoo.common.reports import write_report
from zoo.common.tensors import state_digest
from zoo.flow import rendering
from zoo.flow.inference.requests import (
    SampleRequests,
    cycle_conditions,
    image_files,
    load_sampler,
    sample_requests,
    sampler_settings,
)
from zoo.flow.inference.sampler import ANIMATED_IMAGES, Sampler
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.image_conditions import Inpainting
from zoo.flow.process.solvers import Solver

LABELS_NAME, JOINED_NAME = "labels.csv", "samples.npy"
GRID_IMAGES = 100


def generate(
    sampler: Sampler,
    output: Path,
    count: int = 500,
    labels: Sequence[int | str] | None = None,
    seed: int = 63,
    rank: int = 0,
    world_size: int = 1,
    grid: bool = True,
    trajectory: bool = False,
    progress: bool = True,
    prompts: Sequence[str] | None = None,
    images: Path | None = None,
    masks: Path | None = None,
) -> dict[str, Any]:
    """Write samples, one file each; the same call resumes after a kill.

    OUTPUT holds `0.png`, `1.png`, ... (`0.npy`, ... where samples are no images), `labels.csv` with file, label, seed
    (a pair that a request file of `zoo predict` takes) and class name of each, and `settings.json`. Samples that are
    no images are joined in `samples.npy` (count, ...) besides. The grid of the first 100 images (the scatter plot of
    all points) is `OUTPUT_grid.png`, the animation of the first 64 (of all points) `OUTPUT_trajectory.gif`:
    beside the folder, whose every PNG is a sample.

    Processes share the work by `rank` and `world_size` and need not talk to each other: the one that ends last writes
    grid, animation and `samples.npy`. Sample i is the same, to the bit, for any number of processes and kills; for
    another `sampler.chunk` it is the same but for rounding, and with dopri5 but for its tolerances.

    The other arguments are those of `sample`.

    Returns:
        `done` samples of this call, `skipped` ones that existed, `missing` ones that other processes owe, `nfe` of a
        sample (with dopri5 the most that a chunk took), `seconds` of work, `written`: further files by name.
    """
    started = time.perf_counter()
    check_within(0, world_size - 1, rank=rank)
    output = Path(output).resolve()
    chosen = sampler.label_numbers(labels)
    requested = sample_requests(count, seed, sampler.net.num_classes, chosen)
    shape = sampler.sample_shape
    suffix = ".png" if rendering.is_image(shape) else ".npy"
    if grid or trajectory:
        rendering.check_drawable(shape)
    settings = {"count": count, "labels": chosen, "seed": seed, "classes": sampler.classes, **sampler_settings(sampler)}
    files = {"image": image_files(images), "mask": image_files(masks)}
    conditions = cycle_conditions(sampler, requested[1], prompts, files["image"], files["mask"])
    if conditions is not None:
        settings["prompts"] = None if prompts is None else list(prompts)
        settings["images"] = None if conditions.images is None else state_digest({"images": conditions.images})
    begin_output(output, settings, notes=("classes",), sweep=world_size == 1)
    if rank == 0:
        more = {} if prompts is None else {"prompt": prompts}
        more |= {key: [path.name for path in paths] for key, paths in files.items() if paths}
        _write_labels(output, requested, suffix, sampler.class_names(requested[0]), more)
    paths = [output / f"{index}{suffix}" for index in range(count)]
    spans = [range(first, min(first + sampler.chunk, count)) for first in range(0, count, sampler.chunk)]
    pending = pending_items(spans, lambda span: all(paths[index].exists() for index in span), rank, world_size)
    done, nfe = 0, 0
    for span in track(pending, "samples", disable=not progress or rank > 0):
        made, evaluations = _write_span(sampler, paths, span, requested, conditions)
        done, nfe = done + made, max(nfe, evaluations)
    missing = sum(not path.exists() for path in paths)
    written = [] if missing else finish(sampler, output, paths, requested, grid, trajectory, conditions)
    return {
        "done": done,
        "skipped": sum(map(len, spans[rank::world_size])) - done,
        "missing": missing,
        "nfe": nfe,
        "seconds": round(time.perf_counter() - started, 3),
        "written": [path.name for path in written],
    }


def finish(
    sampler: Sampler,
    output: Path,
    paths: Sequence[Path],
    requested: SampleRequests,
    grid: bool,
    trajectory: bool,
    conditions: GenerationConditions | None = None,
) -> list[Path]:
    """Write what is made of all samples, once they exist; returns the files."""
    labels, seeds = requested
    names = sampler.class_names(labels)
    written = []
    if paths[0].suffix == ".png":
        first = min(GRID_IMAGES, len(paths))
        tiles = np.stack([read_image(path) for path in paths[:first]])
        overview = rendering.labelled_grid(tiles, None if names is None else names[:first])
        animated = min(ANIMATED_IMAGES, len(paths))
    else:
        joined = np.stack([np.load(path) for path in paths])
        written.append(output / JOINED_NAME)
        write_atomic(written[-1], lambda file: np.save(file, joined))
        overview = rendering.frames(torch.from_numpy(joined)[None], labels)[0] if grid else joined
        animated = len(paths)
    if trajectory:
        part_conditions = None if conditions is None else conditions.rows(slice(animated))
        states = sampler.trajectory(None if labels is None else labels[:animated], seeds[:animated], part_conditions)
        written.append(output.with_name(f"{output.name}_trajectory.gif"))
        rendering.write_gif(written[-1], rendering.frames(states, labels, names))
    if grid:
        written.append(output.with_name(f"{output.name}_grid.png"))
        rendering.write_png(written[-1], overview)
    return written


def read_image(path: Path) -> np.ndarray:
    """Read a picture as (H, W, C), uint8, with 1 or 3 channels."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.array(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _write_labels(
    output: Path, requested: SampleRequests, suffix: str, names: Sequence[str] | None, more: Mapping[str, Sequence[str]]
) -> None:
    """Write file, label (0 without classes) and seed of each sample, the name of its class, and what it was given."""
    labels, seeds = requested
    columns = {"file": [f"{index}{suffix}" for index in range(len(seeds))], "label": labels or [0] * len(seeds)}
    columns |= {"seed": seeds, **({"class": names} if names else {})}
    columns |= {name: [values[index % len(values)] for index in range(len(seeds))] for name, values in more.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    write_report(output, {LABELS_NAME: (list(columns), rows)})


def _write_span(
    sampler: Sampler,
    paths: Sequence[Path],
    span: range,
    requested: SampleRequests,
    conditions: GenerationConditions | None,
) -> tuple[int, int]:
    """Compute a whole chunk, as an uninterrupted call would, and write what is missing of it."""
    labels, seeds = requested
    part = slice(span.start, span.stop)
    part_conditions = None if conditions is None else conditions.rows(part)
    (solution,) = sampler.solutions(None if labels is None else labels[part], seeds[part], conditions=part_conditions)
    done = 0
    for index, sample in zip(span, solution.x, strict=True):
        if paths[index].exists():
            continue
        if paths[index].suffix == ".png":
            rendering.write_png(paths[index], rendering.to_pixels(sample[None])[0])
        else:
            write_atomic(paths[index], partial(np.save, arr=sample.numpy()))
        done += 1
    return done, solution.nfe


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
    guide: Path | None = None,
    prompts: list[str] | str | None = None,
    images: Path | None = None,
    masks: Path | None = None,
    put_back: bool = False,
) -> dict[str, Any]:
    """Draw samples from a run into a folder: 0.png, 1.png, ..., labels.csv, a grid and an animation.

    Sample i is the same for any chunk, device or number of processes, up to rounding. The same call resumes after a
    kill. Under torchrun the processes share the work.

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
        guide: run of a weaker net to guide this one by (autoguidance), with --guidance zoo.flow.Autoguidance and
            --guidance.scale, 2 when not given.
        prompts: texts, taken in turns, for a run that takes them: --prompts "a cat", or '["a", "b"]'; "" is none.
        images: for a run that takes images: one, or a folder of them, taken in turns by name.
        masks: likewise, white where an image is to be generated; random rectangles when not given.
        put_back: keep what an image has outside of the mask to the bit, by putting it back at each step; for a run that
            inpaints (see `zoo.flow.Inpainting`).
    """
    sampler = load_sampler(run, solver, guidance, chunk, device, guide)
    if put_back:
        if not isinstance(sampler.image_condition, Inpainting):
            raise ValueError(f"--put_back is for runs with zoo.flow.Inpainting as image_condition, which {run} has not")
        sampler.image_condition.put_back = True
    rank, world = process_rank()
    prompts = [prompts] if isinstance(prompts, str) else prompts
    return generate(sampler, output, count, labels, seed, rank, world, grid, trajectory, True, prompts, images, masks)
