"""The form of a sampler for the page and the server: its fields, and the results."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zoo.common.atomic_files import write_atomic
from zoo.flow import rendering
from zoo.flow.data.image_sets import SUFFIXES
from zoo.flow.inference.request_files import read_conditions
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.guidance import Guidance, NestedGuidance
from zoo.flow.process.sampling import SAMPLES
from zoo.flow.process.solvers import Solution
from zoo.runs.inference.base import attempt, table_output
from zoo.runs.inference.forms import InputField, Output, Progress
from zoo.training.resume import item_seed

if TYPE_CHECKING:
    from zoo.flow.inference.sampler import Sampler

MAX_IMAGES, MAX_POINTS, MAX_STEPS = 64, 5000, 100  # of one form
MAX_FRAMES, FRAMES_PER_SECOND = 40, 12  # of its animation
ANIMATED_IMAGES = 64  # the first ones; more would be too small to see
GUIDANCE_HELP = "1 follows {}, more exaggerates it"
SAMPLING_SHARE = 0.9  # of the progress; the rest is drawing


def sampler_fields(sampler: Sampler) -> tuple[InputField, ...]:
    """Classes, guidance, what is given, how many, and how to integrate."""
    images = rendering.is_image(sampler.sample_shape)
    steps = min(sampler.solver.steps, MAX_STEPS)
    fields = []
    if sampler.net.num_classes:
        names = tuple(sampler.classes or map(str, range(1, sampler.net.num_classes + 1)))
        help_text = "in turns; all when none"
        fields.append(InputField("classes", "Classes", "choices", allowed=names, help=help_text, optional=True))
    scales = _scales(sampler)
    if not scales and (sampler.net.num_classes or sampler.request_keys):
        scale = 1.0 if sampler.guidance is None else sampler.guidance.scale
        help_text = GUIDANCE_HELP.format("the class" if sampler.net.num_classes else "what is given")
        fields.append(InputField("guidance", "Guidance", "float", scale, (0, 20), help=help_text))
    for kind, scale in scales.items():
        name, label = f"guidance_{kind}", f"Guidance by {kind}"
        fields.append(InputField(name, label, "float", scale, (0, 20), help=GUIDANCE_HELP.format("it")))
    if "prompt" in sampler.request_keys:
        fields.append(InputField("prompt", "Prompt", "text", optional=True, help="what the image is to show"))
    if "image" in sampler.request_keys:
        fields.append(InputField("image", "Image", "file", allowed=SUFFIXES, help="that the result is made from"))
    if "mask" in sampler.request_keys:
        help_text = "white is made anew; a random rectangle when none is given"
        fields.append(InputField("mask", "Mask", "file", allowed=SUFFIXES, help=help_text, optional=True))
    bounds = (1, MAX_IMAGES if images else MAX_POINTS)
    return (
        *fields,
        InputField("count", "Images" if images else "Points", "int", 16 if images else 1000, bounds),
        InputField("seed", "Seed", "int", 0, (0, 2**31), help="the same seed gives the same samples"),
        InputField("steps", "Steps", "int", steps, (1, MAX_STEPS), help="more are slower and closer to the flow"),
        InputField("method", "Solver", "choice", sampler.solver.method, allowed=sampler.methods),
        InputField("animation", "Animate the way from noise", "bool", True),
    )


def draw_samples(sampler: Sampler, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
    """Draw the samples of a form; write them and their animation, and return these with a table of facts."""
    is_image = rendering.is_image(sampler.sample_shape)
    labels, seeds, conditions = _request(sampler, values)
    animated = min(len(seeds), ANIMATED_IMAGES if is_image else MAX_POINTS) if values["animation"] else 0
    chosen = _with_settings(sampler, values)
    solutions = list(
        chosen.solutions(
            labels, seeds, animated, lambda share: progress(SAMPLING_SHARE * share, "sampling"), conditions
        )
    )
    progress(SAMPLING_SHARE, "drawing")
    return _write_outputs(sampler, folder, labels, solutions, animated)


def draw_batch(
    sampler: Sampler, requests: Sequence[tuple[Mapping[str, Any], Path]], progress: Progress
) -> list[list[Output] | Exception]:
    """Draw the samples of several forms, those of one solver and guidance together; see `Inference.answer_batch`.

    Alone are forms with an animation, and those of dopri5, whose steps suit all that it gets.
    """
    shared = ("method", "steps", "guidance", *(f"guidance_{kind}" for kind in _scales(sampler)))
    groups: dict[Any, list[int]] = {}
    for number, (values, _) in enumerate(requests):
        alone = values["animation"] or values["method"] == "dopri5"
        groups.setdefault(number if alone else tuple(values.get(name) for name in shared), []).append(number)
    results: list[Any] = [None] * len(requests)
    for group in groups.values():
        parts = attempt(_solve_together, sampler, [requests[number][0] for number in group]) if len(group) > 1 else None
        for place, number in enumerate(group):
            if isinstance(parts, list):
                results[number] = attempt(_write_outputs, sampler, requests[number][1], *parts[place])
            else:  # one of the group may be at fault
                results[number] = attempt(draw_samples, sampler, *requests[number], progress)
    return results


def _solve_together(
    sampler: Sampler, forms: Sequence[Mapping[str, Any]]
) -> list[tuple[list[int] | None, list[Solution]]]:
    """Draw the samples of forms that share solver and guidance: labels and solution of each."""
    requests = [_request(sampler, values) for values in forms]
    labels = [label for each, _, _ in requests for label in each or ()] or None
    seeds = [seed for _, each, _ in requests for seed in each]
    conditions = _join([each for _, _, each in requests if each is not None])
    solutions = list(_with_settings(sampler, forms[0]).solutions(labels, seeds, conditions=conditions))
    samples = torch.cat([solution.x for solution in solutions]).split([values["count"] for values in forms])
    nfe = max(solution.nfe for solution in solutions)
    return [(each[0], [Solution(x, nfe, [])]) for each, x in zip(requests, samples, strict=True)]


def _join(parts: Sequence[GenerationConditions]) -> GenerationConditions | None:
    if not parts:
        return None
    prompts = [prompt for each in parts for prompt in each.prompts or ()] or None
    images = [each.images for each in parts if each.images is not None]
    return GenerationConditions(prompts, torch.cat(images) if images else None)


def _write_outputs(
    sampler: Sampler, folder: Path, labels: list[int] | None, solutions: Sequence[Solution], animated: int = 0
) -> list[Output]:
    """Write samples and the animation of the first ones; return them with a table of facts."""
    is_image = rendering.is_image(sampler.sample_shape)
    samples, names = torch.cat([solution.x for solution in solutions]), sampler.class_names(labels)
    outputs = []
    if is_image or samples.shape[1:] == (2,):
        rendering.write_png(folder / "samples.png", rendering.frames(samples[None], labels, names)[0])
        outputs.append(Output("image", "Samples", "samples.png"))
        if animated:
            states = [torch.stack(solution.trajectory) for solution in solutions if solution.trajectory]
            way = torch.cat(states, dim=1)[:, :animated]
            rows = np.linspace(0, len(way) - 1, min(len(way), MAX_FRAMES)).round().astype(int)
            animation = rendering.frames(way[rows], labels, names)
            rendering.write_gif(folder / "way.gif", animation, min(FRAMES_PER_SECOND, len(animation)))
            outputs.append(Output("animation", "From noise to samples", "way.gif"))
    if not is_image:
        write_atomic(folder / "samples.npy", lambda file: np.save(file, samples.numpy()))
        outputs.append(Output("file", "Samples as numbers", "samples.npy"))
    counts = {} if names is None else dict(Counter(names))
    nfe = max(solution.nfe for solution in solutions)
    return [*outputs, table_output({"samples": len(samples), **counts, "evaluations of the net": nfe})]


def _scales(sampler: Sampler) -> dict[str, float]:
    """Scales of guidance by kind of condition, where each has its own."""
    return sampler.guidance.scales if isinstance(sampler.guidance, NestedGuidance) else {}


def _with_settings(sampler: Sampler, values: Mapping[str, Any]) -> Sampler:
    """The sampler with a form's solver and guidance."""
    guidance = copy.copy(sampler.guidance)
    if isinstance(guidance, NestedGuidance):
        guidance.scales = {kind: values[f"guidance_{kind}"] for kind in guidance.scales}
    elif "guidance" in values and (guidance is not None or values["guidance"] != 1):
        guidance = guidance or Guidance()
        guidance.scale = values["guidance"]
    return sampler.using(sampler.solver.using(values["method"], values["steps"]), guidance)


def _request(
    sampler: Sampler, values: Mapping[str, Any]
) -> tuple[list[int] | None, list[int], GenerationConditions | None]:
    """Labels, seeds and conditions of a form's samples."""
    seeds = [item_seed(values["seed"], SAMPLES, number) for number in range(values["count"])]
    return _labels(sampler, values) or None, seeds, _conditions(sampler, values, seeds)


def _conditions(sampler: Sampler, values: Mapping[str, Any], seeds: Sequence[int]) -> GenerationConditions | None:
    """Prompts and images of a form, one of each per sample."""
    if not sampler.request_keys:
        return None
    prompts = [values.get("prompt") or ""] * len(seeds) if sampler.text is not None else None
    images, masks = ([values[key]] * len(seeds) if values.get(key) else [] for key in ("image", "mask"))
    return read_conditions(sampler, seeds, prompts, images, masks)


def _labels(sampler: Sampler, values: Mapping[str, Any]) -> list[int]:
    if not sampler.net.num_classes:
        return []
    names = sampler.classes or [str(number + 1) for number in range(sampler.net.num_classes)]
    chosen = [names.index(name) + 1 for name in values["classes"] or names]
    return [chosen[number % len(chosen)] for number in range(values["count"])]
