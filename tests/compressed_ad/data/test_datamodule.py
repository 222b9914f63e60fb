"""Batches of histories: no task leaks, ranks and workers see the same, nothing is padded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from zoo.compressed_ad import DarkKeyToDoor, Darkroom, EpsilonCurriculum, HistoryData, PointMass
from zoo.compressed_ad.collecting.collect import EpsilonAlgorithm, collect
from zoo.compressed_ad.data.curriculum import Curriculum, CurriculumBatches
from zoo.compressed_ad.data.datamodule import StoreOptions
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.data.windows import WindowOptions
from zoo.compressed_ad.envs.grids import Env

ENV = Darkroom(3, 4)
CURRICULUM = Curriculum(8, 2, [0, 2], [0, None], [[1.0], [0.3, 0.7]], shortest=3)
RANDOM = WindowOptions("random")


def build(env: Env = ENV, **arguments: Any) -> HistoryData:
    if "root" not in arguments:
        arguments.setdefault("demonstrator", EpsilonCurriculum(env, 6))
    data = HistoryData(env, batch_size=arguments.pop("batch_size", 4), **arguments)
    data.setup("fit")
    return data


def write_store(folder: Path, **settings: Any) -> str:
    collect(ENV, folder, EpsilonAlgorithm(), 3, 2, train_share=0.7, shard_size=4, progress=False, **settings)
    return str(folder)


@pytest.mark.parametrize("env", [ENV, DarkKeyToDoor(3, 4)], ids=lambda env: env.name)
def test_tasks_of_training_and_evaluation_are_disjoint(env: Env) -> None:
    data = build(env, split_seed=1, train_share=0.75)
    train, test = ({tuple(task) for task in tasks.tolist()} for tasks in (data.train_tasks, data.test_tasks))
    assert not train & test and len(train) == round(0.75 * len(env.tasks()))
    assert train | test == {tuple(task) for task in env.tasks().tolist()}
    assert {tuple(task) for batch in data.val_set if "tasks" in batch for task in batch["tasks"].tolist()} == test


def test_a_folder_is_split_as_its_index_states(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write_store(tmp_path, split_seed=3)
    data = build(root=root, split_seed=0)
    assert torch.equal(data.train_tasks, ENV.tasks()[ENV.split(3, 0.7)[0]])
    assert torch.equal(data.test_tasks, ENV.tasks()[ENV.split(3, 0.7)[1]])
    assert len(data.train_set) == 12
    assert len(build(root=root, windows=WindowOptions("every"), length=5).train_set) == 12 * 8
    assert len(build(root=root, store=StoreOptions(streams=1, steps=8)).train_set) == 6
    assert "no others" not in caplog.text
    assert len(build(root=root, epoch_items=7).train_set) == 7
    assert "7 of 12 histories train, no others" in caplog.text


def test_a_resume_notices_histories_that_were_collected_anew(tmp_path: Path) -> None:
    roots = write_store(tmp_path / "old"), write_store(tmp_path / "new", seed=43)
    old, new = (repr(build(root=root).file_facts) for root in roots)
    assert old != new


def test_two_ranks_see_what_one_sees_with_the_double_batch() -> None:
    def make(batch_size: int, rank: int, world: int, step: int = 0) -> HistoryData:
        data = build(curriculum=CURRICULUM, windows=RANDOM, epoch_items=48, batch_size=batch_size)
        place = {"global_rank": rank, "world_size": world, "global_step": step}
        data.trainer = SimpleNamespace(**place, accumulate_grad_batches=1, limit_train_batches=1.0)
        return data

    def batches(batch_size: int, rank: int, world: int) -> list[dict[str, Any]]:
        return list(make(batch_size, rank, world).train_dataloader())

    for first, second, both in zip(batches(4, 0, 2), batches(4, 1, 2), batches(8, 0, 1), strict=True):
        for field in range(5):
            halves = torch.stack([first["steps"][field], second["steps"][field]], 1).flatten(0, 1)
            assert torch.equal(halves, both["steps"][field])
    lengths = [batch["steps"].length for batch in batches(8, 0, 1)]
    assert max(lengths[:2]) <= 7 and max(lengths) > 8
    resumed = make(4, 0, 4, step=12)  # of a run whose epochs had more optimizer steps
    resumed.load_state_dict({"epoch": 1, "batch": 0})
    sampler = resumed.train_batches(0, 4)
    assert isinstance(sampler, CurriculumBatches) and sampler.optimizer_step(1, 2) == 14


def test_statistics_are_those_of_training_histories(tmp_path: Path) -> None:
    collect(PointMass(8, 6), tmp_path / "store", EpsilonAlgorithm(), 4, 3, train_share=0.5, progress=False)
    data, store = build(PointMass(8, 6), root=str(tmp_path / "store")), HistoryStore(tmp_path / "store")
    rows = np.concatenate([store.read(task, slice(None)).reshape(-1) for task in store.split["train"].tolist()])
    statistics = data.statistics()
    for (mean, std), name in ((statistics.states, "state"), (statistics.actions, "action")):
        np.testing.assert_allclose(mean, rows[name].mean(0), atol=1e-6)
        np.testing.assert_allclose(std, rows[name].std(0), atol=1e-6)
    assert len(statistics.sample) == len(rows)
