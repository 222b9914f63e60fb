"""Heads of actions: densities against torch.distributions, draws within bounds and distributed as the density says."""

import math
from typing import Any

import numpy as np
import torch

from tests.compressed_ad.parts import env_of
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad import BinsHead
from zoo.compressed_ad.envs.spaces import Box, Discrete
from zoo.compressed_ad.nets.steps import Statistics

LOW, HIGH = [-1.0, 0.0, 2.0], [3.0, 0.5, 12.0]
ENV = env_of(Discrete(2), Box(np.array(LOW, np.float32), np.array(HIGH, np.float32)))


def random_parameters(head: Any, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, head.out_features, generator=torch.Generator().manual_seed(1))


def test_draws_stay_within_bounds_and_follow_the_density() -> None:
    head = BinsHead(ENV, 8, 5)
    parameters = random_parameters(head, 1)
    many = 20_000
    sampled = head.sample(parameters.expand(many, -1), sample_uniforms(range(many), head.numbers))
    wide = head.sample(100 * random_parameters(head, 300), sample_uniforms(range(300), head.numbers))
    for actions in (sampled, wide):
        assert ((actions >= torch.tensor(LOW)) & (actions <= torch.tensor(HIGH))).all()
    shares = parameters.view(3, 5).softmax(1)
    for number in range(3):
        counts = torch.histc(sampled[:, number], 5, LOW[number], HIGH[number]) / many
        torch.testing.assert_close(counts, shares[number], atol=0.02, rtol=0)


def test_quantile_bins_hold_equally_many_and_cover_the_box() -> None:
    head = BinsHead(ENV, 8, 10, quantiles=True)
    sample = torch.tensor(LOW) + torch.rand(5000, 3).square() * (torch.tensor(HIGH) - torch.tensor(LOW))
    nothing = (torch.empty(0), torch.empty(0))
    head.fit(Statistics(nothing, nothing, nothing, sample))
    assert head.edges[:, 0].tolist() == LOW
    assert torch.allclose(head.edges[:, -1], torch.tensor(HIGH))
    for number in range(3):
        counts = torch.histogram(sample[:, number], head.edges[number]).hist / 5000
        assert (counts - 0.1).abs().max() < 0.03
    again, edges = BinsHead(ENV, 8, 10, quantiles=True), head.edges.clone()
    again.load_state_dict(head.state_dict())
    again.fit(Statistics(nothing, nothing, nothing, sample.flip(1)))  # other data does not move loaded edges
    assert torch.equal(again.edges, edges)
    head = BinsHead(ENV, 8, 10, quantiles=True)
    head.fit(Statistics(nothing, nothing, nothing, sample[:1].expand(9, -1)))  # all alike
    assert (head.edges.diff(dim=1) > 0).all()
    density = -head.losses(torch.zeros(1, 1, head.out_features), torch.tensor([[[0.0, 0.2, 3.0]]]))
    assert math.isfinite(float(density))
