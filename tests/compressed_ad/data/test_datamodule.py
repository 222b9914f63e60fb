from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from zoo.compressed_ad.data.curriculum import Curriculum
from zoo.compressed_ad.data.datamodule import HistoryData
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryWriter, from_steps
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom, DarkroomPermuted, Env

ENV = Darkroom(3, 4)
CURRICULUM = Curriculum(8, 2, [0, 2], [0, None], [[1.0], [0.3, 0.7]], shortest=3)


def build(env: Env = ENV, **kwargs: object) -> HistoryData:
    if "root" not in kwargs:
        kwargs.setdefault("demonstrator", EpsilonCurriculum(env, 6))
    data = HistoryData(env, batch_size=kwargs.pop("batch_size", 4), **kwargs)
    data.setup("fit")
    return data


def write_store(folder: Path, split_seed: int = 0) -> None:
    writer = HistoryWriter(folder, ENV, range(9), 2, 12, 4, {}, split_seed=split_seed, train_share=0.7)
    for number, part in enumerate(writer.shards):
        goals = ENV.tasks()[part].repeat_interleave(2, 0)
        made = from_steps(EpsilonCurriculum(ENV, 3).histories(goals, range(len(goals))))
        writer.write(number, made.reshape(len(part), 2, 12, 7))


@pytest.mark.parametrize("env", [ENV, DarkroomPermuted(3, 4), DarkKeyToDoor(3, 4)], ids=lambda env: env.name)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tasks_of_training_and_evaluation_are_disjoint(env: Env, seed: int) -> None:
    data = build(env, split_seed=seed, train_share=0.75)
    train, test = ({tuple(task) for task in tasks.tolist()} for tasks in (data.train_tasks, data.test_tasks))
    assert not train & test
    assert train | test == {tuple(task) for task in env.tasks().tolist()}
    assert len(train) == round(0.75 * len(env.tasks()))
    assert {tuple(task) for batch in data.val_set if "tasks" in batch for task in batch["tasks"].tolist()} == test


def test_goals_that_are_trained_are_never_evaluated() -> None:
    data = build(epoch_items=64, val_items=40)
    trained = {tuple(task) for task in data.train_tasks.tolist()}
    for batch in data.train_dataloader():
        found = batch["steps"].next_states[batch["steps"].rewards > 0]
        assert {tuple(cell) for cell in found.tolist()} <= trained
    for batch in data.val_dataloader():
        if "steps" in batch:
            found = batch["steps"].next_states[batch["steps"].rewards > 0]
            assert not {tuple(cell) for cell in found.tolist()} & trained


def test_a_folder_is_split_as_it_says(tmp_path: Path) -> None:
    write_store(tmp_path, split_seed=3)
    data = build(root=str(tmp_path), split_seed=0)
    assert torch.equal(data.train_tasks, ENV.tasks()[ENV.split(3, 0.7)[0]])
    assert torch.equal(data.test_tasks, ENV.tasks()[ENV.split(3, 0.7)[1]])
    assert len(data.train_set) == 12
    assert len(build(root=str(tmp_path), offset="every", length=5).train_set) == 12 * 8
    assert len(build(root=str(tmp_path), streams=1, history_steps=8).train_set) == 6
    with pytest.raises(ValueError, match="must be the same"):
        build(Darkroom(3, 5), root=str(tmp_path))


def test_a_damaged_shard_is_left_out_when_asked_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_store(tmp_path)
    (tmp_path / "shard_00001.npy").write_bytes(b"cut")
    with pytest.raises(ValueError, match=r"shard_00001\.npy"):
        build(root=str(tmp_path))
    data = build(root=str(tmp_path), allow_missing=True)
    assert "shard_00001.npy" in caplog.text
    assert len(data.train_tasks) + len(data.test_tasks) == 5


def test_batches_are_of_one_length_without_padding() -> None:
    data = build(curriculum=CURRICULUM, offset="random", epoch_items=40, batch_size=4)
    batches = list(data.train_dataloader())
    lengths = [batch["steps"].length for batch in batches]
    assert len(batches) == 10 and max(lengths[:2]) <= 7 and max(lengths) > 8
    for batch in batches:
        steps = batch["steps"]
        assert torch.equal(steps.next_states[:, :-1][~steps.dones[:, :-1]], steps.states[:, 1:][~steps.dones[:, :-1]])


@pytest.mark.parametrize("curriculum", [None, CURRICULUM])
def test_two_ranks_see_what_one_sees_with_the_double_batch(curriculum: Curriculum | None) -> None:
    def batches(batch_size: int, rank: int, world: int) -> list[dict[str, torch.Tensor]]:
        data = build(curriculum=curriculum, offset="random", epoch_items=48, batch_size=batch_size)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world, accumulate_grad_batches=1)
        return list(data.train_dataloader())

    for first, second, both in zip(batches(4, 0, 2), batches(4, 1, 2), batches(8, 0, 1), strict=True):
        for ours in range(5):
            halves = torch.stack([first["steps"][ours], second["steps"][ours]], 1).flatten(0, 1)
            assert torch.equal(halves, both["steps"][ours])


def test_evaluation_does_not_depend_on_ranks() -> None:
    def batches(rank: int, world: int) -> list[str]:
        data = build(rollout_batch=3, eval_seeds=4, val_items=10)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world)
        return [str(batch) for batch in data.val_dataloader()]

    assert sorted(batches(0, 2) + batches(1, 2)) == sorted(batches(0, 1))


def test_workers_bring_the_same_batches() -> None:
    one, two = (
        [batch["steps"] for batch in build(curriculum=CURRICULUM, epoch_items=24, num_workers=n).train_dataloader()]
        for n in (0, 2)
    )
    assert [each.actions.tolist() for each in one] == [each.actions.tolist() for each in two]


def test_data_can_be_pickled_for_spawned_workers(tmp_path: Path) -> None:
    write_store(tmp_path)
    for data in (build(curriculum=CURRICULUM), build(root=str(tmp_path))):
        copy = pickle.loads(pickle.dumps(data.train_set))
        assert torch.equal(copy[(0, 3)]["steps"].actions, data.train_set[(0, 3)]["steps"].actions)


def test_without_a_folder_histories_are_demonstrated_when_allowed(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FileNotFoundError, match="no folder nowhere; make it with zoo collect"):
        build(root="nowhere")
    data = build(root="nowhere", embedded_if_missing=True, length=9)
    assert "no histories at nowhere" in caplog.text
    assert data.train_set.available == 12


def test_what_contradicts_itself_is_named() -> None:
    with pytest.raises(ValueError, match="one of root and demonstrator is needed"):
        HistoryData(ENV)
    with pytest.raises(ValueError, match="the demonstrator's is"):
        HistoryData(ENV, demonstrator=EpsilonCurriculum(Darkroom(5, 4), 3))
    with pytest.raises(ValueError, match="offset must be start or random"):
        build(curriculum=CURRICULUM, offset="every")
    with pytest.raises(ValueError, match="an evaluation needs"):
        build(val_items=0, eval_seeds=0)
    with pytest.raises(ValueError, match="both sides must have tasks"):
        build(train_share=1.0)
