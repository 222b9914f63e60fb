"""Training of flow matching: regression of what the net predicts on the path between noise and data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from zoo.common.ranges import one_of, within
from zoo.flow.nets.velocity import VelocityNet
from zoo.flow.process.coupling import Coupling
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.paths import PREDICTIONS, AffinePath, Prediction
from zoo.flow.process.solvers import Solver
from zoo.flow.process.time_samplers import TimeSampler, at_evaluation_times, seeded_draws
from zoo.flow.rendering import Animation
from zoo.training.task import OptimizerCallable, SingleOptimizerTask


class FlowTask(SingleOptimizerTask):
    """Conditional flow matching.

    Time and label drop of an item come from the item's seed, its noise comes with the data: none of them depends on
    the batch size, the number of processes or a resume.

    Args:
        net: predicts from a point, its time and its class.
        times: how the times of training are drawn.
        label_drop: probability that an item is trained with the null class, for guidance.
        solver: how the trained net is integrated; an option of inference.
        guidance: of sampling, an option of inference too; null for the conditional field.
        prediction: what the net predicts: "velocity", "x1" or "noise".
        coupling: which noise of a batch goes with which data; null as drawn.
        chunk: samples that inference integrates at once; an option of inference, like the following.
        images: `zoo predict` writes each image as a file, too.
        trajectory: animation of the way from noise to data that `zoo predict` writes.
        classes: their names; those of the data when null.
        kwargs: of SingleOptimizerTask.

    Source: Lipman et al., "Flow Matching for Generative Modeling" (2023), equation 9.
    """

    inference_class = "zoo.flow.Sampler"
    inference_parts = ("net", "path", "prediction")
    classes: list[str] | None

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
        images: bool = False,
        trajectory: Animation = "none",
        classes: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        within(0, 1, label_drop=label_drop)
        one_of(PREDICTIONS, prediction=prediction)
        if not net.num_classes and (label_drop or guidance is not None):
            raise ValueError(
                "model.net.num_classes is 0: such a net takes no label_drop "
                f"({label_drop}) and no guidance ({'null' if guidance is None else 'set'})"
            )
        self.net = net
        self.path = path
        self.times = times
        self.label_drop = label_drop
        self.prediction: Prediction = prediction
        self.coupling = coupling
        self.keep_options(locals())

    def setup(self, stage: str) -> None:
        """Compare the data with the net and the coupling."""
        data = getattr(self.trainer, "datamodule", None)
        classes, shape = getattr(data, "classes", None), getattr(data, "sample_shape", None)
        if classes and self.net.num_classes and len(classes) != self.net.num_classes:
            raise ValueError(
                f"model.net.num_classes is {self.net.num_classes}, the data has {len(classes)} classes: "
                f"{', '.join(classes[:12])}"
            )
        if shape and tuple(shape) != tuple(self.net.sample_shape):
            raise ValueError(f"model.net makes samples of shape {tuple(self.net.sample_shape)}, the data has {shape}")
        if self.coupling is not None and getattr(data, "pooled", None) is not None:
            raise ValueError("model.coupling and data.pooled would pair twice: set one of them to null")
        self._name_classes(classes)
        super().setup(stage)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the names of the classes, too, where no data tell them."""
        super().on_load_checkpoint(checkpoint)
        self._name_classes(((checkpoint.get("zoo") or {}).get("options") or {}).get("classes"))

    def _name_classes(self, names: list[str] | None) -> None:
        """Let inference and checkpoints know the classes by name, unless they do."""
        if self.classes is None and names and self.net.num_classes:
            self.classes = list(names)
            self._inference = None  # built without them
            if self.specs is not None:
                self.specs["options"]["classes"] = self.classes

    def loss(self, x1: Tensor, x0: Tensor, t: Tensor, label: Tensor | None) -> Tensor:
        """Mean squared error over all elements, for data and noise (B, ...), times (B,) and classes (B,)."""
        x = self.path.sample(x0, x1, t)
        output = self.net(x, t, label)
        return (output - self.path.target(x0, x1, t, self.prediction)).float().square().mean()

    def drawn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Pair noise and data; add times `t` (B,) and `kept` (B,), 0 where the label is dropped."""
        if "t" in batch:
            return batch
        x1, x0, label = batch["x1"], batch["x0"], batch["label"]
        if self.coupling is not None:
            x0 = self.coupling(x0, x1, label if self.net.num_classes else None)
        t, kept = seeded_draws(self.times, self.label_drop, batch["seeds"])
        return {**batch, "x0": x0, "t": t, "kept": kept}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss at one time per item, some labels dropped."""
        batch = self.drawn(batch)
        x1 = batch["x1"]
        loss = self.loss(x1, batch["x0"], batch["t"].to(x1), batch["label"] * batch["kept"])
        self.log_terms("train", {"loss": loss}, batch_size=len(x1))
        return loss

    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """The loss at ten times from 0.05 to 0.95, of each item's own noise; nothing is random."""
        x1, x0, label, t = at_evaluation_times(batch["x1"], batch["x0"], batch["label"])
        return {"loss": self.loss(x1, x0, t, label)}, len(batch["x1"])
