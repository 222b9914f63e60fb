"""Histories on disk: what is written is read, corruption is named, returns go by the ends of episodes."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.compressed_ad import Darkroom
from zoo.compressed_ad.collecting.collect import EpsilonAlgorithm, collect
from zoo.compressed_ad.data.history import HistoryStore

ENV = Darkroom(grid_size=3, horizon=5)
STREAMS, STEPS = 2, 10


def write(folder: Path, tasks: Any = range(9)) -> HistoryStore:
    settings = {"streams": STREAMS, "tasks": list(tasks), "shard_size": 4, "progress": False}
    collect(ENV, folder, EpsilonAlgorithm(), 2, **settings)
    return HistoryStore(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [8, 2, 5, 0, 1, 3, 4, 6, 7])
    assert (len(store), store.streams, store.steps) == (9, STREAMS, STEPS)
    assert store.env.describe() == ENV.describe() and store.tasks[8].tolist() == [2, 1]
    part = store.read(3, 1, 2, 7)
    assert part.flags.writeable and np.array_equal(part, store.read(3, slice(None))[1, 2:7])
    rewards = store.read(8, slice(None))["reward"]
    assert np.array_equal(store.returns(8), rewards.reshape(STREAMS, 2, 5).sum(-1))
    for side, tasks in zip(("train", "test"), ENV.split(0, 0.9), strict=True):
        assert torch.equal(store.tasks[store.split[side]], ENV.tasks()[tasks])
    copy = pickle.dumps(store)
    assert len(copy) < 5000 and np.array_equal(pickle.loads(copy).read(7, 1), store.read(7, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.update(version=1), "expected version 3"),
        (lambda index: index["shards"][0]["goals"].reverse(), "goals"),
        (lambda index: index["schema"]["action"].update(n=9), "schemas differ"),
    ],
)
def test_other_indices_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    write(tmp_path / "store", [8, 2, 5])
    file = tmp_path / "store" / "index.json"
    index = json.loads(file.read_text())
    change(index)
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        HistoryStore(tmp_path / "store")
