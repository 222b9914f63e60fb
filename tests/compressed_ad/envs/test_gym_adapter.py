from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom
from zoo.compressed_ad.envs.gym_adapter import IDS, make_single, make_vector, register


@pytest.fixture
def gymnasium():
    module = pytest.importorskip("gymnasium")
    register()
    return module


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("darkroom", {"task": (5, 6)}),
        ("darkroom", {"task": (5, 6), "random_start": True}),
        ("darkroom_permuted", {"task": (57,)}),
        ("dark_key_to_door", {"task": (1, 2, 3, 4), "grid_size": 5, "horizon": 12}),
    ],
)
def test_gymnasium_accepts_a_single_world(gymnasium, name, arguments):
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(IDS[name], **arguments).unwrapped, skip_render_check=True)


def test_a_single_world_lives_for_one_horizon(gymnasium):
    world = gymnasium.make("zoo/Darkroom-v0", task=(5, 6), horizon=5)
    observation, info = world.reset(seed=0)
    assert (observation.tolist(), observation.dtype, info) == ([4, 4], np.int32, {})
    seen = [world.step(action) for action in (0, 2, 2, 4, 0)]
    assert [step[0].tolist() for step in seen] == [[5, 4], [5, 5], [5, 6], [5, 6], [6, 6]]
    assert [step[1] for step in seen] == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert [step[2] for step in seen] == [step[3] for step in seen] == [False] * 4 + [True]
    assert world.reset()[0].tolist() == [4, 4]


def test_a_single_world_tells_of_success(gymnasium):
    world = gymnasium.make("zoo/DarkKeyToDoor-v0", task=(4, 5, 5, 5), horizon=3)
    for _ in range(2):
        world.reset()
        infos = [world.step(action)[4] for action in (2, 0, 4)]
        assert [info["success"] for info in infos] == [False, True, True]
        assert [info["already_success"] for info in infos] == [False, False, True]


def test_random_starts_follow_the_seed(gymnasium):
    world = gymnasium.make("zoo/Darkroom-v0", task=(0, 0), random_start=True, horizon=2)

    def starts(seed):
        first = world.reset(seed=seed)[0].tolist()
        more = []
        for _ in range(5):
            world.step(4)
            more.append(world.reset()[0].tolist())
        return [first, *more]

    assert starts(3) == starts(3)
    assert starts(3) != starts(4)


def test_vector_worlds_equal_our_own(gymnasium):
    env = DarkKeyToDoor(4, 6)
    tasks = env.tasks()[::20]
    vector = gymnasium.make_vec("zoo/DarkKeyToDoor-v0", tasks=tasks.tolist(), grid_size=4, horizon=6)
    assert vector.num_envs == len(tasks)
    assert vector.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.SAME_STEP
    worlds = env.start(tasks)
    observations, _ = vector.reset(seed=0)
    found = torch.zeros(len(tasks), dtype=torch.int64)
    for _ in range(15):
        assert observations in vector.observation_space
        assert observations.tolist() == worlds.states.tolist()
        actions = worlds.optimal_actions()
        observations, rewards, terminated, truncated, info = vector.step(actions.numpy())
        step = worlds.step(actions)
        found = found + step.rewards
        assert rewards.tolist() == step.rewards.tolist()
        assert terminated.tolist() == truncated.tolist() == [step.done] * len(tasks)
        assert info["success"].tolist() == (found == 2).tolist()
        assert ("final_obs" in info) == step.done
        if step.done:
            assert info["final_obs"].tolist() == step.next_states.tolist()
            found = torch.zeros_like(found)


def test_vector_worlds_repeat_the_tasks(gymnasium):
    vector = gymnasium.make_vec("zoo/Darkroom-v0", num_envs=5, tasks=[(4, 4), (0, 0)])
    vector.reset(seed=1)
    assert vector.step(np.full(5, 4))[1].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="3 tasks need at least as many environments"):
        make_vector("darkroom", [(0, 0)] * 3, num_envs=2)


def test_gymnasiums_own_vector_of_single_worlds(gymnasium):
    vector = gymnasium.make_vec("zoo/Darkroom-v0", num_envs=2, vectorization_mode="sync", task=(4, 4))
    vector.reset(seed=1)
    assert vector.step(np.array([4, 0]))[1].tolist() == [1.0, 0.0]


def test_a_wrong_task_is_refused(gymnasium):
    with pytest.raises(ValueError, match="darkroom are rows of 2 integers"):
        make_single("darkroom", (9, 0), random_start=True)
    with pytest.raises(ValueError, match="name is one of"):
        make_single("maze", (0, 0))


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ImportError, match="extra rl"):
        make_single("darkroom", (0, 0))
    assert Darkroom().start(torch.tensor([[0, 0]])).time == 0
