import math

import pytest
import torch

from zoo.common.tensors import sample_uniforms
from zoo.flow.process import time_samplers as ts

ALL = [ts.GridTimes(), ts.UniformTimes(), ts.LogitNormalTimes(), ts.ShiftedTimes(ts.LogitNormalTimes(), 3.0)]


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


def test_validation_looks_at_times_that_are_trained():
    assert ts.GridTimes(1).evaluation_times().tolist() == [0.0]
    assert ts.GridTimes(10).evaluation_times().tolist() == [number / 10 for number in range(10)]
    assert ts.ShiftedTimes(ts.GridTimes(2), 3.0).evaluation_times().tolist() == [0.0, 0.25]
    for sampler in ALL:
        torch.testing.assert_close(sampler.evaluation_times(), torch.arange(10, dtype=torch.float64) / 10 + 0.05)


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
