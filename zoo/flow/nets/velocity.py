"""What every net of flow matching is and shares: the base class and the embedding of the flow time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

NULL_LABEL = 0
"""The label of "no class", trained by label drop; real classes count from 1."""
NO_LABEL = -1
"""Mark of a batch row that gets no class vector at all, as if the net were called without labels."""

VectorField = Callable[[float, Tensor], Tensor]
"""A velocity (B, ...) from a time and points (B, ...): what the solvers integrate."""

FREQUENCIES = 128
MAX_PERIOD = 10000.0


class VelocityNet(nn.Module, ABC):
    """Base of the nets that predict a velocity (or data, or noise) from a point on the path and its time.

    Attributes:
        sample_shape: shape of one sample, without the batch.
        num_classes: classes it is conditioned on; 0 for none.
        condition_shapes: what it is conditioned on besides, by name: the width of a token or vector, or the channels.
            "tokens" (B, L, width) with "mask" (B, L), "pooled" (B, width), "image" (B, channels, H, W), "span" (B,).
            A net that has any is called with a mapping of all of them as a fourth argument, others with three.
    """

    sample_shape: tuple[int, ...]
    num_classes: int
    condition_shapes: Mapping[str, tuple[int, ...]] = {}

    @abstractmethod
    def forward(self, x: Tensor, t: Tensor | float, label: Tensor | None = None) -> Tensor:
        """Predict (B, *sample_shape).

        Args:
            x: points on the path (B, *sample_shape), float.
            t: flow time (B,), (1,) or a number, 0 (noise) to 1 (data).
            label: classes (B,) int64, 1 to num_classes; 0 is the null class, -1 a row without class vector. None means
                no class vector for any row. Ignored by nets without classes.
        """


class TimeEmbedding(nn.Module):
    """Sinusoids of the flow time, then two linear layers.

    Args:
        scale: factor on the time. 1 is the original's: over [0, 1] most of its sinusoids are then nearly constant; 1000
            uses their whole range.
    """

    def __init__(self, dim: int, scale: float = 1000.0) -> None:
        super().__init__()
        self.scale = scale
        self.mlp = nn.Sequential(nn.Linear(2 * FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        """Embed times (B,) as (B, dim)."""
        # float32 whatever the net computes in: bfloat16 times would collapse into 256 steps
        steps = torch.arange(FREQUENCIES, dtype=torch.float32, device=t.device)
        frequencies = torch.exp(-math.log(MAX_PERIOD) * steps / FREQUENCIES)
        angles = (self.scale * t.float())[:, None] * frequencies  # (B, FREQUENCIES)
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        return self.mlp(waves.to(next(self.mlp.parameters()).dtype))


def expand_time(t: Tensor | float, x: Tensor) -> Tensor:
    """One time per row of x, as float32 (B,), from one time or B of them."""
    times = torch.as_tensor(t, dtype=torch.float32, device=x.device).flatten()
    if len(times) not in (1, len(x)):
        raise ValueError(f"expected 1 or {len(x)} times for a batch of {len(x)}, found {len(times)}")
    return times.expand(len(x))


def check_conditions(
    shapes: Mapping[str, tuple[int, ...]], conditions: Mapping[str, Tensor] | None
) -> Mapping[str, Tensor]:
    """The conditions, refused unless they are those of the shapes; see `VelocityNet.condition_shapes`."""
    values = conditions or {}
    if values.keys() != shapes.keys():
        raise ValueError(f"the net takes the conditions {sorted(shapes)}, found {sorted(values)}")
    for name, shape in shapes.items():
        axis = 1 if name == "image" else -1
        if shape and values[name].shape[axis] != shape[0]:
            raise ValueError(
                f"the condition {name} has {shape[0]} values in axis {axis}, not {values[name].shape[axis]}"
            )
    return values
