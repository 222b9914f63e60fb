"""Inference of flow matching: images or points from labels and seeds."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least, check_one_of
from zoo.flow import rendering
from zoo.flow.data.images import WHITE, Framing, Resize, to_values
from zoo.flow.inference import forms
from zoo.flow.inference.request_files import CONDITION_KEYS, named_files, read_request_file, write_request_file
from zoo.flow.inference.validation_samples import log_validation_samples
from zoo.flow.nets.latent_space import LatentSpace
from zoo.flow.nets.velocity import VectorField, VelocityNet
from zoo.flow.process.conditions import ConditionBatch, GenerationConditions, TextEncoder, add_nulls
from zoo.flow.process.guidance import Guidance, check_guidance, check_labels, velocity_field
from zoo.flow.process.image_conditions import ImageCondition
from zoo.flow.process.paths import PREDICTIONS, AffinePath, Prediction
from zoo.flow.process.sampling import noise
from zoo.flow.process.solvers import METHODS, Method, Solution, Solver
from zoo.runs.export import CALL_USAGE
from zoo.runs.inference.base import Inference
from zoo.runs.inference.forms import InputField, Output, Progress

if TYPE_CHECKING:
    from zoo.flow.task import FlowTask


class Sampler(Inference):
    """Draws samples, each from its seed.

    A file of requests (see `read_request_file`) gives a PNG: images row by row, each above the name of its class, or a
    scatter plot of points, with the points themselves as `.npy` (B, 2).

    A sample does not depend on the others, but for rounding; with dopri5, whose steps suit a whole chunk, but for its
    tolerances.

    Args:
        net: trained.
        path: that it was trained along.
        solver: how to integrate; ten midpoint steps by default.
        guidance: null for the conditional field.
        prediction: what it predicts: "velocity", "x1" or "noise".
        chunk: samples integrated together; more need more memory.
        classes: names of the classes 1 to K; null where they have none. They may be given instead of numbers, and
            appear in results.
        latents: the autoencoder that makes samples of what the net generates; null where these are samples.
        text: the encoder of prompts; null where the net takes none.
        image_condition: makes the image condition; null where the net takes none.
        resize: of `zoo.flow.ImageData`, for images that are given; null for its default.
        background: likewise.
    """

    input_suffixes = (".jsonl",)
    output_suffix = ".png"
    usual_solver: ClassVar[tuple[Method, int]] = ("midpoint", 10)
    methods: ClassVar[tuple[Method, ...]] = METHODS

    def __init__(
        self,
        net: VelocityNet,
        path: AffinePath,
        solver: Solver | None = None,
        guidance: Guidance | None = None,
        prediction: Prediction = "velocity",
        chunk: int = 64,
        classes: Sequence[str] | None = None,
        latents: LatentSpace | None = None,
        text: TextEncoder | None = None,
        image_condition: ImageCondition | None = None,
        resize: Resize | None = None,
        background: tuple[int, int, int] | None = None,
    ) -> None:
        check_at_least(1, chunk=chunk)
        check_one_of(PREDICTIONS, prediction=prediction)
        for name, value, kind in (("solver", solver, Solver), ("guidance", guidance, Guidance)):
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name} is null or {{class_path: ..., init_args: {{...}}}}, found {value!r}")
        if classes is not None and len(classes) != net.num_classes:
            raise ValueError(f"classes are {len(classes)} names, the net has {net.num_classes} classes")
        check_guidance(guidance, net)
        self.net = net
        self.path = path
        self.solver = solver or Solver(*self.usual_solver)
        check_one_of(self.methods, **{"solver.method": self.solver.method})
        self.guidance = guidance
        self.prediction: Prediction = prediction
        self.chunk = chunk
        self.classes = None if classes is None else list(classes)
        self.latents = latents
        self.text = text
        self.image_condition = image_condition
        self.resize = resize
        self.background = background
        self._check_parts()

    def _check_parts(self) -> None:
        """Refuse parts that do not go together."""

    def framing(self, resolution: int) -> Framing:
        """How the training read its images, at a height and width in pixels."""
        return Framing(resolution, self.sample_shape[0], self.resize or "squash", self.background or WHITE)

    @property
    def request_keys(self) -> tuple[str, ...]:
        """What a request may hold besides label, seed and count."""
        image = self.image_condition
        flags = (self.text is not None, image is not None, image is not None and image.masked)
        return tuple(key for key, needed in zip(CONDITION_KEYS, flags, strict=True) if needed)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample: of the decoded image where the net generates latents."""
        if self.latents is None:
            return tuple(self.net.sample_shape)
        _, height, width = self.net.sample_shape
        autoencoder = self.latents.autoencoder
        return (autoencoder.image_channels, height * autoencoder.factor, width * autoencoder.factor)

    def using(self, solver: Solver, guidance: Guidance | None) -> Self:
        """The same parts with another solver and guidance."""
        check_one_of(self.methods, **{"solver.method": solver.method})
        other = copy.copy(self)
        other.solver, other.guidance = solver, guidance
        return other

    def label_numbers(self, labels: Sequence[int | str] | None) -> list[int] | None:
        """Labels as numbers: numbers as they are, classes by their names."""
        if labels is None:
            return None
        for label in labels:
            if isinstance(label, str) and label not in (self.classes or ()):
                classes = (
                    f"one of the classes {', '.join(self.classes)}" if self.classes else "a number: no class has a name"
                )
                raise ValueError(f"label {label!r}: expected {classes}")
        return [1 + (self.classes or []).index(label) if isinstance(label, str) else label for label in labels]

    def class_names(self, labels: Sequence[int] | None) -> list[str] | None:
        """Names of labels, 0 being `none`; None where the classes have no names."""
        if labels is None or self.classes is None:
            return None
        return [["none", *self.classes][label] for label in labels]

    def noise(self, seeds: Sequence[int]) -> Tensor:
        """The noise x_0 (B, *sample_shape) that `sample` starts from, on the net's device."""
        return noise(seeds, self.net.sample_shape, self.device)

    def encode_conditions(self, conditions: GenerationConditions | None) -> ConditionBatch | None:
        """Encode conditions for the net; None where it takes none besides a class.

        Raises:
            ValueError: a condition that the net needs is missing, or there is one that it does not take.
        """
        conditions = conditions or GenerationConditions()
        self._check_conditions(conditions.prompts, conditions.images)
        values: dict[str, Tensor] = {}
        if self.text is not None and conditions.prompts is not None:
            numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(conditions.prompts))}
            states = self.text.encode(list(numbers))
            rows = [numbers[prompt] for prompt in conditions.prompts]
            values = {name: value[rows] for name, value in states.items() if name in self.net.condition_shapes}
        if conditions.images is not None:
            values["image"] = conditions.images.to(self.device)
        return add_nulls(values, self.text, self.latents, self.image_condition) if values else None

    def _check_conditions(self, prompts: Sequence[str] | None, images: Any) -> None:
        for name, value, part in (("prompts", prompts, self.text), ("images", images, self.image_condition)):
            if value is None and part is not None:
                raise ValueError(f"{name} are needed: the net takes them")
            if value is not None and part is None:
                raise ValueError(f"the net takes no {name}")

    def field(self, labels: Sequence[int] | None = None, conditions: GenerationConditions | None = None) -> VectorField:
        """The field, guided as set, for `invert`, `interpolate`, `inpaint`, `straightness` and the likelihood.

        Labels are one per row of the points that it will be asked for, or a single one for all; None for a net without
        classes, or to give no class vector. What is given besides is one per row.
        """
        label = self._label_tensor(labels)
        encoded = self.encode_conditions(conditions)
        return velocity_field(self.net, self.path, label, self.guidance, self.prediction, encoded)

    def _label_tensor(self, labels: Sequence[int] | None) -> Tensor | None:
        if labels is None or not self.net.num_classes:
            return None
        check_labels(labels, self.net.num_classes)
        return torch.tensor(list(labels), dtype=torch.int64, device=self.device)

    def solutions(
        self,
        labels: Sequence[int] | None,
        seeds: Sequence[int],
        record: int = 0,
        progress: Callable[[float], object] | None = None,
        conditions: GenerationConditions | None = None,
        decode: bool = True,
    ) -> Iterator[Solution]:
        """Draw samples as `sample` does: solutions of at most `chunk` of them, on the CPU, float32.

        The chunks of the first `record` samples keep their trajectories; dopri5 then stops at the times of its grid.
        `progress` is called with the finished share, 0 to 1. Without `decode` the samples are what the net generates,
        latents where the flow runs there.
        """
        self.check_request(labels, seeds, conditions)
        for start in range(0, len(seeds), self.chunk):
            part = slice(start, start + self.chunk)
            chosen = None if labels is None else labels[part]
            rows = None if conditions is None else conditions.rows(part)
            field = self.field(chosen) if rows is None else self.field(chosen, rows)
            if progress is not None:
                field = _report_progress(field, progress, start / len(seeds), len(seeds[part]) / len(seeds))
            x0 = self.noise(seeds[part])
            solution = self.solver.solve(field, x0, keep_trajectory=start < record)
            decoder = self.latents.decode if decode and self.latents is not None else torch.nn.Identity()
            x = decoder(solution.x).float().cpu()
            finite = x.flatten(1).isfinite().all(dim=1)
            if not finite.all():
                seed = seeds[start + int(finite.logical_not().nonzero()[0])]
                raise ValueError(f"the sample of seed {seed} is not finite: the training diverged, or the solver did")
            states = [decoder(state).float().cpu() for state in solution.trajectory]
            yield Solution(x, solution.nfe, solution.times, states)

    def sample(
        self, labels: Sequence[int] | None, seeds: Sequence[int], conditions: GenerationConditions | None = None
    ) -> Tensor:
        """Draw samples.

        Args:
            labels: one class per sample, 1 to K (0 is the null class); None for a net without classes.
            seeds: one per sample.
            conditions: prompts and images, where the net takes any.

        Returns:
            Samples (B, *sample_shape), float32 on the CPU, images about in [-1, 1].

        Raises:
            ValueError: when there are no seeds, not as many labels, labels of no class, or none where the net has
                classes; when a sample is not finite.
        """
        return torch.cat([solution.x for solution in self.solutions(labels, seeds, conditions=conditions)])

    def trajectory(
        self, labels: Sequence[int] | None, seeds: Sequence[int], conditions: GenerationConditions | None = None
    ) -> Tensor:
        """Draw samples and keep the states (N + 1, B, *sample_shape) at all times of the solver's grid, noise first."""
        solutions = self.solutions(labels, seeds, record=len(seeds), conditions=conditions)
        return torch.cat([torch.stack(solution.trajectory) for solution in solutions], dim=1)

    def __call__(
        self,
        labels: Sequence[int | str] | None = None,
        seeds: Sequence[int] | None = None,
        prompts: Sequence[str] | None = None,
        images: np.ndarray | Tensor | None = None,
        masks: np.ndarray | Tensor | None = None,
    ) -> np.ndarray:
        """Draw samples as arrays: images (B, H, W, C), uint8; others as they are, (B, *sample_shape), float32.

        Labels (numbers or names; None for a net without classes), seeds (0, 1, ... by default) and prompts are one per
        sample, as are images (B, H, W, C), uint8, of the size of `ImageCondition.side`, and masks (B, H, W), bool,
        true where an image is missing.
        """
        if seeds is None:
            seeds = range(max(len(each) for each in (labels, prompts, images, [0]) if each is not None))
        conditions = self.make_conditions(seeds, prompts, images, masks)
        samples = self.sample(self.label_numbers(labels), seeds, conditions)
        return rendering.to_pixels(samples) if rendering.is_image(self.sample_shape) else samples.numpy()

    def make_conditions(
        self, seeds: Sequence[int], prompts: Sequence[str] | None, images: Any = None, masks: Any = None
    ) -> GenerationConditions | None:
        """Conditions of samples, as `__call__` takes them; None where the net takes none.

        Raises:
            ValueError: something is missing, not taken, or of another shape.
        """
        self._check_conditions(prompts, images)
        if masks is not None and self.image_condition is None:
            raise ValueError("the net takes no masks")
        encoded = None
        if self.image_condition is not None:
            side, pixels = self.image_condition.side(self.sample_shape[-1]), np.array(images)
            if pixels.shape[1:] != (side, side, self.sample_shape[0]) or pixels.dtype != np.uint8:
                expected = f"(B, {side}, {side}, {self.sample_shape[0]})"
                raise ValueError(f"expected images {expected} uint8, found {pixels.shape} {pixels.dtype}")
            if masks is not None and np.shape(masks) != pixels.shape[:3]:
                raise ValueError(f"expected masks {pixels.shape[:3]}, found {np.shape(masks)}")
            if masks is not None and not self.image_condition.masked:
                raise ValueError(f"{type(self.image_condition).__name__} takes no masks")
            holes = None if masks is None else torch.as_tensor(np.asarray(masks))[:, None].float()
            encoded = self.image_condition.from_user(to_values(pixels), holes, seeds)
        return None if prompts is None and encoded is None else GenerationConditions(prompts, encoded)

    def more_files(self, source: Path) -> list[Path]:
        """The images and masks that a request file names."""
        return named_files(source)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Draw what a request file asks for; return the numbers of `images` or `points`, of `classes`, and `nfe`."""
        image = rendering.check_drawable(self.sample_shape)
        labels, seeds, conditions = read_request_file(source, self)
        solutions = list(self.solutions(labels, seeds, conditions=conditions))
        names = self.class_names(labels)
        samples = torch.cat([solution.x for solution in solutions])
        if not image:
            write_atomic(target.with_suffix(".npy"), lambda file: np.save(file, samples.numpy()))
        rendering.write_png(target, rendering.frames(samples[None], labels, names)[0])
        counted = {} if names is None else {"classes": dict(Counter(names))}
        nfe = max(solution.nfe for solution in solutions)
        return {"images" if image else "points": len(seeds), **counted, "nfe": nfe}

    def fields(self) -> tuple[InputField, ...]:
        """Classes by name, how many, how to integrate."""
        return forms.sampler_fields(self)

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Draw samples, and their way from the noise."""
        return forms.draw_samples(self, values, folder, progress)

    def answer_batch(
        self, requests: Sequence[tuple[Mapping[str, Any], Path]], progress: Progress
    ) -> list[list[Output] | Exception]:
        """Draw for several forms, those with one solver and guidance together."""
        return forms.draw_batch(self, requests, progress)

    def log_validation(self, task: FlowTask, last: bool) -> None:
        """Log samples of a task's validation; see `log_validation_samples`."""
        log_validation_samples(self, task, last)

    @property
    def usage(self) -> str:
        """Python lines that draw two samples."""
        labels = "[1, 1]" if self.net.num_classes else "None"
        texts = ', prompts=["", ""]' if self.text is not None else ""
        return CALL_USAGE.format(
            f"{labels}, seeds=[0, 1]{texts}{', images=images' if 'image' in self.request_keys else ''}"
        )

    def dry_run(self) -> str:
        """Draw one sample."""
        prompts = None if self.text is None else [""]
        conditions = self.make_conditions([0], prompts, None if self.image_condition is None else self.blank_image())
        result = self.sample([1] if self.net.num_classes else None, [0], conditions)
        return f"1 sample of shape {tuple(result.shape[1:])}"

    def write_example(self, stem: Path) -> Path:
        """Write a request for one sample of each class, four at most; for four samples of a net without classes."""
        return write_request_file(stem, self)

    def blank_image(self) -> np.ndarray:
        """A grey image (1, H, W, C) as one that is given."""
        assert self.image_condition is not None
        side = self.image_condition.side(self.sample_shape[-1])
        return np.full((1, side, side, self.sample_shape[0]), 127, np.uint8)

    def check_request(
        self, labels: Sequence[int] | None, seeds: Sequence[int], conditions: GenerationConditions | None = None
    ) -> None:
        """Refuse labels of no class, and anything that is not one per sample."""
        classes = self.net.num_classes
        if not len(seeds):
            raise ValueError("one seed per sample is needed, found none")
        if classes and labels is None:
            raise ValueError(f"labels are needed, 1 to {classes} (0 is the null class)")
        conditions = conditions or GenerationConditions()
        for name, value in (("labels", labels), ("prompts", conditions.prompts), ("images", conditions.images)):
            if value is not None and len(value) != len(seeds):
                raise ValueError(f"{len(value)} {name} and {len(seeds)} seeds: one of each per sample is needed")
        if wrong := [label for label in labels or () if classes and not 0 <= label <= classes]:
            raise ValueError(f"labels lie between 0 and {classes}, found {wrong[0]}")


