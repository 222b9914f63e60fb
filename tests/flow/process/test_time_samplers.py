from __future__ import annotations

import math

import pytest
import torch

from zoo.common.draws import seeded_uniforms
from zoo.flow.process import time_samplers as ts

ALL = [ts.GridTimes(), ts.UniformTimes(), ts.LogitNormalTimes(), ts.UShapedTimes(), ts.EdmSkewedTimes()]


def draw(sampler: ts.TimeSampler, count: int = 20000) -> torch.Tensor:
    return sampler(seeded_uniforms(range(count), 1)[0])


@pytest.mark.parametrize("sampler", [*ALL, ts.LogitNormalTimes(30.0)], ids=lambda s: type(s).__name__)
def test_times_lie_in_the_half_open_interval_and_repeat(sampler):
    t = draw(sampler)
    assert t.dtype == torch.float32 and t.shape == (20000,)
    assert 0 <= t.min() and t.max() < 1
    assert torch.equal(t, draw(sampler))


def test_grid_has_exactly_its_points():
    t = draw(ts.GridTimes(4))
    assert t.unique().tolist() == [0.0, 0.25, 0.5, 0.75]
    assert draw(ts.GridTimes()).max().item() == pytest.approx(0.999)


def test_logit_normal_quantiles():
    t = draw(ts.LogitNormalTimes(0.5, 2.0))
    logits = torch.logit(t)
    assert logits.mean().item() == pytest.approx(0.5, abs=0.05) and logits.std().item() == pytest.approx(2, abs=0.05)


def test_u_shape_has_its_density():
    t = draw(ts.UShapedTimes(4.0), 200000)
    a = 4.0

    def cumulative(x: float) -> float:
        return ((math.exp(a * x) - 1) + (math.exp(a) - math.exp(a * (1 - x)))) / (2 * (math.exp(a) - 1))

    for x in (0.1, 0.3, 0.5, 0.8):
        assert (t < x).float().mean().item() == pytest.approx(cumulative(x), abs=0.005)


def test_edm_median_and_floor():
    t = draw(ts.EdmSkewedTimes())
    assert t.median().item() == pytest.approx(1 / (1 + math.exp(-1.2)), abs=0.01)
    assert draw(ts.EdmSkewedTimes(mean=30)).unique().tolist() == pytest.approx([1e-4])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ts.GridTimes(0),
        lambda: ts.LogitNormalTimes(0, 0),
        lambda: ts.UShapedTimes(0),
        lambda: ts.EdmSkewedTimes(0, -1),
    ],
)
def test_errors(make):
    with pytest.raises(ValueError, match="not"):
        make()


def test_draws_belong_to_the_item() -> None:
    together, given = ts.seeded_draws(ts.UniformTimes(), 0.5, list(range(40)))
    apart = [ts.seeded_draws(ts.UniformTimes(), 0.5, [seed]) for seed in range(40)]
    assert together.tolist() == [float(t) for t, _ in apart] and given.tolist() == [int(kept) for _, kept in apart]
    assert 8 < int(given.sum()) < 32 and len(set(together.tolist())) == 40
