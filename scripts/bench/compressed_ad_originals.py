"""The original, written from its description: environments as Python objects, and a loss on the last action."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.compressed_ad.envs.grids import MOVES
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.nets.transformer import Attention, Block

Observed = tuple[np.ndarray, dict[str, Any]]


class PythonDarkroom:
    """One dark room as an object with the methods of a gymnasium environment.

    Args:
        goal: row and column.
        size: rows and columns of the grid.
        horizon: steps of an episode.
    """

    def __init__(self, goal: Sequence[int], size: int = 9, horizon: int = 20) -> None:
        self.goal = np.array(goal, dtype=np.int32)
        self.size, self.horizon = size, horizon
        self.moves = np.array(MOVES, dtype=np.int32)
        self.reset()

    def reset(self) -> Observed:
        """Begin an episode."""
        self.time = 0
        self.state = np.full(2, self.size // 2, dtype=np.int32)
        return self.state.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, int, bool, bool, dict[str, Any]]:
        """Act; return the observation, the reward, whether the episode ended (twice), and an empty record."""
        self.state = np.clip(self.state + self.moves[action], 0, self.size - 1)
        self.time += 1
        done = self.time >= self.horizon
        return self.state.copy(), int(np.array_equal(self.state, self.goal)), done, done, {}


class PythonEnvs:
    """Environments that a loop steps one after the other, and that restart after an episode.

    Args:
        environments: any number.
    """

    def __init__(self, environments: Sequence[PythonDarkroom]) -> None:
        self.environments = environments
        self.states = np.stack([each.reset()[0] for each in environments])
        self.rewards = np.zeros(len(environments), dtype=np.float32)
        self.dones = np.zeros(len(environments), dtype=bool)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Act in all: observations (N, 2), after an episode those of the next one, rewards, dones, records (N,)."""
        records = []
        for number, environment in enumerate(self.environments):
            state, reward, terminated, truncated, record = environment.step(actions[number])
            self.rewards[number], self.dones[number] = reward, terminated or truncated
            if self.dones[number]:
                record["terminal_observation"] = state
                state, _ = environment.reset()
            self.states[number] = state
            records.append(record)
        return self.states.copy(), self.rewards.copy(), self.dones.copy(), records


class LastActionPolicy(nn.Module):
    """The original's way through a net: a token for each transition and one query, and the action of that alone.

    Attention is spelt out in matrices.

    Args:
        policy: whose layers and weights are copied; without a compressor.
    """

    def __init__(self, policy: InContextPolicy) -> None:
        super().__init__()
        copied = copy.deepcopy(policy)
        self.embedding, self.transformer, self.head = copied.embedding, copied.transformer, copied.head
        context = policy.transformer.context
        self.hidden: Tensor
        self.register_buffer("hidden", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, steps: Steps) -> Tensor:
        """Logits (B, 1, actions) of the last of `steps`, the others being its context."""
        before, queries = steps.slice(0, -1), steps.states[:, -1:]
        tokens = torch.cat([self.embedding.transitions(before), self.embedding.queries(queries)], 1)
        net = self.transformer
        x = F.dropout(tokens + net.pos_embedding[:, : tokens.shape[1]], net.dropout, self.training)
        for block in net.blocks:
            assert isinstance(block, Block)
            x = x + self._attend(block.attn, block.ln1(x))
            x = x + block.mlp(block.ln2(x))
        return self.head(net.ln_f(x)[:, -1:])

    def _attend(self, attention: Attention, x: Tensor) -> Tensor:
        q, k, v = attention.split(x)
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(self.hidden[: x.shape[1], : x.shape[1]], -torch.inf).softmax(-1)
        y = F.dropout(weights, attention.dropout, self.training) @ v
        return F.dropout(attention.out_proj(y.transpose(1, 2).reshape(x.shape)), attention.dropout, self.training)
