"""Environments of gymnasium in lock-step: true successors, no dead steps, the same in every mode of autoreset."""

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from zoo.common import registry
from zoo.compressed_ad.data.history import Recorder
from zoo.compressed_ad.envs.base import build_env, random_actions
from zoo.compressed_ad.envs.gymnasium import GymnasiumEnv
from zoo.compressed_ad.envs.schema import Box, Discrete

pytest.importorskip("gymnasium")
HERE = "tests.compressed_ad.envs.scripted"
LENGTHS = [2, 3, 5, 4, 7, 2, 6]
CUT = 5
MODES = ("NextStep", "SameStep", "Disabled")


@pytest.fixture(autouse=True)
def admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_allowed", ["tests.compressed_ad"])


def counters(name: str, arguments: dict[str, Any], limit: int = CUT) -> GymnasiumEnv:
    return GymnasiumEnv(f"{HERE}.{name}", {"make.length": LENGTHS}, arguments, limit)


def history(env: GymnasiumEnv, count: int, steps: int = 17) -> np.ndarray:
    """What environments of the first tasks note; the actions count on."""
    tasks = env.tasks()[:count]
    envs = env.start(tasks, range(count))
    recorder = Recorder(env.schema, count, steps)
    for time in range(steps):
        states, actions = envs.states, (torch.arange(count)[:, None] / 64 + time / 8 - 1).expand(count, 2)
        recorder.add(time, states, actions, envs.step(actions))
    return recorder.histories


def expected(count: int, steps: int = 17) -> np.ndarray:
    """The same by hand: counters from 0 to the smaller of length and limit, again and again."""
    rows = np.zeros((count, steps), dtype=counters("Counter", {}).schema.dtype)
    for row in range(count):
        end = min(LENGTHS[row], CUT)
        for time in range(steps):
            at, action = time % end, row / 64 + time / 8 - 1
            over = at + 1 == end
            rows[row, time] = (
                [at, LENGTHS[row]], [action, action], action, [at + 1, LENGTHS[row]],
                over and end == LENGTHS[row], over and end == CUT,
            )  # fmt: skip
    return rows


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("mode", ["single", *MODES])
def test_every_mode_of_autoreset_gives_the_same_histories(mode: str, count: int) -> None:
    name, arguments = ("Counter", {}) if mode == "single" else ("SyncCounters", {"mode": mode, "cut": CUT})
    found, wanted = history(counters(name, arguments), count), expected(count)
    for field in wanted.dtype.names or ():
        np.testing.assert_array_equal(found[field], wanted[field], err_msg=field)


def test_vectors_in_processes_do_so_too() -> None:
    for mode in MODES:
        assert np.array_equal(history(counters("AsyncCounters", {"mode": mode, "cut": CUT}), 2), expected(2))


def test_a_vector_that_resets_late_and_knows_no_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="SAME_STEP, or DISABLED with reset_mask"):
        history(counters("Stubborn", {}), 2)
    assert np.array_equal(history(counters("Stubborn", {}), 1), expected(1))


def test_cartpole_with_other_physics_and_swapped_actions() -> None:
    features = {"set.length": [0.5, 1.0], "actions": [[0, 1], [1, 0]]}
    env = GymnasiumEnv("CartPole-v1", features)
    assert (env.schema.limit, env.schema.action, len(env.tasks())) == (500, Discrete(2), 4)
    assert env.schema.observation.shape == (4,)
    inner = env.make([0, 1]).unwrapped
    assert inner.polemass_length == inner.masspole * 1.0
    envs = env.start(env.tasks()[[0, 2]], [5, 5])
    assert torch.equal(*envs.states)
    pushed = envs.step(torch.tensor([0, 1])).next_states  # the same to the cart, where actions are swapped
    assert torch.equal(*pushed)
    again = build_env(json.loads(json.dumps(env.describe())))
    assert again.describe() == env.describe()
    assert again.schema == env.schema
    assert pickle.loads(pickle.dumps(env)).describe() == copy.deepcopy(env).describe() == env.describe()


def test_episodes_depend_on_seed_and_number_alone() -> None:
    env = GymnasiumEnv(f"{HERE}.Corridor", {"actions": [[0, 1], [1, 0]]}, limit=4, reward=[0, 1])
    assert (env.schema.observation, env.schema.action) == (Discrete(4), Discrete(2))
    assert env.oracle_returns(env.tasks()).tolist() == [4, 4]

    def starts(seeds: list[int]) -> list[list[int]]:
        envs, found = env.start(env.tasks()[:1].expand(len(seeds), 1), seeds), []
        for _ in range(12):  # actions to the left never end an episode early
            found.append(envs.states.tolist())
            envs.step(torch.zeros(len(seeds), dtype=torch.int64))
        return torch.tensor(found)[::4].T.tolist()

    assert starts([3, 9, 11])[1] == starts([9])[0]
    assert len({tuple(each) for each in starts(list(range(8)))}) > 3


@pytest.mark.parametrize(
    ("id", "features", "message"),
    [
        (f"{HERE}.Counter", {"length": [1, 2]}, "a key is make.NAME, set.NAME or actions"),
        (f"{HERE}.Counter", {"make.length": [1]}, "at least two tasks"),
        (f"{HERE}.Counter", {"make.length": [1, 2]}, "has no limit of steps"),
        (f"{HERE}.Counter", {"actions": [[1, 1], [2, 1]]}, "factors -1, 0 or 1"),
        ("CartPole-v1", {"actions": [[0, 1], [1, 1]]}, "permutations of 0 to 1"),
        ("CartPole-v1", {"set.width": [1, 2]}, "no attribute 'width'"),
        ("os.path.join", {"make.a": [1, 2]}, "--allow-import"),
        ("Blackjack-v1", {"make.natural": [True, False]}, "expected Discrete or Box"),
    ],
)
def test_what_cannot_be_is_refused(id: str, features: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GymnasiumEnv(id, features, limit=None if "limit" in message else 9)


def test_random_actions_fill_the_box() -> None:
    space = counters("Counter", {}).schema.action
    assert isinstance(space, Box)
    drawn = random_actions(space, torch.rand(2, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert drawn.dtype == torch.float32
    assert drawn.amin() >= -2 and drawn.amax() <= 2
    assert drawn.std(0).allclose(torch.full((2,), 4 / 12**0.5), atol=0.05)
