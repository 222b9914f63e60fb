import numpy as np
import pytest

from zoo.compressed_ad.evaluation.summary import episodes_to_reach, last_episodes, speed, summarise


def test_levels_are_reached_when_the_moving_average_is_there() -> None:
    curve = np.concatenate([np.zeros(40), np.full(60, 10.0)])
    assert speed(curve, 10.0) == {"50%": 50, "75%": 55, "90%": 58}
    assert speed(curve - 20, -10.0) == {}
    assert episodes_to_reach(curve, 11.0) is None
    assert episodes_to_reach(curve, 0.0) == 20
    assert episodes_to_reach(np.arange(5.0), 2.0) == 3  # each episode alone
    assert [last_episodes(count) for count in (1, 2, 9, 100, 500)] == [1, 1, 5, 50, 50]


def test_the_summary_of_a_known_curve() -> None:
    curve = np.concatenate([np.zeros(40), np.full(60, 10.0)])
    returns = np.stack([curve, curve + 2])[:, None].repeat(3, 1)
    facts = summarise(returns, np.array([1.0, 1.0]), np.array([14.0, 16.0]))
    assert facts["mean"]["mean"] == pytest.approx(7.0)
    assert facts["first"]["mean"] == pytest.approx(1.0)
    assert facts["last"] == {"mean": pytest.approx(11.0), "low": pytest.approx(10.0), "high": pytest.approx(12.0)}
    assert facts["regret"]["mean"] == pytest.approx(15 - 7)
    assert facts["gain"] == pytest.approx((11 - 1) / (15 - 1))
    assert summarise(returns, np.ones(2), np.ones(2))["gain"] is None
