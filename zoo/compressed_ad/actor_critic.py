"""Actors and critics of many tasks at once, as batched matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from zoo.compressed_ad.envs import Env
from zoo.training.resume import item_seed

HIDDEN = 64
LAYERS = 3
NUM_ACTIONS = Env.num_actions
OUTPUTS = 16
"""Width of the last layers, whose outputs beyond the first (five of the actor, one of the critic) are not used. In a
batch of matrices of odd widths, what a product is rounded to depends on its place in the batch."""
INITIAL = -1  # number of a task's draws of weights


class Observer:
    """What nets see: (row, column) of the last frames; or the number of the cell, where looking up is cheaper.

    Args:
        grid_size: of the environment.
        shape: tasks N and streams S.
        frames: states seen together.
        samples: for how many the nets are asked at once, of one task.

    Attributes:
        cells: (K, 2) float32, what the numbers mean; None where an observation is (row, column, ...) itself.
    """

    def __init__(self, grid_size: int, shape: tuple[int, int], frames: int, samples: int) -> None:
        places = torch.arange(grid_size)
        self.grid_size = grid_size
        self.cells = torch.cartesian_prod(places, places).float() if frames == 1 and samples > grid_size**2 else None
        self._frames = torch.zeros(*shape, frames, 2)

    def observe(self, states: Tensor) -> Tensor:
        """Take in where the agents are; returns the observation of that."""
        observation = self.look(states)
        if self.cells is None:
            self._frames = observation.unflatten(2, (-1, 2))
        return observation

    def look(self, states: Tensor) -> Tensor:
        """Observe states without taking them in.

        Args:
            states: (N * S, 2) int64.

        Returns:
            (N, S) int64, or (N, S, 2 * frames) float32 with the last state at the end.
        """
        shape = self._frames.shape[:2]
        if self.cells is not None:
            return (states[:, 0] * self.grid_size + states[:, 1]).view(shape)
        return torch.cat([self._frames[:, :, 1:], states.view(*shape, 1, 2).float()], dim=2).flatten(2)

    def forget(self) -> None:
        """Begin an episode: nothing has been seen."""
        self._frames = torch.zeros_like(self._frames)


class Policy:
    """The nets of all tasks while they do not change.

    Args:
        weights: (N, P) float32.
        cells: see `Observer`.
    """

    def __init__(self, weights: Tensor, cells: Tensor | None) -> None:
        self._weights = weights
        self._tables = None if cells is None else nets(weights, cells.expand(len(weights), -1, -1))

    def __call__(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N, S, A) and values (N, S) of observations (N, S, ...)."""
        if self._tables is None:
            return nets(self._weights, observations)
        tasks = torch.arange(len(observations))[:, None]
        return self._tables[0][tasks, observations], self._tables[1][tasks, observations]


def judge(weights: Tensor, cells: Tensor | None, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Ask the nets about samples.

    Args:
        weights: (N, P) float32.
        cells: see `Observer`.
        observations: (N, M) int64, or (N, M, F) float32 where `cells` is None.
        actions: (N, M) int64.

    Returns:
        Log-probabilities of the actions and values, (N, M) float32 each.
    """
    if cells is None:
        rows, places = observations, torch.arange(actions.shape[1]).expand(len(actions), -1)
    else:
        rows, places = cells.expand(len(weights), -1, -1), observations
    log_probabilities, values = nets(weights, rows)
    chosen = log_probabilities.flatten(1).gather(1, places * log_probabilities.shape[2] + actions)
    return chosen, values.gather(1, places)


def nets(weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Actors and critics of all tasks.

    Args:
        weights: (N, P) float32, see `initial_weights`.
        rows: observations (N, R, F) float32.

    Returns:
        Log-probabilities (N, R, 5) and values (N, R), float32.
    """
    shapes = _shapes(rows.shape[2])
    parts = weights.split([math.prod(shape) for shape in shapes], dim=1)
    outputs = rows[:, None].expand(-1, 2, -1, -1).flatten(0, 1)
    for layer in range(LAYERS):
        matrix, bias = (parts[place].reshape(-1, *shapes[place][1:]) for place in (2 * layer, 2 * layer + 1))
        outputs = torch.baddbmm(bias, outputs.tanh() if layer else outputs, matrix)
    actors, critics = outputs.unflatten(0, (-1, 2)).unbind(dim=1)
    return actors[..., :NUM_ACTIONS].log_softmax(dim=-1), critics[..., 0]


def initial_weights(seeds: Sequence[int], inputs: int) -> Tensor:
    """Random weights of both nets of each task: orthogonal, with small ones for the actor's last layer.

    Args:
        seeds: of the tasks (N,).
        inputs: length F of an observation.

    Returns:
        (N, P) float32: of each layer the matrices (inputs by outputs) of actor and critic, then their biases.
    """
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(item_seed(seed, INITIAL, 0))
        parts = [torch.zeros(shape) for shape in _shapes(inputs)]
        for matrix in (*parts[0], *parts[2]):
            nn.init.orthogonal_(matrix, math.sqrt(2), generator=generator)
        for matrix, outputs, gain in zip(parts[4], (NUM_ACTIONS, 1), (0.01, 1.0), strict=True):
            matrix[:, :outputs] = nn.init.orthogonal_(torch.empty(HIDDEN, outputs), gain, generator=generator)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def _shapes(inputs: int) -> list[tuple[int, int, int]]:
    """Of the matrices and biases of each layer, those of actor and critic together."""
    widths = [inputs, *[HIDDEN] * (LAYERS - 1), OUTPUTS]
    return [(2, size, width) for before, width in pairwise(widths) for size in (before, 1)]
