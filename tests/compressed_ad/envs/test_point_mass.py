"""The point mass: its oracle and its random walk against simulation."""

import pytest
import torch

from zoo.compressed_ad.envs.point_mass import PointMass


@pytest.mark.parametrize("env", [PointMass(), PointMass(goals=5, horizon=7, speed=0.3)], ids=("plain", "odd"))
def test_the_straight_line_earns_what_the_closed_form_states(env: PointMass) -> None:
    tasks = env.tasks()
    envs, total = env.start(tasks), torch.zeros(len(tasks), dtype=torch.float64)
    for _ in range(env.horizon):
        transition = envs.step(envs.optimal_actions())
        total += transition.rewards
    assert transition.truncated.all() and not transition.terminated.any()
    assert not envs.states.any()  # the next episode has begun
    torch.testing.assert_close(total, env.oracle_returns(tasks), atol=1e-5, rtol=0)
