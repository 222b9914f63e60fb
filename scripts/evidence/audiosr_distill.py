"""What a distilled diffusion restores in few steps: figures of one seed's runs; see `run.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from scripts.evidence import audiosr
from zoo.audiosr.data.crops import ValidationGrid
from zoo.audiosr.diffusion import Sampler, row_noise
from zoo.audiosr.evaluation.evaluate import (
    RESTORED,
    EvaluationOptions,
    evaluate,
    load_recipe_data,
    make_grid,
)
from zoo.audiosr.inference.restore import Restorer
from zoo.audiosr.nets.features import crop_to_multiple
from zoo.audiosr.samplers import DDIM, conditional_predictor
from zoo.blocks.autoencoder import posterior_mean
from zoo.common.systems import recipe_root
from zoo.runs.load import load

STAGE, TEACHER = "demo_distill", audiosr.STAGES[-1]
TEACHER_STEPS = 50
MOST = 1.05


def plan(root: Path, seed: int | None = None) -> Iterator[tuple[Path, list[str]]]:
    """The demo's trainings and the student's, one after the other; see `audiosr.plan`."""
    for run, arguments in audiosr.plan(root, seed):
        yield run, arguments
    old = f"--config={recipe_root() / 'audiosr' / TEACHER}.yaml"
    changed = {old: old.replace(TEACHER, STAGE), f"--trainer.default_root_dir={run}": None}
    arguments = [changed.get(each, each) or f"--trainer.default_root_dir={root / STAGE}" for each in arguments]
    yield root / STAGE, [*arguments, f"--model.init_args.teacher.init_args.source={run}"]


def measure(run: Path, teacher: Path, quick: bool = False) -> dict[str, float]:
    """Compare a student's few steps with many of its teacher, and with as few of its teacher.

    Args:
        run: run folder of the student.
        teacher: that of its teacher.
        quick: one clip, few steps.
    """
    student, steps = _restorer(run), _restorer(run).sampler.steps
    many = 4 if quick else TEACHER_STEPS
    most = 1 if quick else None
    lsd = {}
    for name, folder, count in (("student", run, steps), ("teacher", teacher, many), ("undistilled", teacher, steps)):
        sampler = {"class_path": "zoo.audiosr.DDIM", "init_args": {"steps": count}}
        settings = EvaluationOptions(max_items=most, restore={"sampler": sampler})
        lsd[name] = _lsd(evaluate(folder, run / audiosr.FOLDER / name, settings))
    recipe = load_recipe_data(run, EvaluationOptions())
    grid = make_grid(recipe, EvaluationOptions(max_items=most), student.sample_rate)
    way = {name: _distances(each, _restorer(teacher), grid, DDIM(many)) for name, each in
           (("student", student), ("undistilled", _restorer(teacher, steps)))}  # fmt: skip
    means = {name: fmean(each) for name, each in way.items()}
    return {
        f"LSD distilled to {TEACHER_STEPS} steps of the teacher": lsd["student"] / lsd["teacher"],
        "distance to the teacher's latents, distilled to undistilled in as few steps": (
            means["student"] / means["undistilled"]
        ),
    }


def _restorer(run: Path, steps: int | None = None) -> Restorer:
    """A run of the diffusion, with its own sampler or so many steps of DDIM."""
    options: dict[str, Any] = {} if steps is None else {"restore": {"sampler": DDIM(steps)}}
    model = load(run, **options)
    if not isinstance(model, Restorer):
        raise ValueError(f"{run} is a {type(model).__name__}: name a run of the diffusion stage")
    return model


def _lsd(rows: Sequence[Mapping[str, Any]]) -> float:
    return fmean(float(row["lsd"]) for row in rows if row["status"] == "done" and row["system"] == RESTORED)


def _distances(model: Restorer, teacher: Restorer, grid: ValidationGrid, sampler: Sampler) -> list[float]:
    """RMS distances of a model's latents to those of a teacher's sampler from the same noise, an item each."""
    distances = []
    for number in range(len(grid)):
        low = grid[number]["low"][None]
        latents, target = _latents(model, low, model.sampler, number), _latents(teacher, low, sampler, number)
        distances.append(math.sqrt(float((latents - target).square().mean())))
    return distances


@torch.inference_mode()
def _latents(model: Restorer, low: Tensor, sampler: Sampler, seed: int) -> Tensor:
    """What a model makes of a clip (1, 1, T) in the scale of the net, (1, C, H, W)."""
    mel = crop_to_multiple(model.features(low), model.autoencoder.factor * model.net.unet.factor)
    condition = posterior_mean(model.autoencoder.encode(mel)) * model.net.latent_scale
    options = model.restore
    predict = conditional_predictor(
        model.net, condition, model.net.encode_clip(mel), options.guidance_scale, options.guidance_rescale
    )
    noises = row_noise([seed], condition.shape[1:])
    return sampler.sample(predict, next(noises), model.diffusion, noises)
