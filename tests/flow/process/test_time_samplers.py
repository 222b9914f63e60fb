from __future__ import annotations

import math

import pytest
import torch

from zoo.common.tensors import sample_uniforms
from zoo.flow.process import time_samplers as ts

ALL = [
    ts.GridTimes(),
    ts.UniformTimes(),
    ts.LogitNormalTimes(),
    ts.UShapedTimes(),
    ts.EdmSkewedTimes(),
    ts.ModeTimes(),
    ts.ShiftedTimes(ts.LogitNormalTimes(), 3.0),
]


def draw(sampler: ts.TimeSampler, count: int = 20000) -> torch.Tensor:
    return sampler(sample_uniforms(range(count), 1)[0])


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
        lambda: ts.ModeTimes(1.76),
        lambda: ts.ShiftedTimes(ts.UniformTimes(), 0),
    ],
)
def test_errors(make):
    with pytest.raises(ValueError, match="not"):
        make()


def test_mode_has_its_quantiles_in_the_other_direction():
    u = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    for scale in (-1.0, 0.0, 1.29, 2 / (math.pi - 2)):
        t = ts.ModeTimes(scale).quantile(u)
        noise_level = 1 - u - scale * (torch.cos(math.pi / 2 * u) ** 2 - 1 + u)  # the paper's time
        torch.testing.assert_close(1 - t, noise_level)
        assert bool((t.diff() > -1e-12).all())
    t = ts.ModeTimes(1.29).quantile(torch.linspace(0, 1, 1002, dtype=torch.float64))
    assert t.diff().argmin().item() in range(490, 512)  # densest in the middle


def test_shift_is_that_of_the_noise_level_and_composes():
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    level = 1 - t
    torch.testing.assert_close(1 - ts.shifted(t, 3.0), 3 * level / (1 + 2 * level))
    torch.testing.assert_close(ts.shifted(ts.shifted(t, 2.0), 1.5), ts.shifted(t, 3.0))
    assert torch.equal(ts.shifted(t, 1.0), t) and ts.shifted(0.5, 3.0) == 0.25
    u = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    # a shift moves the mean of the logits, that of a logit-normal included
    moved = ts.ShiftedTimes(ts.LogitNormalTimes(0.5, 2.0), 3.0).quantile(u)
    torch.testing.assert_close(moved, ts.LogitNormalTimes(0.5 - math.log(3), 2.0).quantile(u))


def test_draws_belong_to_the_item() -> None:
    together, given = ts.seeded_draws(ts.UniformTimes(), 0.5, list(range(40)))
    apart = [ts.seeded_draws(ts.UniformTimes(), 0.5, [seed]) for seed in range(40)]
    assert together.tolist() == [float(t) for t, _ in apart] and given.tolist() == [int(kept) for _, kept in apart]
    assert 8 < int(given.sum()) < 32 and len(set(together.tolist())) == 40
