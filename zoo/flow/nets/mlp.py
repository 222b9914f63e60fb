"""Toy net for points of the plane: linear layers whose outputs are multiplied by a vector of the time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from zoo.flow.nets.velocity import TimeEmbedding, VelocityNet, expand_time


class TimeLinear(nn.Module):
    """A linear layer, element-wise times an embedding of the time."""

    def __init__(self, in_features: int, out_features: int, time_scale: float = 1000.0) -> None:
        super().__init__()
        self.time_embedding = TimeEmbedding(out_features, time_scale)
        self.fc = nn.Linear(in_features, out_features)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Turn (B, in_features) at times (B,) into (B, out_features)."""
        return self.time_embedding(t) * self.fc(x)


class ToyNet(VelocityNet):
    """Velocity of points, without classes.

    Args:
        dim: coordinates of a point.
        widths: of the hidden layers.
        time_scale: factor on the time before its sinusoids; 1 in the original.

    Source: KAIST CS492(D) 2024, assignment 7, task 1 (its SimpleNet; names of the weights are the same).
    """

    def __init__(self, dim: int = 2, widths: Sequence[int] = (128, 128, 128), time_scale: float = 1000.0) -> None:
        super().__init__()
        if not widths:
            raise ValueError("widths names at least one hidden layer")
        self.sample_shape = (dim,)
        self.num_classes = 0
        self.widths = tuple(widths)
        self.time_scale = time_scale
        sizes = [dim, *widths, dim]
        self.net = nn.ModuleList()
        for before, after in pairwise(sizes):
            self.net += [TimeLinear(before, after, time_scale), nn.SiLU()]
        del self.net[-1]

    def forward(self, x: Tensor, t: Tensor | float, label: Tensor | None = None) -> Tensor:
        """Predict; see `VelocityNet.forward`. Labels are ignored."""
        times = expand_time(t, x)
        for layer in self.net:
            x = layer(x, times) if isinstance(layer, TimeLinear) else layer(x)
        return x
