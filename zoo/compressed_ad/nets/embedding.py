"""Embeddings of transitions and of query states."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.compressed_ad.nets.steps import Steps

REWARDS = 2  # values of a reward: none, or one


class StepEmbedding(nn.Module, ABC):
    """Turns transitions and query states into tokens.

    Args:
        dim: width of the tokens.
        grid_size: rows and columns of a room.
        num_actions: that the agent chooses from.
    """

    def __init__(self, dim: int, grid_size: int, num_actions: int) -> None:
        super().__init__()
        self.dim = dim
        self.grid_size = grid_size
        self.num_actions = num_actions

    @abstractmethod
    def transitions(self, steps: Steps) -> Tensor:
        """Tokens (B, L, dim) of transitions."""

    @abstractmethod
    def queries(self, states: Tensor) -> Tensor:
        """Tokens (..., dim) of the states (..., 2), int64, in which an action is wanted."""


class LinearEmbedding(StepEmbedding):
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


class FactoredEmbedding(StepEmbedding):
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
