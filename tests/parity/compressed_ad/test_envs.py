import numpy as np
import pytest
import torch

from zoo.compressed_ad.envs.grids import PERMUTATIONS, DarkKeyToDoor, Darkroom, DarkroomPermuted, Env


@pytest.fixture
def golden(folder):
    return np.load(folder / "env" / "env_golden.npz")


def replay(env: Env, task: np.ndarray, golden, name: str) -> None:
    """The original's sequence of actions leads to the original's states, rewards and ends."""
    worlds = env.start(torch.from_numpy(task.astype(np.int64))[None])
    assert worlds.states[0].tolist() == golden[f"{name}_reset"].tolist()
    steps = [worlds.step(torch.tensor([int(action)])) for action in golden[f"{name}_actions"]]
    assert [step.next_states[0].tolist() for step in steps] == golden[f"{name}_next_states"].tolist()
    assert [int(step.rewards) for step in steps] == golden[f"{name}_rewards"].tolist()
    if f"{name}_done" in golden:
        done = golden[f"{name}_done"]
        assert [[bool(step.dones)] * 2 for step in steps] == done.tolist()


@pytest.mark.parametrize("number", range(5))
def test_darkroom(golden, number):
    name = f"dr{number}"
    goal = golden[f"{name}_goal"]
    replay(Darkroom(), goal, golden, name)
    env = Darkroom()
    worlds = env.start(torch.from_numpy(goal)[None])
    assert int(env.best_return(worlds.tasks, worlds.states)) == int(golden[f"{name}_max_return"])
    for moment, action in enumerate(golden[f"{name}_opt_actions"]):
        assert int(worlds.optimal_actions()) == action
        step = worlds.step(worlds.optimal_actions())
        assert step.next_states[0].tolist() == golden[f"{name}_opt_next_states"][moment].tolist()
        assert int(step.rewards) == golden[f"{name}_opt_rewards"][moment]


@pytest.mark.parametrize("number", range(4))
def test_dark_key_to_door(golden, number):
    name = f"dk{number}"
    task = np.concatenate([golden[f"{name}_key"], golden[f"{name}_door"]])
    replay(DarkKeyToDoor(), task, golden, name)
    worlds = DarkKeyToDoor().start(torch.from_numpy(task)[None])
    results = 0
    for moment, action in enumerate(golden[f"{name}_opt_actions"]):
        assert int(worlds.optimal_actions()) == action
        reward = int(worlds.step(worlds.optimal_actions()).rewards)
        assert reward == golden[f"{name}_opt_rewards"][moment]
        results += reward
        assert (results >= 1) == golden[f"{name}_opt_have_key"][moment]
        assert (results == 2) == golden[f"{name}_opt_success"][moment]


@pytest.mark.parametrize("number", range(3))
def test_darkroom_permuted(golden, number):
    name = f"pm{number}"
    index = golden[f"{name}_perm_idx"]
    assert list(PERMUTATIONS[int(index)]) == golden[f"{name}_perm"].tolist()
    replay(DarkroomPermuted(), index[None], golden, name)


@pytest.mark.parametrize(
    ("env", "name", "seed", "share"),
    [
        (Darkroom(), "darkroom", 0, 0.9),
        (Darkroom(), "darkroom", 1, 0.9),
        (DarkKeyToDoor(), "dark_key_to_door", 0, 0.95),
        (DarkKeyToDoor(), "dark_key_to_door", 1, 0.95),
        (DarkroomPermuted(), "permuted", 0, 0.9),
    ],
)
def test_splits(golden, env, name, seed, share):
    for part, indices in zip(("train", "test"), env.split(seed, share), strict=True):
        expected = golden[f"split_{name}_seed{seed}_{part}"]
        assert env.tasks()[indices].tolist() == expected.reshape(len(expected), -1).tolist()
