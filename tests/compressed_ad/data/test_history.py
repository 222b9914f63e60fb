"""Histories on disk: what is written is read, corruption is named, returns go by the ends of episodes."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.compressed_ad.envs.scripted import PACKAGE  # noqa: F401 - registers the environments
from zoo.compressed_ad.collecting.collect import EpsilonAlgorithm, collect, last_returns
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.history import HistoryStore, replace_last_states, to_steps
from zoo.compressed_ad.data.history_writer import HistoryWriter, keep_every_nth_episode
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.gymnasium_env import GymnasiumEnv
from zoo.compressed_ad.evaluation.report import source_curve

ENV = Darkroom(grid_size=3, horizon=5)
CORRIDOR = GymnasiumEnv("Corridor-v0", [{"mirrored": False}, {"mirrored": True}], limit=6, reward=[0, 1])
STREAMS, STEPS = 2, 10


def write(folder: Path, tasks: Any = range(9)) -> HistoryStore:
    settings = {"streams": STREAMS, "tasks": list(tasks), "shard_size": 4, "progress": False}
    collect(ENV, folder, EpsilonAlgorithm(), 2, **settings)
    return HistoryStore(folder)


@pytest.fixture(scope="module")
def corridors(tmp_path_factory: pytest.TempPathFactory) -> HistoryStore:
    folder = tmp_path_factory.mktemp("corridors") / "store"
    settings = {"streams": 3, "steps": 24, "train_share": 0.5, "shard_size": 1, "progress": False}
    collect(CORRIDOR, folder, QLearning(bonus=0.5), **settings)
    return HistoryStore(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [8, 2, 5, 0, 1, 3, 4, 6, 7])
    assert (len(store), store.streams, store.steps) == (9, STREAMS, STEPS)
    assert store.env.describe() == ENV.describe() and store.env.schema.dtype.itemsize == 11
    index = json.loads((tmp_path / "store" / "index.json").read_text())
    assert index["shards"][2] == {"file": "shard_00002.npy", "tasks": [7], "goals": [[2, 1]]}
    assert (index["env"]["name"], index["version"], index["episode_stride"]) == ("darkroom", 3, 1)
    part = store.read(3, 1, 2, 7)
    assert part.flags.writeable and np.array_equal(part, store.read(3, slice(None))[1, 2:7])
    rewards = store.read(8, slice(None))["reward"]
    assert np.array_equal(store.returns(8), rewards.reshape(STREAMS, 2, 5).sum(-1))
    for side, tasks in zip(("train", "test"), ENV.split(0, 0.9), strict=True):
        assert torch.equal(store.tasks[store.split[side]], ENV.tasks()[tasks])
    copy = pickle.dumps(store)
    assert len(copy) < 5000 and np.array_equal(pickle.loads(copy).read(7, 1), store.read(7, 1))


def test_steps_have_the_dtypes_of_the_spaces(tmp_path: Path, corridors: HistoryStore) -> None:
    rows = write(tmp_path / "store").read(0, slice(None))
    steps = to_steps(rows, ENV.schema)
    assert [field.dtype for field in steps] == [torch.int64, torch.int64, torch.float32, torch.int64, torch.bool]
    assert torch.equal(steps.next_states[:, :4], steps.states[:, 1:5])
    reset = replace_last_states(steps, (1, 1))
    assert torch.equal(reset.next_states[:, :-1], reset.states[:, 1:])
    assert torch.equal(steps.next_states[~steps.dones], reset.next_states[~steps.dones])
    assert (reset.next_states[steps.dones] == 1).all() and not torch.equal(steps.next_states, reset.next_states)
    rows = corridors.read(0, slice(None))
    assert to_steps(rows, CORRIDOR.schema).dones.tolist() == (rows["terminated"] | rows["truncated"]).tolist()


def test_returns_go_by_the_ends_of_episodes(corridors: HistoryStore) -> None:
    rows, returns = corridors.read(0, slice(None)), corridors.returns(0)
    lasts = []
    for stream in range(3):
        ends = corridors.ends(0, stream)
        parts = np.split(rows[stream]["reward"], ends)[: len(ends)]
        assert returns[stream, : len(ends)].tolist() == [part.sum() for part in parts]
        assert np.isnan(returns[stream, len(ends) :]).all()
        lasts.append(returns[stream, len(ends) - 1])
    assert float(last_returns(corridors)[0]) == pytest.approx(np.mean(lasts))
    facts = {"tasks": [{"task": "0"}], "env": CORRIDOR.describe()}
    assert len(source_curve(corridors.folder, facts)) == returns.shape[1]


def test_complete_episodes_are_kept(tmp_path: Path) -> None:
    rows = np.zeros((1, 2, 15), dtype=CORRIDOR.schema.dtype)
    rows["reward"] = np.arange(15)
    rows["truncated"][0, 0, 2::3] = True  # episodes of 3
    rows["terminated"][0, 1, [0, 1, 6, 8, 9]] = True  # of 1, 1, 5, 2, 1, and a cut one of 5
    assert keep_every_nth_episode(rows, 6, 2)["reward"][0].tolist() == [[0, 1, 2, 6, 7, 8], [0, 2, 3, 4, 5, 6]]
    settings = {"streams": 2, "tasks": [0, 5], "train_share": 0.5, "progress": False}
    collect(ENV, tmp_path / "all", QLearning(), 6, **settings)
    collect(ENV, tmp_path / "some", QLearning(explored=0.7), 3, **settings, episode_stride=2)
    every, some = HistoryStore(tmp_path / "all"), HistoryStore(tmp_path / "some")
    assert np.array_equal(some.returns(1), every.returns(1)[:, ::2]) and some.index["episode_stride"] == 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [cut, flip, Path.unlink, lambda path: path.with_suffix(".sha256").unlink(), lambda path: path.write_bytes(b"")],
)
def test_corrupt_shard_is_named_and_left_out_on_demand(tmp_path: Path, caplog: Any, damage: Any) -> None:
    before = write(tmp_path / "store").read(8, slice(None))
    damage(tmp_path / "store" / "shard_00001.npy")
    with pytest.raises(ValueError, match=r"shard_00001\.npy.*--allow-missing"):
        HistoryStore(tmp_path / "store")
    store = HistoryStore(tmp_path / "store", allow_missing=True)
    assert "shard_00001.npy" in caplog.text
    assert store.task_indices.tolist() == [0, 1, 2, 3, 8]
    assert np.array_equal(store.read(4, slice(None)), before)
    sides = torch.cat([store.split["train"], store.split["test"]])
    assert sorted(sides.tolist()) == list(range(5))


def test_arguments_that_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "store")
    writer = HistoryWriter(tmp_path / "new", ENV, [0], STREAMS, STEPS, 1, {})
    with pytest.raises(ValueError, match="cannot be used"):
        HistoryStore(tmp_path / "new", allow_missing=True)
    with pytest.raises(ValueError, match="expected"):
        writer.write(0, np.zeros((1, STREAMS, STEPS)))
    for tasks, steps, message in (([0], 11, "other settings"), ([0, 9], STEPS, "indices"), ([], STEPS, "tasks is")):
        with pytest.raises(ValueError, match=message):
            HistoryWriter(tmp_path / ("new" if steps == 11 else "other"), ENV, tasks, STREAMS, steps, 1, {})


def edit(folder: Path, change: Any) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.update(version=1), "expected version 3"),
        (lambda index: index.pop("split"), "expected version"),
        (lambda index: index["shards"][0]["goals"].reverse(), "goals"),
        (lambda index: index["schema"]["action"].update(n=9), r"schemas differ.*\"n\": 9.*\"n\": 5"),
    ],
)
def test_other_indices_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        HistoryStore(tmp_path)
    write(tmp_path / "store", [8, 2, 5])
    edit(tmp_path / "store", change)
    with pytest.raises(ValueError, match=message):
        HistoryStore(tmp_path / "store")
