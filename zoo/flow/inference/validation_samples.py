"""What a validation of flow matching shows: samples beside real images, their way from the noise."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from zoo.flow import rendering
from zoo.flow.process.conditions import GenerationConditions
from zoo.flow.process.guidance import Guidance, NestedGuidance
from zoo.flow.process.sampling import SAMPLES
from zoo.training.resume import item_seed

if TYPE_CHECKING:
    from zoo.flow.inference.sampler import Sampler
    from zoo.flow.task import FlowTask

CLASSES = 10  # columns of the picture
POINTS = 512
REAL_ITEMS = 512  # of the training set, among which the nearest to a sample is looked for
STRIP_STATES, ANIMATED_STATES = 8, 30  # of a trajectory
EXAGGERATED = 2.0  # scale of guidance that is shown where the recipe has none
ANIMATION_FPS = 8


def log_validation_samples(sampler: Sampler, task: FlowTask, last: bool) -> None:
    """Log samples as a picture, and after the last validation their way from the noise as an animation.

    Images are of each class, with and without guidance, above their nearest training images; points lie over points of
    the data. The noise is that of `zoo sample` with the same seed.
    """
    if rendering.is_image(sampler.sample_shape):
        _log_images(task, sampler, last)
    elif tuple(sampler.sample_shape) == (2,):
        _log_points(task, sampler, last)


def conditions_of(task: FlowTask, labels: Sequence[int] | None, count: int) -> GenerationConditions | None:
    """Texts and images of samples: those of held-out items of their classes, in turns; None where none are taken."""
    if task.text is None and task.image_condition is None:
        return None
    items: Any = task.trainer.datamodule.val_set  # type: ignore[attr-defined]
    if labels is None:
        return items.generation_conditions([index % len(items) for index in range(count)])
    item_labels = items.labels.tolist()
    by_label = {label: [index for index, each in enumerate(item_labels) if each == label] for label in set(labels)}
    turns = {label: itertools.cycle(rows or range(len(items))) for label, rows in by_label.items()}
    return items.generation_conditions([next(turns[label]) for label in labels])


def _log_images(task: FlowTask, sampler: Sampler, last: bool) -> None:
    items = task.sample_settings.items
    labels, seeds, names = _requests(task, max(items, min(task.net.num_classes, CLASSES)))
    conditions = conditions_of(task, labels, len(seeds))
    real = _training_examples(task, REAL_ITEMS)
    rows = []
    if conditions is not None and conditions.images is not None:
        rows.append(("given", rendering.to_pixels(conditions.images[:, -sampler.sample_shape[0] :])))
    names = conditions.prompts if names is None and conditions is not None else names
    for title, guidance in _guidances(task, labels is not None or conditions is not None).items():
        states = sampler.using(sampler.solver, guidance).trajectory(labels, seeds, conditions)
        rows.append((title, rendering.to_pixels(states[-1])))
        if real is not None:
            rows.append(("nearest training images", rendering.to_pixels(rendering.nearest(states[-1], real))))
    task.write_media("image", "val/samples", rendering.titled_rows(rows, names))
    chosen = _evenly(len(states), STRIP_STATES)
    times = [f"t {sampler.solver.times()[index]:.2f}" for index in chosen]
    strips = [
        ("" if names is None else names[index], rendering.to_pixels(states[chosen, index]))
        for index in range(min(items, len(seeds)))
    ]
    task.write_media("image", "val/trajectory", rendering.titled_rows(strips, times))
    if last:
        animation = rendering.frames(states[_evenly(len(states), ANIMATED_STATES)], names=names)
        task.write_media("animation", "val/animation", animation, ANIMATION_FPS)


def _log_points(task: FlowTask, sampler: Sampler, last: bool) -> None:
    labels, seeds, _ = _requests(task, POINTS)
    states, real = sampler.trajectory(labels, seeds), _training_examples(task, POINTS)
    plots = rendering.point_plots(states[_evenly(len(states), ANIMATED_STATES)], labels, real)
    task.write_media("image", "val/samples", plots[-1])
    if last:
        task.write_media("animation", "val/animation", plots, ANIMATION_FPS)


def _requests(task: FlowTask, count: int) -> tuple[list[int] | None, list[int], Sequence[str] | None]:
    """Labels, taken in turns, seeds and names of classes of samples."""
    seeds = [item_seed(task.sample_settings.seed, SAMPLES, index) for index in range(count)]
    if not task.net.num_classes:
        return None, seeds, None
    labels = [1 + index % task.net.num_classes for index in range(count)]
    names = task.classes or [str(label) for label in range(1, task.net.num_classes + 1)]
    return labels, seeds, [names[label - 1] for label in labels]


def _guidances(task: FlowTask, conditional: bool) -> dict[str, Guidance | None]:
    """The guidances to show, by their titles."""
    guidances: dict[str, Guidance | None] = {"guidance 1" if conditional else "samples": None}
    if conditional and (task.guidance is not None or task.label_drop or task.condition_drop):
        guided = task.guidance or Guidance(EXAGGERATED)
        scales = f"{guided.scale:g}"
        if isinstance(guided, NestedGuidance):
            scales = ", ".join(f"{kind} {scale:g}" for kind, scale in guided.scales.items())
        guidances[f"guidance {scales}"] = guided
    return guidances


def _training_examples(task: FlowTask, count: int) -> Tensor | None:
    """Training data, evenly from all of the set, where it can be read."""
    data: Any = getattr(getattr(task.trainer, "datamodule", None), "train_set", None)
    return data.examples(_evenly(len(data), count)) if hasattr(data, "examples") else None


def _evenly(size: int, count: int) -> list[int]:
    """At most so many indices from 0 to size - 1, the first and the last among them."""
    return np.linspace(0, size - 1, min(size, count)).round().astype(int).tolist()
