import math

import numpy as np
import pytest

from zoo.common.statistics import bootstrap_mean


def test_bootstrap_interval_is_that_of_the_normal_law():
    values = np.random.default_rng(1).normal(3.0, 2.0, 2000)
    mean, low, high = bootstrap_mean(values)
    half = 1.96 * values.std(ddof=1) / math.sqrt(len(values))
    assert mean == pytest.approx(values.mean())
    assert mean - low == pytest.approx(half, rel=0.08) and high - mean == pytest.approx(half, rel=0.08)
    assert bootstrap_mean(values) == (mean, low, high)


def test_weighted_mean_is_the_rate_of_the_whole_set():
    # 1 error in 2 words and 0 in 8: one word of ten is wrong.
    assert bootstrap_mean(np.array([0.5, 0.0]), np.array([2.0, 8.0])).mean == pytest.approx(0.1)


def test_few_values_have_no_interval():
    assert all(math.isnan(value) for value in bootstrap_mean(np.array([])))
    one = bootstrap_mean(np.array([4.0]))
    assert one.mean == 4.0 and math.isnan(one.low) and math.isnan(one.high)
