"""Simple learners: what they do by hand, and that they learn what they can."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo.compressed_ad.envs.baselines import oracle_return, random_return
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.point_mass import PointMass
from zoo.compressed_ad.evaluation.simple_learners import (
    DISCOUNT,
    Gram,
    Learner,
    Replay,
    simple_learners,
    simple_returns,
)


def episode(learner: Learner, steps: list[tuple[int, int, float]]) -> None:
    for number, (state, action, reward) in enumerate(steps):
        learner.observe(np.array(state), np.array(action), reward, number + 1 == len(steps))


@pytest.mark.parametrize(("best", "expected"), [(False, [1, 1]), (True, [2, 0])])
def test_replays_repeat_the_last_or_the_best_success(best: bool, expected: list[int]) -> None:
    learner = Replay(best)
    assert learner.act(np.array(0)) is None
    for actions, paid in (((0, 0), 0.0), ((2, 0), 5.0), ((1, 1), 3.0), ((3, 3), 1.0)):  # the last is below the mean
        episode(learner, [(0, actions[0], 0.0), (1, actions[1], paid)])
    results = []
    for state in (7, 8):
        results.append(int(learner.act(np.array(state))))
        learner.observe(np.array(state), np.array(0), 0.0, False)
    assert results == expected
    assert learner.act(np.array(9)) is None  # beyond the end of what it repeats


def test_grams_take_what_paid_best_in_the_same_situation() -> None:
    one, two = Gram(1, 2), Gram(2, 2)
    for learner in (one, two):
        episode(learner, [(0, 0, 0.0), (5, 0, 1.0)])
        episode(learner, [(0, 1, 0.0), (5, 1, 4.0)])
        episode(learner, [(0, 0, 0.0), (5, 1, 0.0)])
    assert (one.act(np.array(5)), one.act(np.array(6))) == (1, None)  # 1 against (4 + 0) / 2
    assert one._sums[(np.array(0).tobytes(),)].tolist() == [[DISCOUNT, DISCOUNT * 4], [2, 1]]
    two.observe(np.array(0), np.array(0), 0.0, False)
    assert two.act(np.array(5)) == 0  # after (0, 0, 0) action 1 paid 0
    two.observe(np.array(9), np.array(0), 0.0, False)
    assert two.act(np.array(5)) == 1  # not seen after 9: as the bandit of the state


def test_learners_learn_and_depend_on_their_own_seed_alone() -> None:
    room = Darkroom(3, 6)
    tasks = room.tasks()
    random, best = random_return(room, tasks).mean(), oracle_return(room, tasks).mean()
    returns = simple_returns(room, "bandit per state", tasks, range(9), 30)
    assert returns[:, -10:].mean() > random + 0.6 * (best - random)
    np.testing.assert_array_equal(simple_returns(room, "bandit per state", tasks[3:4], [3], 30)[0], returns[3])
    repeated = simple_returns(room, "best of history", room.tasks(), range(9), 20)
    assert (np.maximum.accumulate(repeated, 1)[:, 5:] == repeated[:, 5:]).mean() > 0.9  # deterministic, so kept
    assert repeated[:, -1].mean() > repeated[:, 0].mean() + 1


def test_actions_in_a_box_are_repeated_as_they_were() -> None:
    env = PointMass(4, 5)
    assert list(simple_learners(env)) == ["last success", "best of history"]
    returns = simple_returns(env, "best of history", env.tasks(), range(4), 6)
    assert returns.shape == (4, 6) and (np.diff(returns[:, -3:]) == 0).all()
    assert torch.isfinite(torch.from_numpy(returns)).all()
