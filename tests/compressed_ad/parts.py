"""Small policies, histories of random steps, and what makes a history one of its environment."""

from collections.abc import Sequence
from typing import Any

import torch

from zoo.compressed_ad import (
    Env,
    FactoredEmbedding,
    InContextPolicy,
    LinearEmbedding,
    PointMass,
    QueryCompressor,
    Transformer,
)
from zoo.compressed_ad.envs.spaces import Schema, Space
from zoo.compressed_ad.nets.steps import Steps

DIM, GRID, WINDOW = 16, 5, 12


def policy(latents: int = 0, grid: int = GRID, window: int = WINDOW, depth: int = 1, **how: Any) -> InContextPolicy:
    """A policy without dropout, with a compressor into so many latents or the one that is given."""
    torch.manual_seed(0)
    embedding = LinearEmbedding if how.get("arrangement") == "separate" else FactoredEmbedding
    if latents:
        how["compressor"] = QueryCompressor(DIM, latents, 1, 2, dropout=0.0)
    return InContextPolicy(embedding(DIM, grid), Transformer(DIM, depth, 2, window, dropout=0.0), **how)


def env_of(observation: Space, action: Space) -> Env:
    """An environment of these spaces, for what reads its schema alone."""
    env = PointMass()
    env.schema = Schema(observation, action, 20)
    return env


def histories(batch: int, length: int) -> Steps:
    generator = torch.Generator().manual_seed(length)

    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, (batch, length, *shape), generator=generator)

    return Steps(draw(GRID, 2), draw(5), draw(2), draw(GRID, 2), draw(2).bool())


def assert_possible(env: Env, tasks: torch.Tensor, steps: Steps, seeds: Sequence[int] | None = None) -> None:
    """The environment answers the actions of histories with their states, rewards and ends."""
    worlds = env.start(tasks, seeds)
    for time in range(steps.length):
        assert torch.equal(steps.states[:, time], worlds.states)
        step = worlds.step(steps.actions[:, time])
        assert torch.equal(steps.next_states[:, time], step.next_states)
        assert torch.equal(steps.rewards[:, time], step.rewards)
        assert torch.equal(steps.dones[:, time], step.dones)
