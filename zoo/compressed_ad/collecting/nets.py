"""Actors and critics of many tasks at once, as batches of matrices.

Weights of all tasks are (N, P) float32, as `initial_weights` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from zoo.training.resume import item_seed

HIDDEN = 64
LAYERS = 3
OUTPUTS = 16
"""The last layers are a multiple of it wide; outputs beyond the first (five of the actor, one of the critic) are not
used. In a batch of matrices of odd widths, what a product is rounded to depends on its place in the batch."""
NORM_EPSILON = 1e-6
INITIAL = -1  # number of a task's draws of weights


def raw_nets(weights: Tensor, rows: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    """Outputs (N, R, outputs) of actors and values (N, R) of critics for observations (N, R, F), float32."""
    shapes = _shapes(rows.shape[2], outputs)
    parts = weights.split([math.prod(shape) for shape in shapes], dim=1)
    hidden = rows[:, None].expand(-1, 2, -1, -1).flatten(0, 1)
    for layer in range(LAYERS):
        matrix, bias = (parts[place].reshape(-1, *shapes[place][1:]) for place in (2 * layer, 2 * layer + 1))
        hidden = torch.baddbmm(bias, hidden.tanh() if layer else hidden, matrix)
    actors, critics = hidden.unflatten(0, (-1, 2)).unbind(dim=1)
    return actors[..., :outputs], critics[..., 0]


def initial_weights(seeds: Sequence[int], inputs: int, outputs: int) -> Tensor:
    """Random weights of both nets of each task: orthogonal, with small ones for the actor's last layer.

    Args:
        inputs: numbers of an observation, F.
        outputs: of the actor.

    Returns:
        (N, P) float32: of each layer the matrices (inputs by outputs) of actor and critic, then their biases.
    """
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(item_seed(seed, INITIAL, 0))
        parts = [torch.zeros(shape) for shape in _shapes(inputs, outputs)]
        for matrix in (*parts[0], *parts[2]):
            nn.init.orthogonal_(matrix, math.sqrt(2), generator=generator)
        for matrix, used, gain in zip(parts[4], (outputs, 1), (0.01, 1.0), strict=True):
            matrix[:, :used] = nn.init.orthogonal_(torch.empty(HIDDEN, used), gain, generator=generator)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def clip_norms(weights: Tensor, largest: float) -> None:
    """Scale the gradient of each row of weights (N, P) down to a norm."""
    assert weights.grad is not None
    norms = weights.grad.norm(dim=1, keepdim=True)
    weights.grad.mul_((largest / (norms + NORM_EPSILON)).clamp(max=1))


def _shapes(inputs: int, outputs: int) -> list[tuple[int, int, int]]:
    """Of the matrices and biases of each layer, those of actor and critic together."""
    widths = [inputs, *[HIDDEN] * (LAYERS - 1), -(-outputs // OUTPUTS) * OUTPUTS]
    return [(2, size, width) for before, width in pairwise(widths) for size in (before, 1)]
