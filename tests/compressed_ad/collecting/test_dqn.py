"""DQN learns, keeps what happened, and its memory and targets are what they should be."""

import numpy as np
import pytest
import torch

from zoo.common import registry
from zoo.compressed_ad.collecting.base import StateNumbers
from zoo.compressed_ad.collecting.dqn import DQN, Inputs, Nets, Replay
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom
from zoo.compressed_ad.envs.gymnasium import GymnasiumEnv
from zoo.compressed_ad.envs.point_mass import PointMass

SMALL = DQN(minibatch=16, replay=64, target_every=3)
ALONE = DQN(shared=False, minibatch=16)


def corridor():
    pytest.importorskip("gymnasium")
    features = {"set.mirrored": [False, True]}
    return GymnasiumEnv("tests.compressed_ad.envs.scripted.Corridor", features=features, limit=7)


@pytest.fixture(autouse=True)
def admitted(monkeypatch):
    monkeypatch.setattr(registry, "_admitted", ["tests.compressed_ad"])


def returns(histories, horizon):
    return histories[..., 3].reshape(*histories.shape[:2], -1, horizon).sum(axis=-1, dtype=int).mean(axis=1)


@pytest.mark.parametrize("learner", [DQN(minibatch=32), DQN(shared=False, minibatch=32)], ids=["shared", "alone"])
def test_finds_goals(learner):
    env = Darkroom(3, 6)
    tasks = torch.tensor([[0, 0], [2, 1]])
    curve = returns(learner.histories(env, tasks, [1, 2], streams=4, steps=240), 6)
    best = env.best_return(tasks, torch.full((2, 2), 1)).numpy()
    assert (curve[:, -5:].mean(axis=1) > 0.75 * best).all()
    assert (curve[:, :3].mean(axis=1) < 0.5 * best).all()


def test_needs_to_know_what_was_found():
    """The nets see how many goals were found, and forget it when an episode ends."""
    env = DarkKeyToDoor(3, 4)
    numbers = StateNumbers(env, 1)
    worlds = env.start(torch.tensor([[2, 1, 1, 1]]))  # the key below the middle, the door in it
    assert numbers.count == 9 * 3
    seen = []
    for action in (0, 1, 4, 4):
        before = int(numbers.look(worlds.states))
        seen.append((before, int(numbers.follow(worlds.step(torch.tensor([action]))))))
    middle, below = 4 * 3, 7 * 3
    assert seen == [(middle, below + 1), (below + 1, middle + 2), (middle + 2, middle + 2), (middle + 2, middle + 2)]
    assert int(numbers.look(worlds.states)) == middle


@pytest.mark.parametrize("learner", [SMALL, ALONE], ids=["shared", "alone"])
@pytest.mark.parametrize("env", [Darkroom(3, 4), DarkKeyToDoor(3, 4), None], ids=["room", "key", "corridor"])
def test_history_depends_on_its_own_seed_alone(env, learner):
    env = env or corridor()
    tasks, seeds = env.tasks()[[0, 1]], [11, 12]
    together = learner.histories(env, tasks, seeds, streams=3, steps=40)
    alone = [learner.histories(env, tasks[i : i + 1], seeds[i : i + 1], streams=3, steps=40) for i in range(2)]
    assert np.array_equal(together, np.concatenate(alone))
    assert not np.array_equal(together[0, 0], together[0, 1])


def test_memory_holds_the_newest():
    memory = Replay(4, learners=2, actors=2)
    for time in range(3):
        memory.add(torch.tensor([[2 * time, 2 * time + 1]] * 2), torch.arange(4) + 4 * time)
        assert memory.size == min(2 * time + 2, 4)
    numbers = (torch.arange(4).double() / 4)[:, None].expand(-1, 2)
    places, values = memory.sample(numbers)
    assert places.tolist() == [[4, 5, 2, 3]] * 2
    assert values.tolist() == [[8, 9, 4, 5], [10, 11, 6, 7]]


def test_a_step_moves_values_to_what_they_should_be():
    """One kind of transition, which ends its episode with a reward of 1: its value tends to 1."""
    nets = Nets(DQN(minibatch=8, discount=0.9), [1, 2], Inputs(Darkroom(2, 4), 2, 1), 5)
    memory = Replay(8, 2, 1)
    for _ in range(8):
        memory.add(torch.tensor([[0], [3]]), torch.tensor([2, 1]), torch.ones(2), torch.tensor([[1], [2]]),
                   torch.ones(2, dtype=torch.bool))  # fmt: skip
    first = nets._target.clone()
    for number in range(120):
        nets.learn(memory)
        assert torch.equal(nets._target, first) == (number < 19)
    values = nets.values(nets.weights.detach(), torch.tensor([[0], [3]]))
    torch.testing.assert_close(values[[0, 1], 0, [2, 1]], torch.ones(2), atol=0.02, rtol=0)


def test_a_box_is_scaled_by_what_was_seen():
    inputs = Inputs(PointMass(8, 6), 2, 3)
    states = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    seen = inputs.look(states)
    rows = inputs.rows(seen)
    assert seen.shape == (2, 3, 2) and rows.shape == (2, 3, 16)
    torch.testing.assert_close(rows[..., :2].mean(1), torch.zeros(2, 2), atol=1e-5, rtol=0)
    assert not rows[..., 2:].any()


def test_what_it_does_not_learn_is_refused():
    with pytest.raises(ValueError, match="dqn learns Discrete actions, and no pictures; point_mass has"):
        DQN().check(PointMass(8, 6), 12)


@pytest.mark.parametrize(
    "change", [{"replay": 4}, {"minibatch": 0}, {"explored": 0.0}, {"discount": 1.5}, {"learning_rate": 0.0}]
)
def test_values_out_of_range(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))} is"):
        DQN(**change)
