"""Environments of gymnasium: true successors, seeded resets; no value of a description becomes an import or a path."""

import copy
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.compressed_ad.envs.scripted import PACKAGE
from zoo.common import registry
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad.collecting.collect import collect
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.data.history_writer import Recorder
from zoo.compressed_ad.envs.base import build_env
from zoo.compressed_ad.envs.gymnasium_env import GymnasiumEnv
from zoo.compressed_ad.envs.spaces import Discrete

LENGTHS = [2, 3, 5, 4, 7, 1, 6]
LIMIT = 5


def counters() -> GymnasiumEnv:
    return GymnasiumEnv("Counter-v0", [{"length": length} for length in LENGTHS], limit=LIMIT)


@pytest.mark.parametrize("count", [1, 7])
def test_histories_have_true_successors_and_no_step_without_effect(count: int, steps: int = 17) -> None:
    env = counters()
    envs, recorder = env.start(env.tasks()[:count], range(count)), Recorder(env.schema, count, steps)
    for time in range(steps):
        states, actions = envs.states, (torch.arange(count)[:, None] / 64 + time / 8 - 1).expand(count, 2)
        recorder.add(states, actions, envs.step(actions))
    expected = np.zeros((count, steps), dtype=env.schema.dtype)
    for row in range(count):
        end = min(LENGTHS[row], LIMIT)
        for time in range(steps):
            at, action = time % end, row / 64 + time / 8 - 1
            last = at + 1 == end
            expected[row, time] = (
                [at, LENGTHS[row]], [action, action], action, [at + 1, LENGTHS[row]],
                last and end == LENGTHS[row], last and end == LIMIT,
            )  # fmt: skip
    for field in expected.dtype.names or ():
        np.testing.assert_array_equal(recorder.histories[field], expected[field], err_msg=field)


def test_resets_depend_on_seed_and_episode_alone_and_share_no_number_with_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = GymnasiumEnv("Corridor-v0", [{"mirrored": True}, {"mirrored": False}], limit=4, reward=[0, 1])
    assert (env.schema.observation, env.schema.action) == (Discrete(4), Discrete(2))
    assert env.oracle_returns(env.tasks()).tolist() == [4, 4]
    seeds: list[int] = []
    reset = gymnasium.vector.SyncVectorEnv.reset
    monkeypatch.setattr(
        gymnasium.vector.SyncVectorEnv, "reset", lambda self, *, seed, options: (
            seeds.extend(np.array(seed)[options["reset_mask"]].tolist()), reset(self, seed=seed, options=options)
        )[1],
    )  # fmt: skip

    def starts(numbers: list[int]) -> list[list[int]]:
        envs, states = env.start(env.tasks()[1:].expand(len(numbers), 1), numbers), []
        for _ in range(12):  # actions to the left never end an episode early
            states.append(envs.states.tolist())
            envs.step(torch.zeros(len(numbers), dtype=torch.int64))
        return torch.tensor(states)[::4].T.tolist()

    together = starts(list(range(40)))
    assert len(seeds) == 160 and len(set(seeds)) == len(seeds)
    assert not set(seeds) & set((sample_uniforms(range(40), 64) * 2**31).long().flatten().tolist())
    assert starts([9])[0] == together[9] and len({tuple(each) for each in together}) > 3


def test_descriptions_rebuild_environments() -> None:
    plain = GymnasiumEnv("CartPole-v1")
    assert (plain.schema.limit, plain.schema.action, plain.tasks().tolist()) == (500, Discrete(2), [[0]])
    lakes = [{"desc": ["SFF", "FFF", "FFG"]}, {"desc": ["SHF", "FFF", "FFG"], "map_name": None}]
    for env in (plain, counters(), GymnasiumEnv("FrozenLake-v1", lakes, {"is_slippery": False}, oracle=1.0)):
        rebuilt = build_env(json.loads(json.dumps(env.describe())))
        assert rebuilt.describe() == env.describe() and rebuilt.schema == env.schema
        assert pickle.loads(pickle.dumps(env)).describe() == copy.deepcopy(env).describe() == env.describe()
    sampled = GymnasiumEnv("Sampled-v0", 3, limit=LIMIT)
    assert sampled.describe()["tasks"] == 3 and sampled.task_arguments == [{"seed": 0}, {"seed": 1}, {"seed": 2}]
    assert build_env(sampled.describe()).tasks().tolist() == [[0], [1], [2]]


