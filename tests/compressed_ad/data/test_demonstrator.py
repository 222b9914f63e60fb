import pytest
import torch

from tests.compressed_ad.parts import assert_possible
from zoo.compressed_ad import DarkKeyToDoor, Darkroom, DarkroomPermuted, EpsilonCurriculum


@pytest.mark.parametrize(
    "env", [Darkroom(5, 10), Darkroom(5, 10, random_start=True), DarkroomPermuted(3, 9), DarkKeyToDoor(4, 12)]
)
def test_a_history_obeys_the_world(env):
    tasks = env.tasks()[:16]
    seeds = list(range(16))
    steps = EpsilonCurriculum(env, 3).histories(tasks, seeds)
    assert steps.length == 3 * env.horizon
    assert_possible(env, tasks, steps, seeds)


def test_from_random_to_optimal():
    env = Darkroom(5, 10)
    tasks = env.tasks().repeat(80, 1)
    steps = EpsilonCurriculum(env, 10, greedy_after=0.8).histories(tasks, range(len(tasks)))
    returns = steps.rewards.view(len(tasks), 10, 10).sum(dim=2).double()
    best = env.best_return(tasks, env.start(tasks).states).double()
    assert torch.equal(returns[:, 8], best)
    assert torch.equal(returns[:, 9], best)
    curve = returns.mean(dim=0)
    assert bool((curve.diff()[:8] > 0).all())
    shares = torch.bincount(steps.actions[:, 0], minlength=5) / len(tasks)  # the first step is always random
    assert (shares - 0.2).abs().max() < 0.05  # standard deviation 0.009


def test_who_explores_knows_nothing_before_the_goal_is_found():
    env = Darkroom(5, 10)
    tasks, seeds = env.tasks(), [7] * 25  # the same random numbers in every room
    steps = EpsilonCurriculum(env, 10, explores=True).histories(tasks, seeds)
    results = steps.rewards.cumsum(1) > 0
    for one, other in ((0, 24), (3, 21), (10, 14)):
        same = ~(results[one] | results[other])
        assert torch.equal(steps.actions[one][same], steps.actions[other][same]) and same.sum() > 3
    curve = steps.rewards.view(25, 10, 10).sum(2)
    assert torch.equal(curve[:, -1], env.best_return(tasks, torch.full((25, 2), 2)).float())
    greedy = EpsilonCurriculum(env, 4, greedy_after=1e-9, explores=True).histories(tasks, seeds)
    assert (greedy.rewards.view(25, 4, 10).sum(2)[:, 2] > 0).all()  # 25 cells are visited in 30 steps
