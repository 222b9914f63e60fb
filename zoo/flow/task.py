"""Training of flow matching: regression of what the net predicts on the path between noise and data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_within
from zoo.flow.data.images import Resize
from zoo.flow.losses import mean_flow_target, sample_intervals
from zoo.flow.nets.latent_space import LatentSpace
from zoo.flow.nets.velocity import VelocityNet
from zoo.flow.process.conditions import ALL, LABEL, ConditionBatch, TextEncoder, add_nulls, sample_drops
from zoo.flow.process.coupling import Coupling
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.image_conditions import ImageCondition
from zoo.flow.process.paths import AffinePath, Prediction
from zoo.flow.process.solvers import Solver
from zoo.flow.process.time_samplers import TimeSampler, sample_times
from zoo.training.task import OptimizerCallable, SingleOptimizerTask

MIN_ERROR = 1e-3  # in the weight of MeanFlow's loss


class FlowTask(SingleOptimizerTask):
    """Conditional flow matching.

    Time and label drop of an item come from the item's seed, its noise comes with the data: none of them depends on
    the batch size, the number of processes or a resume.

    Args:
        net: predicts from a point, its time and its class.
        path: from noise to data, which fixes the target at each time.
        times: how the times of training are drawn.
        label_drop: probability that an item is trained with the null class, for guidance.
        solver: how the trained net is integrated; an option of inference.
        guidance: of sampling, an option of inference too; null for the conditional field.
        prediction: what the net predicts: "velocity", "x1" or "noise".
        coupling: which noise of a batch goes with which data; null as drawn.
        chunk: samples that inference integrates at once; an option of inference, like the following.
        classes: their names; those of the data when null.
        latents: the autoencoder in whose latents the flow runs, for `zoo.flow.LatentData`; null for the data itself.
        text: the encoder of captions, for a net that takes "tokens" or "pooled" states; null for none.
        image_condition: makes the condition of a net that takes an "image", e.g. `zoo.flow.Inpainting`.
        resize: of `zoo.flow.ImageData`, for images that inference is given; that of the data when null.
        background: likewise.
        condition_drop: probability by "text" and "image" that an item is trained without it, each for itself, and by
            "all" that it is trained without any, class included; the class alone has `label_drop`.
        kwargs: of SingleOptimizerTask.

    Source: Lipman et al., "Flow Matching for Generative Modeling" (2023), equation 9.
    """

    inference_class = "zoo.flow.Sampler"
    usage_command = "zoo sample {run} FOLDER"
    inference_modules: ClassVar[tuple[str, ...]] = ("net", "path", "prediction", "latents", "text")
    image_condition: ImageCondition | None = None
    classes: list[str] | None
    resize: Resize | None
    background: tuple[int, int, int] | None
    guidance: Guidance | None
    evaluation_times: Tensor

    def __init__(
        self,
        net: VelocityNet,
        path: AffinePath,
        times: TimeSampler,
        optimizer: OptimizerCallable,
        *,
        label_drop: float = 0.1,
        solver: Solver | None = None,
        guidance: Guidance | None = None,
        prediction: Prediction = "velocity",
        coupling: Coupling | None = None,
        chunk: int = 64,
        classes: list[str] | None = None,
        latents: LatentSpace | None = None,
        text: TextEncoder | None = None,
        image_condition: ImageCondition | None = None,
        resize: Resize | None = None,
        background: tuple[int, int, int] | None = None,
        condition_drop: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        check_within(0, 1, label_drop=label_drop, **(condition_drop or {}))
        if not net.num_classes and label_drop:
            raise ValueError(f"model.net.num_classes is 0: such a net takes no label_drop ({label_drop})")
        self.net = net
        self.path = path
        self.times = times
        self.register_buffer("evaluation_times", times.evaluation_times().float(), persistent=False)
        self.label_drop = label_drop
        self.prediction: Prediction = prediction
        self.coupling = coupling
        self.latents = latents
        self.text = text
        self.condition_drop = dict(condition_drop or {})
        self._check_conditions(image_condition)
        self.store_options(locals())
        self.inference()  # refuses a solver or guidance that does not suit the net

    def _check_conditions(self, image: ImageCondition | None) -> None:
        """Compare what the net takes with what makes it."""
        takes = self.net.condition_shapes
        width = None if self.text is None else self.text.width
        channels = None if image is None else image.channels(self.net.sample_shape[0])
        for name, argument, net_argument, size in (
            ("tokens", "text", "context_dim", width),
            ("pooled", "text", "pooled_dim", width),
            ("image", "image_condition", "condition_channels", channels),
        ):
            if name in takes and takes[name] != (size,):
                source = f"model.{argument} {'is null' if size is None else f'gives {size}'}"
                raise ValueError(f"model.net.{net_argument} is {takes[name][0]}, {source}")
        if self.text is not None and not {"tokens", "pooled"} & takes.keys():
            raise ValueError("model.text is set, and the net takes none: set model.net.context_dim or pooled_dim")
        if image is not None and "image" not in takes:
            raise ValueError(
                "model.image_condition is set, and the net takes none: set condition_channels of model.net"
            )
        parts = {"text": self.text, "image": image, ALL: self.text or image}
        if wrong := [kind for kind in self.condition_drop if parts.get(kind) is None]:
            raise ValueError(f"model.condition_drop names {wrong[0]!r}, which the net is not conditioned on")

    def setup(self, stage: str) -> None:
        """Compare the data with the net and the coupling, and refuse half precision of an autoencoder."""
        if self.latents is not None and self.trainer.precision in ("bf16-true", "16-true"):
            mixed = self.trainer.precision.replace("true", "mixed")
            raise ValueError(f"model.latents needs float32: set trainer.precision to {mixed}")
        data = getattr(self.trainer, "datamodule", None)
        classes, shape = getattr(data, "classes", None), getattr(data, "sample_shape", None)
        if classes is not None and self.net.num_classes and len(classes) != self.net.num_classes:
            names = f"{len(classes)} classes ({', '.join(classes[:12])})" if classes else "no classes"
            more = "" if classes else ", model.label_drop to 0 and model.guidance to null"
            raise ValueError(
                f"model.net.num_classes is {self.net.num_classes}, the data has {names}: "
                f"set model.net.num_classes to {len(classes)}{more}"
            )
        if shape and tuple(shape) != tuple(self.net.sample_shape):
            raise ValueError(f"model.net makes samples of shape {tuple(self.net.sample_shape)}, the data has {shape}")
        if self.coupling is not None and getattr(data, "pooled", None) is not None:
            raise ValueError("model.coupling and data.pooled would pair twice: set one of them to null")
        if self.coupling is not None or getattr(data, "pooled", None) is not None:
            if self.text is not None or self.image_condition is not None:
                raise ValueError(
                    "model.coupling and data.pooled would give each text or image noise of its kind, and sampling does "
                    "not: set both to null"
                )
        framing = getattr(data, "framing", None)
        self._complete_options(classes, getattr(framing, "resize", None), getattr(framing, "background", None))
        super().setup(stage)

    def on_fit_start(self) -> None:
        """Take the scale of the latents from the training set, unless autoencoder or checkpoint brought one."""
        super().on_fit_start()
        if self.latents is not None and not bool(self.latents.is_fitted):
            self.latents.fit(*self.trainer.datamodule.statistics())  # type: ignore[attr-defined]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the options that were completed from the data, too."""
        super().on_load_checkpoint(checkpoint)
        options = (checkpoint.get("zoo") or {}).get("options") or {}
        self._complete_options(*(options.get(name) for name in ("classes", "resize", "background")))

    def _complete_options(self, classes: list[str] | None, resize: Any = None, background: Any = None) -> None:
        """Let inference and checkpoints know names of classes, and how images are read, unless they do."""
        names = list(classes) if classes and self.net.num_classes else None
        for name, value in {"classes": names, "resize": resize, "background": background}.items():
            if getattr(self, name) is None and value is not None:
                setattr(self, name, value)
                self._inference = None  # built without it
                if self.specs is not None:
                    self.specs["options"][name] = value

    def loss(
        self,
        x1: Tensor,
        x0: Tensor,
        t: Tensor,
        label: Tensor | None,
        conditions: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Mean squared error for data and noise (B, ...), times (B,), classes (B,) and conditions (B, ...) by name."""
        output = self.predict(self.path.sample(x0, x1, t), t, label, conditions)
        target = self.path.target(x0, x1, t, self.prediction)
        return (output - target).float().square().mean()

    def predict(
        self, x: Tensor, t: Tensor, label: Tensor | None, conditions: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """What the net predicts at points (B, ...)."""
        return self.net(x, t, label) if conditions is None else self.net(x, t, label, conditions)

    def prepare_training_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Pair noise and data; add times `t` (B,) and `keep_label` (B,), 0 where the label is dropped.

        With further conditions, add `keep`: (B,) by kind, 0 where it is dropped.
        """
        if "t" in batch:
            return batch
        x0, label = batch["x0"], batch["label"]
        if self.coupling is not None:
            x0 = self.coupling(x0, self._data(batch), label if self.net.num_classes else None)
        t, keep_label = sample_times(self.times, self.label_drop, batch["seeds"])
        prepared = {**batch, "x0": x0, "t": t, "keep_label": keep_label}
        if "conditions" in batch:
            keep = sample_drops(self.condition_drop, batch["seeds"])
            prepared |= {"keep_label": keep_label * keep[LABEL], "keep": keep}
        return prepared

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss at one time per item, some labels and further conditions dropped."""
        batch = self.prepare_training_batch(batch)
        x1, conditions = self._data(batch), self._conditions(batch)
        remaining = None if conditions is None else conditions.drop(batch["keep"])
        label = batch["label"] * batch["keep_label"]
        loss = self.loss(x1, batch["x0"], _times(batch["t"], x1), label, remaining)
        self.log_terms("train", {"loss": loss}, batch_size=len(x1))
        return loss

    def _data(self, batch: dict[str, Any]) -> Tensor:
        """A batch's data as the net sees it."""
        return batch["x1"] if self.latents is None else self.latents.normalise(batch["x1"])

    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """The loss at the `evaluation_times`, of each item's own noise; nothing is random."""
        conditions, count, times = self._conditions(batch), len(batch["x1"]), self.evaluation_times
        x1, x0, label = (
            each.repeat_interleave(len(times), 0) for each in (self._data(batch), batch["x0"], batch["label"])
        )
        values = None
        if conditions is not None:
            values = {name: value.repeat_interleave(len(times), 0) for name, value in conditions.values.items()}
        return {"loss": self.loss(x1, x0, _times(times.repeat(count), x1), label, values)}, count

    def _conditions(self, batch: dict[str, Any]) -> ConditionBatch | None:
        """A batch's conditions besides the class, as the net takes them, and what stands for none."""
        if "conditions" not in batch:
            if self.text is not None or self.image_condition is not None:
                raise ValueError("the net is conditioned on texts or images, and the data gives none of them")
            return None
        return add_nulls(batch["conditions"], self.text, self.latents, self.image_condition)

    def log_samples(self, batches: list[Any], last: bool) -> None:
        """Show samples and, after the last validation, their way from the noise; see `Sampler.log_validation`."""
        with self.trainer.precision_plugin.val_step_context():
            self.inference().log_validation(self, last)


def _times(t: Tensor, x: Tensor) -> Tensor:
    """Times for data of any type, float32 at least: bfloat16 rounds them, some to 1."""
    return t.to(x.device, torch.promote_types(x.dtype, torch.float32))


class MeanFlowTask(FlowTask):
    """Flow matching whose net also learns average velocities, by which one Euler step, or a few, generate.

    The net takes the length of an interval besides the time (`zoo.flow.DiT` with `spans: true`). Validation has the
    loss of flow matching, at spans of 0. Guidance is that of sampling; the paper's, baked into training, is not here.

    Args:
        net: with `spans`.
        share: of the items, 0 to 1, whose interval has a length; both of its times are drawn from `times`.
        power: p of the weight 1 / (e + 0.001)^p of an item's squared error e, summed over its elements.
        kwargs: of FlowTask; `prediction` is "velocity", `solver` "euler".

    Source: Geng et al., "Mean Flows for One-step Generative Modeling" (2025); share and power: 0.25 and 1 on ImageNet,
    0.75 and 0.75 on CIFAR-10.
    """

    inference_class = "zoo.flow.MeanFlowSampler"
    inference_modules = ("net", "path", "prediction", "latents")

    def __init__(
        self,
        net: VelocityNet,
        path: AffinePath,
        times: TimeSampler,
        optimizer: OptimizerCallable,
        *,
        share: float = 0.25,
        power: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(net, path, times, optimizer, **kwargs)
        check_within(0, 1, share=share)
        check_at_least(0, power=power)
        if set(net.condition_shapes) != {"span"}:
            raise ValueError("MeanFlowTask needs a net that takes spans and nothing else: model.net.spans true")
        if self.prediction != "velocity":
            raise ValueError(f"MeanFlowTask: model.prediction is velocity, not {self.prediction}")
        self.share = share
        self.power = power

    def predict(
        self, x: Tensor, t: Tensor, label: Tensor | None, conditions: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """The velocity itself: over a span of 0."""
        return self.net(x, t, label, {"span": torch.zeros_like(t)})

    def prepare_training_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add times `t`, spans `span` and `keep_label`, (B,) each; see `FlowTask.prepare_training_batch`."""
        if "t" in batch:
            return batch
        t, span, keep_label = sample_intervals(self.times, self.label_drop, self.share, batch["seeds"])
        return {**super().prepare_training_batch(batch), "t": t, "span": span, "keep_label": keep_label}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The error of the average velocity over one interval per item, some labels dropped."""
        batch = self.prepare_training_batch(batch)
        x1, label = self._data(batch), batch["label"] * batch["keep_label"]
        t, span = _times(batch["t"], x1), _times(batch["span"], x1)
        x = self.path.sample(batch["x0"], x1, t)
        velocity = self.path.target(batch["x0"], x1, t)

        def average(x: Tensor, t: Tensor, span: Tensor) -> Tensor:
            return self.net(x, t, label, {"span": span})

        devices = [x.device] if x.is_cuda else []
        with torch.random.fork_rng(devices=devices):  # dropout then drops the same below
            target, _ = mean_flow_target(average, x, t, span, velocity)
        error = (average(x, t, span) - target).float().square().flatten(1).sum(dim=1)
        loss = (error / (error.detach() + MIN_ERROR) ** self.power).mean()
        self.log_terms("train", {"loss": loss, "error": error.mean() / x[0].numel()}, batch_size=len(x1))
        return loss
