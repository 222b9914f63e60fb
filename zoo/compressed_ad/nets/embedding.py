"""Embeddings of transitions and of query states."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.spaces import Box, Discrete, Space, describe_space
from zoo.compressed_ad.nets.steps import Statistics, Steps

REWARDS = 2  # values of a reward: none, or one


def check_space(name: str, expected: Space, found: Space, env: Env) -> None:
    """Refuse an environment whose observation or action space is not that of a policy."""
    if expected != found:
        expected_text, found_text = (json.dumps(describe_space(each)) for each in (expected, found))
        raise ValueError(f"the policy's {name} is {expected_text}, that of {env.name} is {found_text}")


def check_rewards(env: Env) -> None:
    """Refuse an environment whose rewards may be others than 0 and 1."""
    low, high = env.schema.reward
    if low < 0 or high > REWARDS - 1:
        raise ValueError(
            f"rewards of {env.name} may lie between {low:g} and {high:g}, a table has 0 and 1 alone: take "
            "LinearEmbedding or SpaceEmbedding, and no FieldDecoder; or give GymnasiumEnv its reward: [0, 1]"
        )


class StepEmbedding(nn.Module, ABC):
    """Turns transitions and query states into tokens of width `dim`.

    Args:
        dim: width of the tokens.
        observation: space of observations.
        action: space of actions.
    """

    def __init__(self, dim: int, observation: Space, action: Space) -> None:
        super().__init__()
        self.dim, self.observation_space, self.action_space = dim, observation, action
        self.num_actions = int(action.n) if isinstance(action, Discrete) else None

    @abstractmethod
    def transitions(self, steps: Steps) -> Tensor:
        """Tokens (B, L, dim) of transitions."""

    @abstractmethod
    def queries(self, states: Tensor) -> Tensor:
        """Tokens (B, ..., dim) of the states (B, ..., *observation) in which to act."""

    def check(self, env: Env) -> None:
        """Refuse an environment of other spaces."""
        check_space("observation", self.observation_space, env.schema.observation, env)
        check_space("action", self.action_space, env.schema.action, env)

    def fit(self, statistics: Statistics) -> None:
        """Use statistics of training histories, where the embedding has a use for them."""


class GridEmbedding(StepEmbedding):
    """Base of the embeddings of grids.

    Args:
        dim: width of the tokens.
        grid_size: rows and columns, at least 2.
        num_actions: actions to choose from.
    """

    def __init__(self, dim: int, grid_size: int, num_actions: int) -> None:
        super().__init__(dim, Box(0, grid_size - 1, (2,), np.int64), Discrete(num_actions))
        self.grid_size = grid_size


class LinearEmbedding(GridEmbedding):
    """One linear layer on the raw numbers of a transition and a table of query states: the original's.

    Args:
        dim: width of the tokens.
        grid_size: rows and columns, at least 2.
        num_actions: actions to choose from.
        norm: normalise tokens of transitions, as the earlier encoder's model does.
    """

    def __init__(self, dim: int = 64, grid_size: int = 9, num_actions: int = 5, norm: bool = False) -> None:
        super().__init__(dim, grid_size, num_actions)
        self.context = nn.Linear(2 + num_actions + 1 + 2, dim)
        self.query_state = nn.Embedding(grid_size * grid_size, dim)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def transitions(self, steps: Steps) -> Tensor:
        """Tokens (B, L, dim) of transitions."""
        one_hot = F.one_hot(steps.actions, self.num_actions or 0)
        values = torch.cat([steps.states, one_hot, steps.rewards.unsqueeze(-1), steps.next_states], -1)
        return self.norm(self.context(values.to(self.context.weight.dtype)))

    def queries(self, states: Tensor) -> Tensor:
        """Tokens (..., dim) of query states (..., 2), int64."""
        return self.query_state(states[..., 0] * self.grid_size + states[..., 1])


class FactoredEmbedding(GridEmbedding):
    """A sum of learned tables: row and column of state and successor, action, reward, end of the episode.

    A net learns far faster from it than from raw coordinates.

    Args:
        dim: width of the tokens.
        grid_size: rows and columns, at least 2.
        num_actions: actions to choose from.
    """

    def __init__(self, dim: int = 64, grid_size: int = 9, num_actions: int = 5) -> None:
        super().__init__(dim, grid_size, num_actions)
        # rows of one table, so that a step is one look-up: row, column, action, reward, next row, next column, done
        sizes = (grid_size, grid_size, num_actions, REWARDS, grid_size, grid_size, 2)
        self.offsets: Tensor
        self.register_buffer("offsets", torch.tensor([0, *sizes]).cumsum(0)[:-1], persistent=False)
        self.context = nn.EmbeddingBag(sum(sizes), dim, mode="sum")
        self.query = nn.EmbeddingBag(2 * grid_size, dim, mode="sum")
        for table in (self.context, self.query):
            nn.init.normal_(table.weight, std=0.3)

    def check(self, env: Env) -> None:
        """Refuse an environment of other spaces, or of other rewards than 0 and 1."""
        super().check(env)
        check_rewards(env)

    def transitions(self, steps: Steps) -> Tensor:
        """Tokens (B, L, dim) of transitions."""
        numbers = [steps.actions, steps.rewards.long(), steps.next_states[..., 0], steps.next_states[..., 1]]
        fields = torch.stack([*steps.states.unbind(-1), *numbers, steps.dones.long()], -1) + self.offsets  # (B, L, 7)
        return self.context(fields.flatten(0, 1)).view(*steps.actions.shape, self.dim)

    def queries(self, states: Tensor) -> Tensor:
        """Tokens (..., dim) of query states (..., 2), int64."""
        fields = states + torch.tensor([0, self.grid_size], device=states.device)
        return self.query(fields.reshape(-1, 2)).view(*states.shape[:-1], self.dim)


class SpaceEmbedding(StepEmbedding):
    """Transitions of any environment whose spaces are Discrete or Box.

    Numbers of a Box and rewards are normalised by mean and standard deviation over the training histories, which the
    checkpoint contains. A Discrete value is one-hot.

    Args:
        env: whose spaces it is for.
        dim: width of the tokens.
    """

    def __init__(self, env: Env, dim: int = 64) -> None:
        super().__init__(dim, env.schema.observation, env.schema.action)
        self.state, self.action = _features(self.observation_space), _features(self.action_space)
        self.reward = Normalised((1,))
        states, actions = self.state.width, self.action.width
        self.context = nn.Linear(2 * states + actions + 2, dim)
        self.query = nn.Linear(states, dim)

    def transitions(self, steps: Steps) -> Tensor:
        """Tokens (B, L, dim) of transitions."""
        states, next_states = self.state(steps.states), self.state(steps.next_states)
        rewards, dones = self.reward(steps.rewards[..., None]), steps.dones[..., None].float()
        values = torch.cat([states, self.action(steps.actions), rewards, next_states, dones], -1)
        return self.context(values.to(self.context.weight.dtype))

    def queries(self, states: Tensor) -> Tensor:
        """Tokens (B, ..., dim) of query states (B, ..., *observation)."""
        return self.query(self.state(states).to(self.query.weight.dtype))

    def fit(self, statistics: Statistics) -> None:
        """Set means and standard deviations, unless they came with loaded weights."""
        for features, moments in (
            (self.state, statistics.states), (self.action, statistics.actions),
            (self.reward, statistics.rewards),
        ):  # fmt: skip
            if isinstance(features, Normalised):
                features.set(*moments)


class OneHot(nn.Module):
    """Numbers (...) int64 below `width` as one-hot vectors (..., width) float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, values: Tensor) -> Tensor:
        """(...) to (..., width)."""
        return F.one_hot(values, self.width).float()


class Normalised(nn.Module):
    """Arrays (..., *shape), flattened and normalised: (..., width) float32."""

    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.width, self.axes = math.prod(shape), len(shape)
        self.register_buffer("mean", torch.zeros(self.width))
        self.register_buffer("std", torch.ones(self.width))

    def set(self, mean: Tensor, std: Tensor) -> None:
        """Set mean and standard deviation (width,), once; of numbers that never change the mean alone."""
        if self.mean.any() or (self.std != 1).any():
            return
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 0, std, torch.ones_like(std)))

    def forward(self, values: Tensor) -> Tensor:
        """(..., *shape) to (..., width)."""
        flat = values.reshape(*values.shape[: values.ndim - self.axes], self.width)
        return (flat.float() - self.mean) / self.std


def _features(space: Space) -> OneHot | Normalised:
    return OneHot(int(space.n)) if isinstance(space, Discrete) else Normalised(space.shape)
