"""What PPO needs beyond grids: nets for Discrete and Box observations and actions, and running scales."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.compressed_ad.collecting.nets import initial_weights, raw_nets
from zoo.compressed_ad.envs.base import tensor_dtype
from zoo.compressed_ad.envs.schema import Box, Discrete, Schema
from zoo.compressed_ad.nets.heads import choose

LOG_2PI = math.log(2 * math.pi)

CLIP = 10.0  # deviations from the mean that an observation or a reward may have
EPSILON = 1e-8


class SpaceNets:
    """Actors and critics of all tasks for the spaces of a schema.

    A Discrete observation is one-hot, one in a Box flat. The actor gives logits of Discrete actions; in a Box the
    means of normal distributions, counted from the middle of the bounds in units of half their distance (as they are
    where there are none), whose deviations are learned apart from the observation and begin at 1. What is drawn
    outside the bounds is put on them; the environment and the history get that.

    Attributes:
        inputs: numbers of an observation, F.
        outputs: of the actor.
        numbers: random numbers that an action takes.

    Raises:
        ValueError: for pictures.
    """

    def __init__(self, schema: Schema) -> None:
        state, action = schema.observation, schema.action
        if isinstance(state, Box) and state.is_image:
            raise ValueError(f"ppo learns no pictures, found observations {json.dumps(state.describe())}: flatten them")
        self.state, self.action = state, action
        self.inputs = state.size if isinstance(state, Box) else state.n
        self.discrete = isinstance(action, Discrete)
        self.outputs = action.n if isinstance(action, Discrete) else action.size
        self.numbers = 1 if self.discrete else self.outputs
        low, high = action.limits() if isinstance(action, Box) and action.bounded else ([-1.0], [1.0])
        self._low, self._high = torch.tensor(low), torch.tensor(high)
        self._clipped = isinstance(action, Box) and action.bounded

    def initial_weights(self, seeds: Sequence[int]) -> Tensor:
        """Of each task (N, P) float32; in a Box with the logarithms of the deviations behind those of the nets."""
        weights = initial_weights(seeds, self.inputs, self.outputs)
        return weights if self.discrete else F.pad(weights, (0, self.outputs))

    def features(self, states: Tensor) -> Tensor:
        """What nets see of states (B, *observation): (B, F) float32."""
        if isinstance(self.state, Discrete):
            return F.one_hot(states, self.state.n).float()
        return states.reshape(len(states), -1).float()

    def draw(self, weights: Tensor, observations: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Act: actions (N, S) int64 or (N, S, A), their log-probabilities and the values, (N, S) each.

        Args:
            observations: (N, S, F).
            uniforms: numbers (numbers, N, S) float64 in (0, 1).
        """
        outputs, log_stds, values = self._outputs(weights, observations)
        if self.discrete:
            chances = outputs.double().softmax(-1)
            actions = choose(chances.flatten(0, 1), uniforms[0].flatten()).view(uniforms.shape[1:])
        else:
            noise = torch.special.ndtri(uniforms).float().movedim(0, -1)  # (N, S, A)
            actions = outputs + log_stds.exp() * noise
        return actions, self._log_chances(outputs, log_stds, actions), values

    def evaluate_actions(
        self, weights: Tensor, cells: Tensor | None, observations: Tensor, actions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of actions (N, M) or (N, M, A) and values, (N, M) each, of observations (N, M, F)."""
        outputs, log_stds, values = self._outputs(weights, observations)
        return self._log_chances(outputs, log_stds, actions), values

    def values(self, weights: Tensor, observations: Tensor) -> Tensor:
        """What the critics expect (N, M) behind observations (N, M, F)."""
        return self._outputs(weights, observations)[2]

    def meant(self, actions: Tensor) -> Tensor:
        """What drawn actions (B, ...) are to the environment, (B, *action)."""
        if not isinstance(self.action, Box):
            return actions
        values = (self._low + self._high) / 2 + actions * (self._high - self._low) / 2
        if self._clipped:
            values = torch.minimum(torch.maximum(values, self._low), self._high)
        return values.reshape(-1, *self.action.shape).to(tensor_dtype(self.action))

    def _outputs(self, weights: Tensor, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the actor (N, M, outputs), log-deviations (N, 1, A), values (N, M)."""
        count = 0 if self.discrete else self.outputs
        whole = weights.shape[1] - count
        outputs, values = raw_nets(weights[:, :whole], observations, self.outputs)
        return outputs, weights[:, None, whole:], values

    def _log_chances(self, outputs: Tensor, log_stds: Tensor, actions: Tensor) -> Tensor:
        if self.discrete:
            return outputs.log_softmax(-1).gather(-1, actions[..., None])[..., 0]
        errors = (actions - outputs) * (-log_stds).exp()
        return -(0.5 * errors.square() + log_stds + 0.5 * LOG_2PI).sum(-1)


class Moments:
    """Mean and deviation of all that was seen so far, of each task apart.

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
    """

    def __init__(self, tasks: int, width: int) -> None:
        self.count = 0
        self.mean = np.zeros((tasks, width))
        self._squares = np.zeros((tasks, width))

    def add(self, rows: Tensor) -> None:
        """Take in rows (N, M, width)."""
        fresh, before = rows.shape[1], self.count
        self.count += fresh
        for task, values in enumerate(rows.double().numpy()):  # one by one: the same sums for any number of tasks
            mean = values.mean(0)
            apart = mean - self.mean[task]
            self._squares[task] += ((values - mean) ** 2).sum(0) + apart**2 * (before * fresh / self.count)
            self.mean[task] += apart * (fresh / self.count)

    def std(self) -> np.ndarray:
        """Deviations (N, width)."""
        return np.sqrt(self._squares / max(self.count, 1))

    def scaled(self, rows: Tensor) -> Tensor:
        """Rows (..., N, M, width), in deviations from the mean."""
        mean = torch.from_numpy(self.mean).float()[:, None]
        std = torch.from_numpy(self.std() + math.sqrt(EPSILON)).float()[:, None]
        return ((rows - mean) / std).clamp(-CLIP, CLIP)


class Scales:
    """Running scales of observations in a Box, and of rewards: by the deviation of the discounted return so far.

    Args:
        shape: tasks N and streams S.
        discount: of later rewards.

    Source: Andrychowicz et al., "What Matters for On-Policy Deep Actor-Critic Methods?" (2021), section 3.4.
    """

    def __init__(self, space: SpaceNets, shape: tuple[int, int], discount: float) -> None:
        self._observations = Moments(shape[0], space.inputs) if isinstance(space.state, Box) else None
        self._returns = Moments(shape[0], 1)
        self._discount = discount
        self._running = torch.zeros(shape)

    def take_in(self, observations: Tensor) -> Tensor:
        """Observations (N, S, F), scaled after they were counted."""
        if self._observations is not None:
            self._observations.add(observations)
        return self.normalised(observations)

    def normalised(self, observations: Tensor) -> Tensor:
        """Observations (..., N, S, F), scaled."""
        return observations if self._observations is None else self._observations.scaled(observations)

    def rewards(self, rewards: Tensor, dones: Tensor) -> Tensor:
        """Rewards (T, N, S) of a rollout, scaled after they were counted."""
        found = []
        for reward, done in zip(rewards, dones, strict=True):
            self._running = reward + self._discount * self._running
            found.append(self._running)
            self._running = self._running.masked_fill(done, 0)
        self._returns.add(torch.stack(found).transpose(0, 1).flatten(1)[..., None])
        std = torch.from_numpy(self._returns.std() + math.sqrt(EPSILON)).float()
        return (rewards / std).clamp(-CLIP, CLIP)
