"""No value in the description of a gymnasium environment becomes an import or a path; resets have their own stream."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.common import registry
from zoo.common.tensors import sample_uniforms
from zoo.compressed_ad.collecting.collect import collect
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.envs.base import build_env, tensor_dtype
from zoo.compressed_ad.envs.gymnasium import GymnasiumEnv

pytest.importorskip("gymnasium")
HERE = "tests.compressed_ad.envs.scripted"
ENV = {"name": "zoo.compressed_ad.GymnasiumEnv", "id": "CartPole-v1", "features": {"set.length": [0.5, 1.0]}}
LAKE = {**ENV, "id": "FrozenLake-v1", "limit": 4, "features": {"make.is_slippery": [True, False]}}
REFUSED: dict[str, dict[str, Any]] = {
    "id with a module": {"id": "zoo_decoy:CartPole-v1"},
    "id with a dotted module": {"id": "zoo_decoy.envs:CartPole-v1"},
    "id with an admitted module": {"id": "tests.compressed_ad:CartPole-v1"},
    "id with a module and no name": {"id": "zoo_decoy:"},
    "id that is not registered": {"id": "Nowhere-v0"},
    "id without a version": {"id": "CartPole"},
    "id of an unknown version": {"id": "CartPole-v99"},
    "id that is a path": {"id": "../elsewhere/env.py"},
    "id that is a class of no admitted package": {"id": "zoo_decoy.Env"},
    "id that is a function": {"id": "os.system"},
    "empty id": {"id": ""},
    "id that is a mapping": {"id": {"entry_point": "zoo_decoy:Env"}},
    "id within an environment of another library": {"id": "GymV26Environment-v0", "arguments": {"env_id": "a:B-v0"}},
    "file of MuJoCo": {"id": "Ant-v5", "arguments": {"xml_file": "/elsewhere/ant.xml"}},
    "file of MuJoCo by a feature": {"id": "Ant-v5", "features": {"make.xml_file": ["../ant.xml", "ant.xml"]}},
    "file in the home": {"id": "Ant-v5", "arguments": {"xml_file": "~ant"}},
    "path of Windows": {"arguments": {"render_mode": "a\\b"}},
    "dotted path": {"arguments": {"render_mode": "zoo_decoy.Thing"}},
    "module and attribute": {"arguments": {"render_mode": "zoo_decoy:Thing"}},
    "address": {"arguments": {"render_mode": "http://127.0.0.1:9"}},
    "nested text": {"arguments": {"render_mode": [["a", {"b": "zoo_decoy.Thing"}]]}},
    "key that is no word": {"arguments": {"render mode": 1}},
    "key in a mapping": {"arguments": {"render_mode": {"../a": 1}}},
    "long text": {"arguments": {"render_mode": "a" * 65}},
    "text of two lines": {"arguments": {"render_mode": "a\nb"}},
    "private attribute": {"features": {"set.__class__": [1, 2]}},
    "attribute of an attribute": {"features": {"set.spec.entry_point": [1, 2]}},
    "text as attribute": {"features": {"set.length": ["zoo_decoy:Thing", "b.c"]}},
}


@pytest.fixture(autouse=True)
def decoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that nothing may import."""
    (tmp_path / "zoo_decoy.py").write_text("import gymnasium\nclass Env(gymnasium.Env): ...\nclass Thing: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_allowed", ["tests.compressed_ad"])
    yield
    assert "zoo_decoy" not in sys.modules


@pytest.mark.parametrize("name", REFUSED)
def test_description_is_refused(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        build_env({**ENV, **REFUSED[name]})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["id with a module", "dotted path", "private attribute"])
def test_index_of_a_store_is_refused(name: str, tmp_path: Path) -> None:
    collect(build_env(LAKE), tmp_path / "store", QLearning(), streams=2, steps=8, train_share=0.5, progress=False)
    file = tmp_path / "store" / "index.json"
    index = json.loads(file.read_text())
    index["env"] = {**index["env"], **REFUSED[name]}
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError):
        HistoryStore(tmp_path / "store")


@pytest.mark.parametrize("place", ["../other/shard_00000.npy", "ELSEWHERE/shard_00000.npy", "a/../shard_00000.npy", 3])
def test_shard_elsewhere_is_refused(place: Any, tmp_path: Path) -> None:
    for name in ("store", "other"):
        collect(build_env(LAKE), tmp_path / name, QLearning(), streams=2, steps=8, train_share=0.5, progress=False)
    file = tmp_path / "store" / "index.json"
    index = json.loads(file.read_text())
    place = place.replace("ELSEWHERE", str(tmp_path / "other")) if isinstance(place, str) else place
    index["shards"][0]["file"] = place
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="file"):
        HistoryStore(tmp_path / "store")


def test_plain_values_are_taken() -> None:
    layout = [["SFF", "FFF", "FFG"], ["SHF", "FFF", "FFG"]]
    env = build_env({**LAKE, "features": {"make.desc": layout}, "arguments": {"is_slippery": False, "map_name": None}})
    assert len(env.tasks()) == 2
    assert build_env(json.loads(json.dumps(env.describe()))).describe() == env.describe()


@pytest.mark.parametrize("name", ["Corridor", "Counter"])
def test_resets_share_no_number_with_actions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"make.length": [2, 3]} if name == "Counter" else {"actions": [[0, 1], [1, 0]]}
    env = GymnasiumEnv(f"{HERE}.{name}", features, limit=3)
    used: list[int] = []
    make = env.make

    def noting(task: Any) -> Any:
        made = make(task)
        reset = made.reset
        made.reset = lambda *, seed=None, **options: (used.append(seed), reset(seed=seed, **options))[1]
        return made

    monkeypatch.setattr(env, "make", noting)
    seeds = list(range(40))
    envs = env.start(env.tasks()[:1].expand(40, 1), seeds)
    space = env.schema.action
    for _ in range(9):
        envs.step(torch.zeros(40, *space.shape, dtype=tensor_dtype(space)))
    assert len(used) >= 120 and len(set(used)) == len(used)
    of_actions = (sample_uniforms(seeds, 64) * 2**31).long().flatten().tolist()
    assert not set(used) & set(of_actions)


def test_resets_of_a_vector_share_no_number_with_actions() -> None:
    env = GymnasiumEnv(f"{HERE}.SyncCounters", {"make.length": [2, 3]}, {"mode": "Disabled", "cut": 5}, 5)
    envs = env.start(env.tasks(), [0, 1])
    used: list[list[int]] = []
    reset = envs._vector.reset
    envs._vector.reset = lambda *, seed, **options: (used.append(seed), reset(seed=seed, **options))[1]
    for _ in range(12):
        envs.step(torch.zeros(2, 2))
    of_actions = (sample_uniforms([0, 1], 64) * 2**31).long().flatten().tolist()
    assert used and not {seed for seeds in used for seed in seeds} & set(of_actions)
