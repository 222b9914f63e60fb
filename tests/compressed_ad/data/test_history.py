"""Histories on disk: what is written is read, and damage is named."""

import json
import pickle

import numpy as np
import pytest
import torch

from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore, HistoryWriter, ending_at, from_steps, to_steps
from zoo.compressed_ad.envs.grids import Darkroom

ENV = Darkroom(grid_size=3, horizon=5)
STREAMS, STEPS = 2, 10


def write(folder, tasks=range(9), shard_size=4):
    writer = HistoryWriter(folder, ENV, list(tasks), STREAMS, STEPS, shard_size, {"name": "made up"})
    for number, part in enumerate(writer.shards):
        if not writer.finished(number):
            writer.write(number, np.stack([rows(task) for task in part]))
    return writer


def rows(task):
    tasks = ENV.tasks()[task].expand(STREAMS, -1)
    return from_steps(EpsilonCurriculum(ENV, STEPS // 5).histories(tasks, [task * STREAMS, task * STREAMS + 1]))


def test_what_is_written_is_read(tmp_path):
    write(tmp_path / "store")
    store = HistoryStore(tmp_path / "store")
    assert (len(store), store.streams, store.steps) == (9, STREAMS, STEPS)
    assert store.env.describe() == ENV.describe()
    assert torch.equal(store.tasks, ENV.tasks())
    for task in range(9):
        assert np.array_equal(store.read(task, slice(None)), rows(task))
    assert np.array_equal(store.read(3, 1, 2, 7), rows(3)[1, 2:7])
    assert store.read(3, 1).flags.writeable
    assert np.array_equal(store.returns(8), rows(8)[..., 3].reshape(STREAMS, 2, 5).sum(-1))


def test_split_goes_by_goal(tmp_path):
    write(tmp_path / "store", tasks=[8, 2, 5, 0, 1, 3, 4, 6, 7])
    store = HistoryStore(tmp_path / "store")
    train, test = ENV.split(0, 0.9)
    assert torch.equal(store.tasks[store.split["train"]], ENV.tasks()[train])
    assert torch.equal(store.tasks[store.split["test"]], ENV.tasks()[test])
    assert set(store.split["train"].tolist()).isdisjoint(store.split["test"].tolist())


def test_index_says_whose_histories_they_are(tmp_path):
    write(tmp_path / "store", tasks=[8, 2, 5])
    index = json.loads((tmp_path / "store" / "index.json").read_text())
    assert index["shards"] == [{"file": "shard_00000.npy", "tasks": [8, 2, 5], "goals": [[2, 2], [0, 2], [1, 2]]}]
    assert index["env"]["name"] == "darkroom"
    assert index["split"]["seed"] == 0


def test_steps_there_and_back():
    packed = rows(4)
    steps = to_steps(packed)
    assert np.array_equal(from_steps(steps), packed)
    assert torch.equal(steps.next_states[:, :4], steps.states[:, 1:5])


def test_next_state_at_the_end_of_an_episode():
    true, reset = to_steps(rows(0)), ending_at(to_steps(rows(0)), (1, 1))
    assert torch.equal(reset.next_states[:, :-1], reset.states[:, 1:])
    assert torch.equal(true.next_states[~true.dones], reset.next_states[~true.dones])
    assert (reset.next_states[true.dones] == 1).all()
    assert not torch.equal(true.next_states, reset.next_states)
    with pytest.raises(ValueError, match="expected transitions"):
        to_steps(rows(0)[0])


def test_pickled_store_maps_the_shards_itself(tmp_path):
    write(tmp_path / "store")
    store = HistoryStore(tmp_path / "store")
    store.read(0, 0)
    data = pickle.dumps(store)
    assert len(data) < 4000
    assert np.array_equal(pickle.loads(data).read(7, 1), store.read(7, 1))


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def unfinish(path):
    path.with_suffix(".sha256").unlink()


@pytest.mark.parametrize(
    "damage", [cut, flip, unfinish, lambda path: path.unlink(), lambda path: path.write_bytes(b"")]
)
def test_damaged_shard_is_named_and_left_out_on_demand(tmp_path, caplog, damage):
    folder = tmp_path / "store"
    write(folder)
    damage(folder / "shard_00001.npy")
    with pytest.raises(ValueError, match=r"shard_00001\.npy.*--allow-missing"):
        HistoryStore(folder)
    store = HistoryStore(folder, allow_missing=True)
    assert "shard_00001.npy" in caplog.text
    assert store.task_indices.tolist() == [0, 1, 2, 3, 8]
    assert np.array_equal(store.read(4, slice(None)), rows(8))
    sides = torch.cat([store.split["train"], store.split["test"]])
    assert sorted(sides.tolist()) == list(range(5))
    write(folder)
    assert len(HistoryStore(folder)) == 9


def test_nothing_is_left_after_all_shards_are_lost(tmp_path):
    writer = HistoryWriter(tmp_path / "store", ENV, [0], STREAMS, STEPS, 1, {})
    assert not writer.finished(0)
    with pytest.raises(ValueError, match="cannot be used"):
        HistoryStore(tmp_path / "store", allow_missing=True)


def test_other_arguments_are_refused(tmp_path):
    write(tmp_path / "store")
    with pytest.raises(ValueError, match="other settings"):
        HistoryWriter(tmp_path / "store", ENV, list(range(9)), STREAMS, STEPS + 1, 4, {"name": "made up"})
    with pytest.raises(ValueError, match="different indices"):
        HistoryWriter(tmp_path / "new", ENV, [0, 9], STREAMS, STEPS, 4, {})
    with pytest.raises(ValueError, match="tasks is at least 1"):
        HistoryWriter(tmp_path / "new", ENV, [], STREAMS, STEPS, 4, {})
    with pytest.raises(ValueError, match="int8"):
        write(tmp_path / "store").write(0, np.zeros((4, STREAMS, STEPS, 7)))


def test_folder_that_is_no_store(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        HistoryStore(tmp_path)
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(ValueError, match="expected version"):
        HistoryStore(tmp_path)


def test_edited_goals_are_noticed(tmp_path):
    write(tmp_path / "store")
    path = tmp_path / "store" / "index.json"
    index = json.loads(path.read_text())
    index["shards"][0]["goals"][0] = [2, 2]
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="goals"):
        HistoryStore(tmp_path / "store")
