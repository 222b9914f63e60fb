"""Embeddings of transitions and of query states."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.checks import check_at_least
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.spaces import Box, Discrete, Space, describe_space, is_picture
from zoo.compressed_ad.nets.steps import Statistics, Steps

REWARDS = 2  # values of a reward: none, or one


def check_space(name: str, expected: Space, found: Space, env: Env) -> None:
    """Refuse an environment whose observation or action space is not that of a policy."""
    if expected != found:
        expected_text, found_text = (json.dumps(describe_space(each)) for each in (expected, found))
        raise ValueError(f"the policy's {name} is {expected_text}, that of {env.name} is {found_text}")


class StepEmbedding(nn.Module, ABC):
    """Turns transitions and query states into tokens.

    Args:
        dim: width of the tokens.
        num_actions: that the agent chooses from; None where actions are no choice of a few.
    """

    def __init__(self, dim: int, num_actions: int | None) -> None:
        super().__init__()
        self.dim = dim
        self.num_actions = num_actions

    @abstractmethod
    def transitions(self, steps: Steps) -> Tensor:
        """Tokens (B, L, dim) of transitions."""

    @abstractmethod
    def queries(self, states: Tensor) -> Tensor:
        """Tokens (B, ..., dim) of the states (B, ..., *observation) in which to act."""

    @abstractmethod
    def check(self, env: Env) -> None:
        """Refuse an environment that this was not made for."""

    def fit(self, statistics: Statistics) -> None:
        """Use statistics of training histories, where the embedding has a use for them."""


class GridEmbedding(StepEmbedding):
    """Base of the embeddings of grids.

    Args:
        dim: width of the tokens.
        grid_size: rows and columns of a room.
        num_actions: that the agent chooses from.
    """

    num_actions: int

    def __init__(self, dim: int, grid_size: int, num_actions: int) -> None:
        super().__init__(dim, num_actions)
        self.grid_size = grid_size

    def check(self, env: Env) -> None:
        """Refuse another grid, and other environments."""
        cells = Box(0, self.grid_size - 1, (2,), np.int64)
        if env.schema.observation != cells or env.schema.action != Discrete(self.num_actions):
            raise ValueError(
                f"the policy is for a grid of {self.grid_size} rows and {self.num_actions} actions, {env.name} has "
                f"{json.dumps(env.schema.describe())}: give the embedding the environment's grid_size and num_actions, "
                "or take SpaceEmbedding"
            )


class LinearEmbedding(GridEmbedding):
    """One linear layer on the raw numbers of a transition and a table of query states: the original's.

    Args:
        dim: width of the tokens.
        grid_size: rows and columns of a room.
        num_actions: that the agent chooses from.
        norm: normalise tokens of transitions, as the earlier encoder's model does.
    """

    def __init__(self, dim: int = 64, grid_size: int = 9, num_actions: int = 5, norm: bool = False) -> None:
        super().__init__(dim, grid_size, num_actions)
        self.context = nn.Linear(2 + num_actions + 1 + 2, dim)
        self.query_state = nn.Embedding(grid_size * grid_size, dim)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def transitions(self, steps: Steps) -> Tensor:
        """Tokens (B, L, dim) of transitions."""
        one_hot = F.one_hot(steps.actions, self.num_actions)
        values = torch.cat(
            [steps.states, one_hot, steps.rewards.unsqueeze(-1), steps.next_states], -1
        )  # (B, L, 5 + actions)
        return self.norm(self.context(values.to(self.context.weight.dtype)))

    def queries(self, states: Tensor) -> Tensor:
        """Tokens (..., dim) of query states (..., 2), int64."""
        return self.query_state(states[..., 0] * self.grid_size + states[..., 1])


class FactoredEmbedding(GridEmbedding):
    """A sum of learned tables: row and column of state and successor, action, reward, end of the episode.

    A net learns far faster from it than from raw coordinates.

    Args:
        dim: width of the tokens.
        grid_size: rows and columns of a room: the size of the tables.
        num_actions: that the agent chooses from.
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
    """Transitions of any environment whose spaces are Discrete or Box, by its schema.

    Numbers of a Box are normalised by mean and deviation over the training histories, which the checkpoint keeps, and
    so are rewards. A Discrete value is one-hot, which makes a table of the layer behind it; a picture passes a small
    convolutional net, the same for state, successor and query.

    Args:
        env: whose schema it is for.
        dim: width of the tokens.
        hidden: channels of a layer before the tokens; 0 for none.
    """

    def __init__(self, env: Env, dim: int = 64, hidden: int = 0) -> None:
        action_space = env.schema.action
        super().__init__(dim, int(action_space.n) if isinstance(action_space, Discrete) else None)
        check_at_least(0, hidden=hidden)
        self.spaces = (env.schema.observation, env.schema.action)
        self.state = _features(env.schema.observation, dim)
        self.action = _features(env.schema.action, dim)
        self.reward = Normalised(1)
        state, action = self.state.width, self.action.width
        self.context = _layers(2 * state + action + 2, hidden, dim)
        self.query = _layers(state, hidden, dim)

    def transitions(self, steps: Steps) -> Tensor:
        """Tokens (B, L, dim) of transitions."""
        states, next_states = self.state(steps.states), self.state(steps.next_states)
        reward = self.reward(steps.rewards[..., None])
        values = [states, self.action(steps.actions), reward, next_states, steps.dones[..., None].float()]
        return self.context(torch.cat(values, -1))  # (B, L, dim)

    def queries(self, states: Tensor) -> Tensor:
        """Tokens (B, ..., dim) of query states (B, ..., *observation)."""
        return self.query(self.state(states))

    def check(self, env: Env) -> None:
        """Refuse other spaces."""
        check_space("observation", self.spaces[0], env.schema.observation, env)
        check_space("action", self.spaces[1], env.schema.action, env)

    def fit(self, statistics: Statistics) -> None:
        """Set means and standard deviations."""
        for part, moments in ((self.state, statistics.states), (self.action, statistics.actions)):
            if isinstance(part, Normalised):
                part.set(*moments)
        self.reward.set(*statistics.rewards)