class MeanFlowSampler(Sampler):
    """Draws samples by average velocities: Euler steps, one as a rule, each over a whole interval of the grid.

    The arguments are those of `Sampler`; the solver, one step by default, is "euler", and no texts or images are taken.
    """

    usual_solver = ("euler", 1)
    methods = ("euler",)

    def _check_parts(self) -> None:
        if self.text is not None or self.image_condition is not None:
            raise ValueError("a net of average velocities takes neither texts nor images")

    def field(self, labels: Sequence[int] | None = None, conditions: GenerationConditions | None = None) -> VectorField:
        """The average velocity from a time of the solver's grid to the next, for its steps; see `Sampler.field`."""
        self.encode_conditions(conditions)
        label, grid = self._label_tensor(labels), self.solver.times()

        def field(t: float, x: Tensor) -> Tensor:
            if not any(time > t for time in grid):
                raise ValueError("average velocities lead from noise to data: there is no way back, and no velocity")
            span = min(time for time in grid if time > t) - t
            rows = None if label is None else label.expand(len(x))
            spans = ConditionBatch({"span": x.new_full((len(x),), span)}, {})
            if self.guidance is None:
                return self.net(x, t, rows, spans.values)
            return self.guidance.predict(self.net, t, x, rows, spans)

        return field


def _report_progress(field: VectorField, progress: Callable[[float], object], done: float, share: float) -> VectorField:
    def reporting(t: Any, x: Tensor) -> Tensor:
        progress(done + share * float(t))
        return field(t, x)

    return reporting
