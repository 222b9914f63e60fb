"""Losses of flow matching, and the targets of average velocities (MeanFlow)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zoo.common.checks import check_positive
from zoo.common.tensors import sample_uniforms
from zoo.flow.nets.velocity import VectorField, VelocityNet
from zoo.flow.process.conditions import ConditionBatch
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.paths import TIME_MARGIN, AffinePath, Prediction
from zoo.flow.process.time_samplers import TimeSampler

AverageVelocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Average velocities (B, ...) over [t, t + span] of points (B, ...), times (B,) and spans (B,)."""


def flow_matching_loss(output: Tensor, target: Tensor, huber: float = 0.0, weight: Tensor | None = None) -> Tensor:
    """Mean squared error of outputs (B, ...), float32.

    Args:
        huber: h of sqrt(e + h^2) - h in place of an item's mean squared error e; 0 for e.
        weight: of each item (B,).
    """
    squares = (output - target).float().square()
    if not huber and weight is None:
        return squares.mean()
    error = squares.flatten(1).mean(dim=1)
    if huber:
        error = (error + huber**2).sqrt() - huber
    return (error if weight is None else error * weight).mean()


class MinSnr:
    """Weights of the squared error: of the data the signal-to-noise ratio, at most gamma.

    On straight paths min(t^2, gamma (1 - t)^2) of a velocity's error; for other predictions it is converted, as their
    errors are multiples of one another at a time.

    Args:
        gamma: where the weight stops growing.

    Source: Hang et al., "Efficient Diffusion Training via Min-SNR Weighting Strategy" (2023), section 3.4.
    """

    def __init__(self, gamma: float = 5.0) -> None:
        check_positive(gamma=gamma)
        self.gamma = gamma

    def __call__(self, t: Tensor, path: AffinePath, prediction: Prediction) -> Tensor:
        """Weights (B,) at times (B,), which are kept 1e-4 away from both ends."""
        alpha, sigma, d_alpha, d_sigma = path.coefficients(t.clamp(TIME_MARGIN, 1 - TIME_MARGIN))
        determinant = d_alpha * sigma - alpha * d_sigma
        weight = (alpha**2).minimum(self.gamma * sigma**2) / determinant**2
        if prediction == "velocity":
            return weight
        return weight * (determinant / (sigma if prediction == "x1" else alpha)) ** 2


def mean_flow_target(
    average: AverageVelocity, x: Tensor, t: Tensor, span: Tensor, velocity: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the target of an average velocity, from its derivative along the path, and its value; without gradients.

    u(x, t, r) = v + (r - t) du/dt, where du/dt keeps r: the directional derivative along (v, 1, 0).
    The fused kernels of attention have no forward derivative, so the plain one is used.

    Args:
        span: r - t (B,).
        velocity: v (B, ...): x_1 - x_0 of the pair in training, or the exact one.

    Source: Geng et al., "Mean Flows for One-step Generative Modeling" (2025), equation 6, in our direction of time.
    """
    tangents = (velocity, torch.ones_like(t), -torch.ones_like(span))
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False), sdpa_kernel(SDPBackend.MATH):
        value, derivative, *_ = torch.func.jvp(average, (x, t, span), tangents)
        return velocity + span.reshape(-1, *(1,) * (x.dim() - 1)) * derivative, value


def sample_intervals(times: TimeSampler, drop: float, share: float, seeds: Sequence[int]) -> tuple[Tensor, ...]:
    """Times (B,) and spans (B,), float32, and (B,) int64, 0 where the label is dropped, each item's from its seed.

    A share of the items has two times, in order; the others have a span of 0, which is plain flow matching.
    """
    u = sample_uniforms(seeds, 4)
    first, second = times(u[0]), times(u[2])
    apart = u[3] < share
    begin, end = torch.minimum(first, second), torch.maximum(first, second)
    return torch.where(apart, begin, first), torch.where(apart, end - begin, 0.0), (u[1] >= drop).long()


def average_field(
    net: VelocityNet, grid: Sequence[float], label: Tensor | None, guidance: Guidance | None
) -> VectorField:
    """The field whose Euler steps on a grid are those of the average velocity: each reaches to the grid's next time."""

    def field(t: float, x: Tensor) -> Tensor:
        span = min((time for time in grid if time > t), default=1.0) - t
        rows = None if label is None else label.expand(len(x))
        conditions = ConditionBatch({"span": x.new_full((len(x),), span)}, {})
        if guidance is None:
            return net(x, t, rows, conditions.values)
        return guidance.predict(net, t, x, rows, conditions)

    return field
