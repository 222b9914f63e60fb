"""Classifier-free guidance in sampling: a mix of predictions with and without conditions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor

from zoo.blocks.image import classifier_free_guidance
from zoo.common.checks import check_one_of, check_within
from zoo.flow.nets.velocity import NO_LABEL, NULL_LABEL, VectorField, VelocityNet
from zoo.flow.process.conditions import KIND_NAMES, KINDS, LABEL, ConditionBatch, predict_branches
from zoo.flow.process.paths import AffinePath, Prediction

NULL_LABELS = {"label0": NULL_LABEL, "none": NO_LABEL}


class Guidance:
    """Mixes a conditional and an unconditional prediction: v_u + s (v_c - v_u).

    Args:
        scale: s. 1 is conditional, 0 unconditional, above 1 exaggerates the class. Others write (1 + w) v_c - w v_u
            with w = s - 1.
        null_mode: the unconditional branch. "label0" is the null class, which label drop trains; "none" gives no class
            vector, which is what the assignment's sampler does and what was never trained.
        interval: times between which to guide; outside, the prediction is conditional.
        rescale: share, 0 to 1, of the guided prediction that is brought back to the conditional one's deviation.

    Source: Ho and Salimans (2022), equation 6; interval: Kynkäänniemi et al. (2024); rescale: Lin et al., "Common
    Diffusion Noise Schedules and Sample Steps are Flawed" (2024), section 3.4.
    """

    def __init__(
        self,
        scale: float = 7.5,
        null_mode: Literal["label0", "none"] = "label0",
        interval: Sequence[float] = (0.0, 1.0),
        rescale: float = 0.0,
    ) -> None:
        check_one_of(NULL_LABELS, null_mode=null_mode)
        if len(interval) != 2 or not 0 <= interval[0] < interval[1] <= 1:
            raise ValueError(f"interval is two times with 0 <= first < last <= 1, not {list(interval)}")
        check_within(0, 1, rescale=rescale)
        self.scale = scale
        self.null_mode = null_mode
        self.interval = (float(interval[0]), float(interval[1]))
        self.rescale = rescale

    def scale_at(self, t: float) -> float:
        """The scale at a time; 1 outside the interval."""
        first, last = self.interval
        return self.scale if first <= t <= last else 1.0

    def predict(
        self,
        net: VelocityNet,
        t: float,
        x: Tensor,
        label: Tensor | None,
        conditions: ConditionBatch | None = None,
    ) -> Tensor:
        """Predict at points (B, ...) of classes (B,), int64; the net runs once for both branches.

        The mix is linear, so it may be taken of velocities, data or noise alike.

        Args:
            conditions: besides the class; where there are any, the unconditional branch has none of them either.
        """
        scale = self.scale_at(t)
        branches = [KINDS] if scale == 1 else [()] if scale == 0 else [(), KINDS]
        outputs = predict_branches(net, t, x, label, conditions, branches, NULL_LABELS[self.null_mode])
        if len(outputs) == 1:
            return outputs[0]
        return classifier_free_guidance(outputs[1], outputs[0], scale, self.rescale)


class NestedGuidance(Guidance):
    """A scale for each kind of condition: v(none) + s_1 (v(c_1) - v(none)) + s_2 (v(c_1, c_2) - v(c_1)) + ...

    The net runs once, on a batch of all branches. All scales 1 are the conditional prediction.

    Args:
        scales: by "image", "text" or "label", in the order of nesting; conditions that are not named are always given.
        interval: times between which to guide; outside, the prediction is conditional.
        rescale: share, 0 to 1, of the guided prediction that is brought back to the conditional one's deviation.

    Source: Brooks et al., "InstructPix2Pix" (2023), equation 3, for any number of conditions.
    """

    def __init__(self, scales: dict[str, float], interval: Sequence[float] = (0.0, 1.0), rescale: float = 0.0) -> None:
        super().__init__(1.0, "label0", interval, rescale)
        if not scales or not set(scales) <= set(KINDS):
            raise ValueError(f"scales are by {', '.join(KINDS)}, found {list(scales)}")
        self.scales = dict(scales)

    def predict(
        self,
        net: VelocityNet,
        t: float,
        x: Tensor,
        label: Tensor | None,
        conditions: ConditionBatch | None = None,
    ) -> Tensor:
        """Predict at points (B, ...); see `Guidance.predict`."""
        if not self.interval[0] <= t <= self.interval[1]:
            return predict_branches(net, t, x, label, conditions, [KINDS])[0]
        rest = [kind for kind in KINDS if kind not in self.scales]
        order = list(self.scales)
        branches = [[*rest, *order[:count]] for count in range(len(order) + 1)]
        outputs = predict_branches(net, t, x, label, conditions, branches)
        result = outputs[0]
        for scale, (before, after) in zip(self.scales.values(), pairwise(outputs), strict=True):
            result = result + scale * (after - before)
        return classifier_free_guidance(outputs[-1], result, 0.0, self.rescale)


def velocity_field(
    net: VelocityNet,
    path: AffinePath,
    label: Tensor | None = None,
    guidance: Guidance | None = None,
    prediction: Prediction = "velocity",
    conditions: ConditionBatch | None = None,
) -> VectorField:
    """The field of a time and points (B, ...) whose integral turns noise into samples.

    Args:
        label: classes (B,) or (1,), int64; None runs the net without labels.
        guidance: None gives the conditional field where there are labels, which it needs.
        conditions: of B rows; None for a net that has no others than classes.
    """
    labelled = label is not None and bool(net.num_classes)
    if guidance is not None and conditions is None and not labelled:
        raise ValueError(f"guidance needs labels and a net with classes; found {label} and {net.num_classes} classes")

    def field(t: float, x: Tensor) -> Tensor:
        rows = None if label is None else label.expand(len(x))
        t = path.informative_time(t, prediction)
        if guidance is not None:
            output = guidance.predict(net, t, x, rows, conditions)
        elif conditions is not None:
            output = net(x, t, rows, conditions.values)
        else:
            output = net(x, t, rows)
        return path.to_velocity(output, x, x.new_full((len(x),), t), prediction)

    return field


def check_labels(labels: Sequence[int], num_classes: int) -> None:
    """Refuse labels that are no class of a net; one without classes takes all."""
    if num_classes and not all(NO_LABEL <= label <= num_classes for label in labels):
        raise ValueError(f"labels lie between 1 and {num_classes} (0 is the null class), found {list(labels)}")


def check_guidance(guidance: Guidance | None, net: VelocityNet) -> None:
    """Refuse guidance by what a net does not take."""
    kinds = [kind for kind, names in KIND_NAMES.items() if net.condition_shapes.keys() & set(names)]
    kinds += [LABEL] if net.num_classes else []
    scales = list(guidance.scales) if isinstance(guidance, NestedGuidance) else kinds or ["conditions"]
    if guidance is not None and not set(scales) <= set(kinds):
        raise ValueError(f"guidance by {', '.join(scales)} for a net that takes {', '.join(kinds) or 'none'}")
