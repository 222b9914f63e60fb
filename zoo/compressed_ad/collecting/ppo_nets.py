"""Actor-critics of many tasks at once, as batches of matrices, and what they observe.

Weights of all tasks are (N, P) float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.spaces import Box, Discrete, size, tensor_dtype
from zoo.training.resume import item_seed

HIDDEN = 64
LAYERS = 3
OUTPUTS = 16
"""The last layers are a multiple of it wide; outputs beyond those of the actor and the one of the critic are not used.
In a batch of matrices of odd widths, the rounding of a product depends on its position in the batch."""
NORM_EPSILON = 1e-6
INITIAL = -1  # number of a task's seed of weights
LOG_2PI = math.log(2 * math.pi)
CLIP = 10.0  # standard deviations from the mean that an observation or a reward may have
EPSILON = 1e-8


class ActorCritics:
    """Actors and critics of all tasks, two nets of 2 x 64 tanh units each.

    The actor gives log-probabilities of Discrete actions; in a Box the means of normal distributions, from the middle
    of the bounds in units of half their distance, with learned standard deviations that begin at 1. Actions outside
    the bounds are clipped for the environment.

    Attributes:
        inputs: numbers of an observation, F.
        numbers: random numbers that an action takes.
    """

    def __init__(self, env: Env, inputs: int) -> None:
        self.action, self.inputs = env.schema.action, inputs
        self.discrete = isinstance(self.action, Discrete)
        self.outputs = int(self.action.n) if isinstance(self.action, Discrete) else size(self.action)
        self.numbers = 1 if self.discrete else self.outputs
        self._bounded = isinstance(self.action, Box) and self.action.is_bounded()
        bounds = (self.action.low, self.action.high) if isinstance(self.action, Box) and self._bounded else (-1.0, 1.0)
        self._low, self._high = (torch.from_numpy(np.array(each, dtype=np.float32).reshape(-1)) for each in bounds)

    def initial_weights(self, seeds: Sequence[int]) -> Tensor:
        """Sample weights (N, P) float32: orthogonal, with small ones for the actor's last layer.

        Of each layer the matrices (inputs by outputs) of actor and critic, then their biases; in a Box then the
        logarithms of the standard deviations.
        """
        rows = []
        for seed in seeds:
            generator = torch.Generator().manual_seed(item_seed(seed, INITIAL, 0))
            parts = [torch.zeros(shape) for shape in self._shapes()]
            for matrix in (*parts[0], *parts[2]):
                nn.init.orthogonal_(matrix, math.sqrt(2), generator=generator)
            for matrix, used, gain in zip(parts[4], (self.outputs, 1), (0.01, 1.0), strict=True):
                matrix[:, :used] = nn.init.orthogonal_(torch.empty(HIDDEN, used), gain, generator=generator)
            log_stds = torch.zeros(0 if self.discrete else self.outputs)
            rows.append(torch.cat([*(part.flatten() for part in parts), log_stds]))
        return torch.stack(rows)

    def evaluate(self, weights: Tensor, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities or means (N, R, outputs) and values (N, R) of observations (N, R, F)."""
        shapes = self._shapes()
        parts = weights[:, : sum(map(math.prod, shapes))].split([math.prod(shape) for shape in shapes], dim=1)
        hidden = observations[:, None].expand(-1, 2, -1, -1).flatten(0, 1)
        for layer in range(LAYERS):
            matrix, bias = (parts[at].reshape(-1, *shapes[at][1:]) for at in (2 * layer, 2 * layer + 1))
            hidden = torch.baddbmm(bias, hidden.tanh() if layer else hidden, matrix)
        actors, critics = hidden.unflatten(0, (-1, 2)).unbind(dim=1)
        parameters = actors[..., : self.outputs]
        return parameters.log_softmax(dim=-1) if self.discrete else parameters, critics[..., 0]

    def sample(self, weights: Tensor, parameters: Tensor, uniforms: Tensor) -> Tensor:
        """Sample actions (N, S) int64 or (N, S, A) by random numbers (numbers, N, S) float64 in (0, 1)."""
        if self.discrete:
            return (uniforms[0][..., None] > parameters.exp().cumsum(dim=-1)[..., :-1]).sum(dim=-1)
        noise = torch.special.ndtri(uniforms).float().movedim(0, -1)  # (N, S, A)
        return parameters + self._log_stds(weights).exp() * noise

    def log_probabilities(self, weights: Tensor, parameters: Tensor, actions: Tensor) -> Tensor:
        """Return log-probabilities (N, M) of actions (N, M) or (N, M, A)."""
        if self.discrete:
            return parameters.gather(-1, actions[..., None])[..., 0]
        log_stds = self._log_stds(weights)
        errors = (actions - parameters) * (-log_stds).exp()
        return -(0.5 * errors.square() + log_stds + 0.5 * LOG_2PI).sum(-1)

    def evaluate_actions(
        self, weights: Tensor, table: Tensor | None, observations: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of actions and values, (N, M) each; `table` as in `Observer`."""
        if table is None:
            parameters, values = self.evaluate(weights, observations)
            return self.log_probabilities(weights, parameters, actions), values
        parameters, values = self.evaluate(weights, table.expand(len(weights), -1, -1))
        log_probabilities = parameters.flatten(1).gather(1, observations * self.outputs + actions)
        return log_probabilities, values.gather(1, observations)

    def environment_actions(self, actions: Tensor) -> Tensor:
        """Return actions (B, ...) as the environment takes them, (B, *action)."""
        if not isinstance(self.action, Box):
            return actions
        values = (self._low + self._high) / 2 + actions * (self._high - self._low) / 2
        if self._bounded:
            values = torch.minimum(torch.maximum(values, self._low), self._high)
        return values.reshape(-1, *self.action.shape).to(tensor_dtype(self.action))

    def _log_stds(self, weights: Tensor) -> Tensor:
        return weights[:, None, weights.shape[1] - self.outputs :]  # (N, 1, A)

    def _shapes(self) -> list[tuple[int, int, int]]:
        """Shapes of the matrices and biases of each layer, those of actor and critic together."""
        widths = [self.inputs, *[HIDDEN] * (LAYERS - 1), -(-self.outputs // OUTPUTS) * OUTPUTS]
        return [(2, rows, width) for before, width in pairwise(widths) for rows in (before, 1)]


def clip_norms(weights: Tensor, max_norm: float) -> None:
    """Scale the gradient of each row of weights (N, P) down to a norm."""
    assert weights.grad is not None
    norms = weights.grad.norm(dim=1, keepdim=True)
    weights.grad.mul_((max_norm / (norms + NORM_EPSILON)).clamp(max=1))


class Observer:
    """Observations of the nets: the last states, or rows of a table where states are few and actions Discrete.

    A Discrete state is one-hot, one in a Box flat; outside grids boxes are scaled by what was seen so far.

    Args:
        shape: tasks N and streams S.
        frames: states that the nets see together; zeros stand for those before the episode.
        samples: of a minibatch of a task; a table pays off where they are more than its rows.

    Attributes:
        table: (K, F) float32, all states; None where observations are not numbers of its rows.
        frames: (N, S, frames, width), the last ones.
    """

    def __init__(self, env: Env, shape: tuple[int, int], frames: int, samples: int) -> None:
        self.space, self.shape = env.schema.observation, shape
        self._grid_size = env.grid_size if isinstance(env, GridEnv) else 0
        self._width = int(self.space.n) if isinstance(self.space, Discrete) else size(self.space)
        self.inputs = self._width * frames
        table = None
        if self._grid_size:
            rows = torch.arange(self._grid_size)
            table = torch.cartesian_prod(rows, rows).float()
        elif isinstance(self.space, Discrete):
            table = torch.eye(self._width)
        few = table is not None and frames == 1 and samples > len(table)
        self.table = table if few and isinstance(env.schema.action, Discrete) else None
        is_scaled = isinstance(self.space, Box) and not self._grid_size
        self._moments = RunningMoments(shape[0], self._width) if is_scaled else None
        self.frames = torch.zeros(*shape, frames, self._width)

    def observe(self, states: Tensor) -> Tensor:
        """Observe the present states (N * S, *observation), which later observations include."""
        if self.table is None and self._moments is not None:
            self._moments.add(self._features(states))
        observation = self.preview(states, self.frames)
        if self.table is None:
            self.frames = observation.unflatten(2, (-1, self._width))
        return observation

    def preview(self, states: Tensor, frames: Tensor) -> Tensor:
        """Return the observation of states after frames: rows of the table (N, S), or numbers (N, S, F)."""
        if self.table is not None:
            rows = states[:, 0] * self._grid_size + states[:, 1] if self._grid_size else states
            return rows.view(self.shape)
        features = self._features(states)
        if self._moments is not None:
            features = self._moments.scale(features)
        return torch.cat([frames[:, :, 1:], features[:, :, None]], dim=2).flatten(2)

    def reset(self, dones: Tensor) -> None:
        """Clear the earlier frames where an episode (N, S) ended."""
        self.frames = self.frames.masked_fill(dones[..., None, None], 0)

    def _features(self, states: Tensor) -> Tensor:
        if isinstance(self.space, Discrete):
            return nn.functional.one_hot(states, self._width).float().unflatten(0, self.shape)
        return states.reshape(*self.shape, -1).float()


class RunningMoments:
    """Mean and standard deviation of all rows so far, of each task apart.

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
    """

    def __init__(self, tasks: int, width: int) -> None:
        self.count = 0
        self.mean = np.zeros((tasks, width))
        self._squares = np.zeros((tasks, width))

    def add(self, rows: Tensor) -> None:
        """Update by rows (N, M, width)."""
        added, before = rows.shape[1], self.count
        self.count += added
        for task, values in enumerate(rows.double().numpy()):  # one by one: the same sums for any number of tasks
            mean = values.mean(0)
            shift = mean - self.mean[task]
            self._squares[task] += ((values - mean) ** 2).sum(0) + shift**2 * (before * added / self.count)
            self.mean[task] += shift * (added / self.count)

    def std(self) -> Tensor:
        """Return standard deviations (N, width) float32, a little above 0."""
        return torch.from_numpy(np.sqrt(self._squares / max(self.count, 1)) + math.sqrt(EPSILON)).float()

    def scale(self, rows: Tensor) -> Tensor:
        """Return rows (N, M, width) in standard deviations from the mean."""
        return ((rows - torch.from_numpy(self.mean).float()[:, None]) / self.std()[:, None]).clamp(-CLIP, CLIP)


class RewardScaler:
    """Scales rewards by the standard deviation of the discounted return so far.

    Source: Andrychowicz et al., "What Matters for On-Policy Deep Actor-Critic Methods?" (2021), section 3.4.
    """

    def __init__(self, shape: tuple[int, int], discount: float) -> None:
        self._moments = RunningMoments(shape[0], 1)
        self._discount = discount
        self._returns = torch.zeros(shape)

    def scale(self, rewards: Tensor, dones: Tensor) -> Tensor:
        """Return rewards (T, N, S) of a rollout, scaled after they were counted."""
        returns = []
        for reward, done in zip(rewards, dones, strict=True):
            self._returns = reward + self._discount * self._returns
            returns.append(self._returns)
            self._returns = self._returns.masked_fill(done, 0)
        self._moments.add(torch.stack(returns).transpose(0, 1).flatten(1)[..., None])
        return (rewards / self._moments.std()).clamp(-CLIP, CLIP)
