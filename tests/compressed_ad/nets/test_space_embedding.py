"""Embeddings by schema: normalised numbers, classes, pictures; statistics in the state dict."""

import copy

import numpy as np
import pytest
import torch

from tests.compressed_ad.parts import env_of
from zoo.compressed_ad import SpaceEmbedding
from zoo.compressed_ad.envs.spaces import Box, Discrete, Space
from zoo.compressed_ad.nets.steps import Statistics, Steps

SPACES: list[tuple[Space, Space]] = [
    (Discrete(7), Discrete(3)),
    (Box(-np.inf, np.inf, (4,)), Discrete(2)),
    (Box(0, 1, (2, 3), np.float64), Box(-1, 1, (2,))),
    (Box(0, 255, (2, 3), np.uint8), Box(-1, 1, (1,))),
]


def values(space: Space, *shape: int) -> torch.Tensor:
    if isinstance(space, Discrete):
        return torch.randint(int(space.n), shape)
    if space.dtype == np.uint8:
        return torch.randint(256, (*shape, *space.shape), dtype=torch.uint8)
    return torch.rand(*shape, *space.shape, dtype=torch.float64 if space.dtype == np.float64 else torch.float32)


def steps(observation: Space, action: Space, batch: int = 3, length: int = 6) -> Steps:
    torch.manual_seed(0)
    return Steps(
        values(observation, batch, length), values(action, batch, length), torch.rand(batch, length),
        values(observation, batch, length), torch.rand(batch, length) < 0.3,
    )  # fmt: skip


@pytest.mark.parametrize("spaces", SPACES, ids=str)
def test_tokens_of_each_kind(spaces: tuple[Space, Space]) -> None:
    embedding = SpaceEmbedding(env_of(*spaces), 16)
    made = steps(*spaces)
    tokens, queries = embedding.transitions(made), embedding.queries(made.states)
    assert tokens.shape == queries.shape == (3, 6, 16)
    assert copy.deepcopy(embedding).bfloat16().transitions(made).dtype == torch.bfloat16
    torch.testing.assert_close(embedding.queries(made.states[:, 2]), queries[:, 2])
    flipped = made._replace(dones=~made.dones)
    assert not torch.equal(embedding.transitions(flipped), tokens)
    assert embedding.num_actions == (spaces[1].n if isinstance(spaces[1], Discrete) else None)


def test_numbers_are_normalised_by_what_the_checkpoint_keeps() -> None:
    spaces = SPACES[2]
    embedding = SpaceEmbedding(env_of(*spaces), 16)
    mean, std = torch.arange(6.0), torch.tensor([1.0, 2, 3, 4, 5, 0])
    pair = (torch.zeros(2), torch.ones(2))
    embedding.fit(Statistics((mean, std), pair, (torch.ones(1), torch.full((1,), 4.0)), torch.empty(0, 2)))
    states = values(spaces[0], 2)
    expected = (states.flatten(1).float() - mean) / std.clamp(min=1)  # what never changes is divided by nothing
    torch.testing.assert_close(embedding.state(states), expected)
    again = SpaceEmbedding(env_of(*spaces), 16)
    again.load_state_dict(embedding.state_dict())
    again.fit(Statistics((mean + 1, std), pair, pair, torch.empty(0, 2)))  # other data does not change loaded numbers
    torch.testing.assert_close(again.state(states), expected)
    torch.testing.assert_close(again.reward(torch.full((3, 1), 5.0)), torch.ones(3, 1))
