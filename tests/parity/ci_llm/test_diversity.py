import pytest
import torch

from tests.numeric import assert_agrees
from zoo.ci_llm.losses.distances import pairwise_sliced_wasserstein, random_directions
from zoo.ci_llm.losses.diversity import Diversity, text_representations

STRATEGIES = ["last_token", "mean_pool", "first_token"]


@pytest.mark.parametrize("mask", [True, False], ids=["masked", "original"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_representations(io, side, strategy, mask):
    hidden, attention = io[f"{side}.agent_last_hidden"], io[f"{side}.attention_mask"]
    expected = io[f"{side}.repr_{'masked' if mask else 'original'}.{strategy}"]
    results = text_representations(hidden, attention, None, strategy, mask)
    torch.testing.assert_close(results, expected, atol=1e-6, rtol=0)


def directions_of(uniform):
    """Directions from torch's uniform draws, which are the same everywhere; its normal ones differ in the last place.

    Source: torch, normal_fill: Box and Muller's transform on blocks of 16.
    """
    first, second = uniform.view(3, -1, 2, 8).unbind(2)
    radius, angle = (-2 * (1 - first).log()).sqrt(), 2 * torch.pi * second
    sampled = torch.stack([radius * angle.cos(), radius * angle.sin()], 2).view_as(uniform)
    return sampled / sampled.norm(dim=1, keepdim=True)


def test_directions_are_drawn_as_by_the_original(io, scalars):
    seed, recorded = 1000 + scalars["seed"], io["swd.projections_per_pair"]
    torch.manual_seed(seed)
    results = random_directions(32, scalars["swd_num_projections"], pairs=3)
    torch.manual_seed(seed)
    uniform = torch.rand(3, 32, scalars["swd_num_projections"])
    for directions in (recorded, results):
        assert_agrees(directions_of, uniform, recorded=directions)
    assert scalars["swd.pair_order"] == torch.combinations(torch.arange(3)).tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_distance_of_the_original(io, scalars, side, strategy):
    clouds = io[f"{side}.repr_original.{strategy}"]
    expected = scalars[f"{side}.swd_original.{strategy}"]
    torch.manual_seed(1000 + scalars["seed"])
    for directions in (io["swd.projections_per_pair"], random_directions(32, 64, pairs=3)):
        assert Diversity().value(clouds, directions=directions).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_pair(io, scalars, side):
    results = pairwise_sliced_wasserstein(io[f"{side}.repr_original.last_token"], io["swd.projections_per_pair"])
    assert results.tolist() == pytest.approx(scalars[f"{side}.swd_original.last_token.per_pair"], rel=1e-5)


def test_masked_distance_and_its_part_of_the_total(io, scalars):
    term = Diversity(weight=scalars["lambda_sw"])
    points = term.represent(io["right.agent_last_hidden"], io["right.attention_mask"])
    value = term.value(points, directions=io["swd.projections_per_pair"])
    assert value.item() == pytest.approx(scalars["correct.right.swd_masked_last_token"], rel=1e-5)
    total = scalars["correct.right.task"] + term.loss(value).item()
    assert total == pytest.approx(scalars["correct.right.total"], abs=1e-6)
