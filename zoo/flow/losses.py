"""Targets and intervals of average velocities (MeanFlow)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zoo.common.tensors import sample_uniforms
from zoo.flow.process.time_samplers import TimeSampler

AverageVelocity = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Average velocities (B, ...) over [t, t + span] of points (B, ...), times (B,) and spans (B,)."""


def mean_flow_target(
    average: AverageVelocity, x: Tensor, t: Tensor, span: Tensor, velocity: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the target of an average velocity, from its derivative along the path, and its value; without gradients.

    u(x, t, r) = v + (r - t) du/dt, where du/dt keeps r: the directional derivative along (v, 1, 0).
    The fused kernels of attention have no forward derivative, so the plain one is used; nor has compiled code.

    Args:
        span: r - t (B,).
        velocity: v (B, ...): x_1 - x_0 of the pair in training, or the exact one.

    Source: Geng et al., "Mean Flows for One-step Generative Modeling" (2025), equation 6, in our direction of time.
    """
    tangents = (velocity, torch.ones_like(t), -torch.ones_like(span))
    with (
        torch.no_grad(),
        torch.autocast(x.device.type, enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        torch.compiler.set_stance("force_eager"),
    ):
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
