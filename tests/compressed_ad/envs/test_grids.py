import json

import pytest
import torch

from zoo.compressed_ad.envs.base import Env, build_env
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom, DarkroomPermuted

ENVS = [
    Darkroom(),
    Darkroom(4, 7),
    Darkroom(17, 30, hard=True),
    Darkroom(6, 12, start=(0, 5)),
    Darkroom(5, 10, random_start=True),
    DarkroomPermuted(),
    DarkKeyToDoor(),
]
NAMES = [f"{env.name}-{env.grid_size}-{env.horizon}" for env in ENVS]


def some_tasks(env: Env, count: int) -> torch.Tensor:
    tasks = env.tasks()
    return tasks[torch.randint(len(tasks), (count,), generator=torch.Generator().manual_seed(7))]


@pytest.mark.parametrize("env", ENVS, ids=NAMES)
def test_worlds_in_lock_step_equal_worlds_one_by_one(env):
    """What one world does is compared with the original in tests/parity."""
    tasks = some_tasks(env, 20)
    worlds, single = env.start(tasks, range(20)), [env.start(tasks[[i]], [i]) for i in range(20)]
    actions = torch.randint(5, (2 * env.horizon, 20), generator=torch.Generator().manual_seed(1))
    for moment, chosen in enumerate(actions, 1):
        # half of them go for their goals, which a random walk seldom finds
        chosen = torch.where(torch.arange(20) < 10, worlds.optimal_actions(), chosen)
        step = worlds.step(chosen)
        expected = [world.step(action) for world, action in zip(single, chosen.split(1), strict=True)]
        for fields in zip(step, *expected, strict=True):
            assert torch.equal(fields[0], torch.cat(fields[1:]))
        assert bool(step.truncated.all()) == (worlds.time == 0) == (moment % env.horizon == 0)
        assert not step.terminated.any()
    assert step.next_states.dtype == worlds.states.dtype == torch.int64 and step.rewards.dtype == torch.float32


@pytest.mark.parametrize("env", ENVS, ids=NAMES)
def test_the_demonstrator_of_a_rebuilt_environment_reaches_the_best_return(env):
    env, tasks = build_env(json.loads(json.dumps(env.describe()))), some_tasks(env, 200)
    worlds = env.start(tasks, range(200))
    best = env.best_return(worlds.tasks, worlds.states)
    returns = sum(worlds.step(worlds.optimal_actions()).rewards for _ in range(env.horizon))
    assert torch.equal(returns, best.float())
    assert worlds.time == 0


def test_best_returns_known_in_closed_form():
    def best(env, tasks):
        return env.best_return(torch.tensor(tasks), env.start(torch.tensor(tasks)).states).tolist()

    assert best(Darkroom(), [[4, 4], [4, 5], [5, 6], [0, 0]]) == [20, 20, 18, 13]
    assert best(Darkroom(9, 3), [[0, 0], [4, 6]]) == [0, 2]
    assert best(Darkroom(hard=True), [[4, 4], [0, 0]]) == [1, 1]
    assert best(DarkroomPermuted(), [[0], [119]]) == [5, 5]
    assert best(DarkKeyToDoor(), [[4, 4, 4, 4], [0, 8, 8, 0]]) == [2, 2]
    assert best(DarkKeyToDoor(9, 10), [[0, 8, 8, 0], [0, 0, 8, 8]]) == [1, 1]


def test_random_starts_depend_on_seed_and_episode_alone():
    env = Darkroom(5, 2, random_start=True)
    seeds = [3, 4, 5, 2**64 - 1]
    together, alone = env.start(torch.zeros(4, 2, dtype=torch.int64), seeds), env.start(torch.zeros(1, 2).long(), [5])
    calls = []
    for _ in range(12):
        assert together.states[2].tolist() == alone.states[0].tolist()
        calls.append(tuple(together.states.flatten().tolist()))
        for worlds in (together, alone):
            worlds.step(torch.zeros(len(worlds.tasks), dtype=torch.int64))
            worlds.step(torch.zeros(len(worlds.tasks), dtype=torch.int64))
    assert len(set(calls)) == 12
    many = env.start(torch.zeros(20000, 2, dtype=torch.int64), range(20000)).states
    counts = torch.bincount(many[:, 0] * 5 + many[:, 1], minlength=25)
    assert (counts - 800).abs().max() < 150  # 800 expected, standard deviation 28
    with pytest.raises(ValueError, match="as many seeds"):
        env.start(torch.zeros(4, 2, dtype=torch.int64))


@pytest.mark.gpu
@pytest.mark.parametrize("env", ENVS, ids=NAMES)
def test_worlds_on_a_gpu_equal_worlds_on_the_cpu(env):
    tasks = some_tasks(env, 64)
    here, present = env.start(tasks, range(64)), env.start(tasks.cuda(), range(64))
    actions = torch.randint(5, (2 * env.horizon, 64), generator=torch.Generator().manual_seed(1))
    for chosen in actions:
        assert torch.equal(here.optimal_actions(), present.optimal_actions().cpu())
        one, other = here.step(chosen), present.step(chosen.cuda())
        assert torch.equal(one.next_states, other.next_states.cpu())
        assert torch.equal(one.rewards, other.rewards.cpu())
    assert torch.equal(env.best_return(here.tasks, here.states), env.best_return(present.tasks, present.states).cpu())
