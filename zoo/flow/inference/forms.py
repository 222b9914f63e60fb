"""The form of a sampler for the page and the server: its fields, drawing for several forms, and the results."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.flow import rendering
from zoo.flow.data.image_sets import SUFFIXES
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.guidance import Guidance, NestedGuidance
from zoo.flow.process.sampling import SAMPLES
from zoo.flow.process.solvers import METHODS
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


@dataclass
class FormSamples:
    """What was drawn for a form.

    Attributes:
        samples: (B, *sample_shape).
        labels: one per sample; None without classes.
        states: (N + 1, B, *sample_shape) of the samples to animate, noise first; None without animation.
        nfe: evaluations of the field for a sample.
    """

    samples: Tensor
    labels: list[int] | None
    states: Tensor | None
    nfe: int


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
    if sampler.net.num_classes or (sampler.request_keys and not scales):
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
        InputField("method", "Solver", "choice", sampler.solver.method, allowed=METHODS),
        InputField("animation", "Animate the way from noise", "bool", True),
    )


def answer_batch(
    sampler: Sampler, requests: Sequence[tuple[Mapping[str, Any], Path]], progress: Progress
) -> list[list[Output] | Exception]:
    """Draw for several forms, those with one solver and guidance together; dopri5 suits its steps to what it gets."""
    groups: list[list[int]] = []
    open_groups: dict[Any, list[int]] = {}
    guidances = ("guidance", *(f"guidance_{kind}" for kind in _scales(sampler)))
    for number, (values, _) in enumerate(requests):
        shared = [values.get(name) for name in ("method", "steps", "animation", *guidances)]
        key = (*shared, number if values["method"] == "dopri5" else None)
        count = sum(requests[each][0]["count"] for each in open_groups.get(key, ())) + values["count"]
        if key not in open_groups or count > sampler.chunk:
            open_groups[key] = []
            groups.append(open_groups[key])
        open_groups[key].append(number)
    results: list[Any] = [None] * len(requests)
    for group in groups:
        batch = attempt(draw_requests, sampler, [requests[number][0] for number in group], progress)
        for place, number in enumerate(group):
            if isinstance(batch, Exception):
                results[number] = attempt(sampler.answer, *requests[number], progress)
            else:
                results[number] = attempt(write_outputs, sampler, *requests[number], batch[place])
    return results


def draw_requests(sampler: Sampler, forms: Sequence[Mapping[str, Any]], progress: Progress) -> list[FormSamples]:
    """Draw the samples of forms that share solver, guidance and animation."""
    first, is_image = forms[0], rendering.is_image(sampler.sample_shape)
    labels = [label for values in forms for label in _labels(sampler, values)]
    seeds = [item_seed(values["seed"], SAMPLES, number) for values in forms for number in range(values["count"])]
    limit = ANIMATED_IMAGES if is_image else MAX_POINTS
    record = 0 if not first["animation"] else min(len(seeds), limit) if len(forms) == 1 else len(seeds)
    solutions = list(
        _with_settings(sampler, first).solutions(
            labels or None,
            seeds,
            record,
            lambda share: progress(SAMPLING_SHARE * share, "sampling"),
            _conditions(sampler, forms, seeds),
        )
    )
    progress(SAMPLING_SHARE, "drawing")
    samples, nfe = torch.cat([solution.x for solution in solutions]), max(solution.nfe for solution in solutions)
    states = None
    if record:
        states = torch.cat([torch.stack(each.trajectory) for each in solutions if each.trajectory], dim=1)
    batch, start = [], 0
    for values in forms:
        rows = slice(start, start + values["count"])
        animated = slice(start, start + min(values["count"], limit))
        batch.append(
            FormSamples(samples[rows], labels[rows] or None, None if states is None else states[:, animated], nfe)
        )
        start += values["count"]
    return batch


def write_outputs(sampler: Sampler, values: Mapping[str, Any], folder: Path, batch: FormSamples) -> list[Output]:
    """Write the samples of a form and their animation; return them with a table of facts."""
    names = sampler.class_names(batch.labels)
    outputs = []
    if rendering.is_image(sampler.sample_shape) or batch.samples.shape[1:] == (2,):
        picture = rendering.frames(batch.samples[None], batch.labels, names)[0]
        rendering.write_png(folder / "samples.png", picture)
        outputs.append(Output("image", "Samples", "samples.png"))
        if batch.states is not None:
            count = len(batch.states)
            chosen = np.linspace(0, count - 1, min(count, MAX_FRAMES)).round().astype(int)
            animation = rendering.frames(batch.states[chosen], batch.labels, names)
            rendering.write_gif(folder / "way.gif", animation, min(FRAMES_PER_SECOND, len(animation)))
            outputs.append(Output("animation", "From noise to samples", "way.gif"))
    if not rendering.is_image(sampler.sample_shape):
        write_atomic(folder / "samples.npy", lambda file: np.save(file, batch.samples.numpy()))
        outputs.append(Output("file", "Samples as numbers", "samples.npy"))
    counts = {} if names is None else dict(Counter(names))
    facts = {"samples": len(batch.samples), **counts, "evaluations of the net": batch.nfe}
    return [*outputs, table_output(facts)]


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


def _conditions(
    sampler: Sampler, forms: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> GenerationConditions | None:
    """Prompts and images of forms, one of each per sample."""
    if not sampler.request_keys:
        return None
    parts, start = [], 0
    for values in forms:
        count = values["count"]
        prompts = [values.get("prompt") or ""] * count if sampler.text is not None else None
        images, masks = ([values[key]] * count if values.get(key) else [] for key in ("image", "mask"))
        part = sampler.read_conditions(seeds[start : start + count], prompts, images, masks)
        assert part is not None
        parts.append(part)
        start += count
    return GenerationConditions(
        None if sampler.text is None else [prompt for part in parts for prompt in part.prompts or ()],
        None
        if sampler.image_condition is None
        else torch.cat([part.images for part in parts if part.images is not None]),
    )


def _labels(sampler: Sampler, values: Mapping[str, Any]) -> list[int]:
    if not sampler.net.num_classes:
        return []
    names = sampler.classes or [str(number + 1) for number in range(sampler.net.num_classes)]
    chosen = [names.index(name) + 1 for name in values["classes"] or names]
    return [chosen[number % len(chosen)] for number in range(values["count"])]