ENV = {"name": "zoo.compressed_ad.GymnasiumEnv", "id": "CartPole-v1", "tasks": [{}, {"sutton_barto_reward": True}]}
LAKE = {**ENV, "id": "FrozenLake-v1", "limit": 4, "tasks": [{"is_slippery": True}, {"is_slippery": False}]}
REFUSED: dict[str, dict[str, Any]] = {
    "id with a module": {"id": "zoo_decoy:CartPole-v1"},
    "id with an admitted module": {"id": f"{PACKAGE}:CartPole-v1"},
    "id that is not registered": {"id": "Nowhere-v0"},
    "id that is a path": {"id": "../elsewhere/env.py"},
    "id that is a class": {"id": "zoo_decoy.Env"},
    "id that is a mapping": {"id": {"entry_point": "zoo_decoy:Env"}},
    "file of MuJoCo": {"id": "Ant-v5", "arguments": {"xml_file": "/elsewhere/ant.xml"}},
    "file of MuJoCo of a task": {"id": "Ant-v5", "tasks": [{"xml_file": "../ant.xml"}, {"xml_file": "ant.xml"}]},
    "path of Windows": {"arguments": {"render_mode": "a\\b"}},
    "dotted path": {"arguments": {"render_mode": "zoo_decoy.Thing"}},
    "address": {"arguments": {"render_mode": "http://127.0.0.1:9"}},
    "nested text": {"arguments": {"render_mode": [["a", {"b": "zoo_decoy.Thing"}]]}},
    "key in a mapping": {"arguments": {"render_mode": {"../a": 1}}},
    "text of two lines": {"arguments": {"render_mode": "a\nb"}},
    "unknown argument": {"tasks": [{"colour": 1}]},
    "a task twice": {"tasks": [{"sutton_barto_reward": True}, {}, {"sutton_barto_reward": True}]},
    "no limit": {"id": "Counter-v0", "tasks": [{}]},
    "other spaces": {"id": "Blackjack-v1", "tasks": [{"natural": True}], "limit": 9},
    "whole numbers in a Box": {"id": "Counter-v0", "tasks": [{"dtype": "int64"}], "limit": 9},
    "classes that do not begin at 0": {"id": "Corridor-v0", "tasks": [{"start": 5}]},
}


@pytest.fixture
def decoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that nothing may import."""
    (tmp_path / "zoo_decoy.py").write_text("import gymnasium\nclass Env(gymnasium.Env): ...\nclass Thing: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_allowed", [PACKAGE])
    yield
    assert "zoo_decoy" not in sys.modules


@pytest.mark.parametrize("name", REFUSED)
def test_description_is_refused(name: str, decoy: None) -> None:
    with pytest.raises(ValueError) as caught:
        build_env({**ENV, **REFUSED[name]})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"env": "id with a module"}, {"env": "dotted path"}, {"file": "../o/shard_0.npy"}])
def test_index_of_a_store_is_refused(change: dict[str, str], decoy: None, tmp_path: Path) -> None:
    collect(build_env(LAKE), tmp_path / "store", QLearning(), streams=2, steps=8, train_share=0.5, progress=False)
    file = tmp_path / "store" / "index.json"
    index = json.loads(file.read_text())
    if "env" in change:
        index["env"] |= REFUSED[change["env"]]
    else:
        index["shards"][0] |= change
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError):
        HistoryStore(tmp_path / "store")