class OneHot(nn.Module):
    """Numbers below `width` as one-hot vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, values: Tensor) -> Tensor:
        """(...) int64 to (..., width) float32."""
        return F.one_hot(values, self.width).float()


class Normalised(nn.Module):
    """Arrays of `width` numbers, flattened and normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: int, axes: int = 1) -> None:
        super().__init__()
        self.width = width
        self.axes = axes
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))

    def set(self, mean: Tensor, std: Tensor) -> None:
        """Set mean and standard deviation (width,); of numbers that never change the mean alone."""
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 0, std, torch.ones_like(std)))

    def forward(self, values: Tensor) -> Tensor:
        """(..., *shape) to (..., width) float32."""
        flat = values.reshape(*values.shape[: values.ndim - self.axes], self.width)
        return (flat.float() - self.mean) / self.std


class Pictures(nn.Module):
    """A small convolutional net on pictures (H, W, C) or (C, H, W) of bytes."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.width = width
        self.shape = shape
        self.last = shape[2] <= shape[0]  # channels last
        channels = shape[2] if self.last else shape[0]
        self.net = nn.Sequential(
            nn.Conv2d(channels, 16, 3, 2, 1), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, width),
        )  # fmt: skip

    def forward(self, values: Tensor) -> Tensor:
        """(..., *shape) uint8 to (..., width)."""
        flat = values.reshape(-1, *self.shape).float() / 255 - 0.5
        x = self.net(flat.permute(0, 3, 1, 2) if self.last else flat)  # (N, width)
        return x.reshape(*values.shape[:-3], self.width)


def _features(space: Space, dim: int) -> OneHot | Normalised | Pictures:
    if isinstance(space, Discrete):
        return OneHot(int(space.n))
    return Pictures(space.shape, dim) if is_picture(space) else Normalised(math.prod(space.shape), len(space.shape))


def _layers(inputs: int, hidden: int, dim: int) -> nn.Module:
    if not hidden:
        return nn.Linear(inputs, dim)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, dim))
