from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset
from toy_wing.data import PairData

from tests.harness import REPOSITORY, TOY, TOY_FIT
from zoo.cli.main import main
from zoo.cli.trainer import ZooCLI
from zoo.training import data as data_module
from zoo.training.callbacks.rng import capture_rng, restore_rng
from zoo.training.data import (
    BucketBatches,
    RankSlice,
    ResumableBatches,
    ZooDataModule,
    circumstances_changed,
    item_seed,
)


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 7),
    world=st.integers(1, 4),
    epoch=st.integers(0, 3),
    start=st.integers(0, 5),
)
def test_ranks_together_see_what_one_process_with_the_whole_batch_sees(
    size: int, batch: int, world: int, epoch: int, start: int
) -> None:
    if size < batch * world:
        return
    joined = ResumableBatches(size, batch * world, seed=3)
    ranks = [ResumableBatches(size, batch, seed=3, rank=rank, world=world) for rank in range(world)]
    for sampler in (joined, *ranks):
        sampler.resume_at(epoch, start)
    for whole, *parts in zip(joined, *ranks, strict=True):
        assert sorted(whole) == sorted(key for part in parts for key in part)


def test_resume_continues_the_same_order() -> None:
    whole = ResumableBatches(23, 3, seed=1)
    whole.set_epoch(2)
    resumed = ResumableBatches(23, 3, seed=1)
    resumed.resume_at(2, 4)
    assert list(resumed) == list(whole)[4:]
    resumed.set_epoch(3)
    assert len(list(resumed)) == len(whole) == 7


def test_epochs_differ_and_hold_every_item_once() -> None:
    sampler = ResumableBatches(12, 4, seed=1)
    first = [key for batch in sampler for key in batch]
    sampler.set_epoch(1)
    second = [key for batch in sampler for key in batch]
    assert sorted(index for _, index in first) == sorted(index for _, index in second) == list(range(12))
    assert [index for _, index in first] != [index for _, index in second]


def test_incomplete_last_batch_is_kept_or_dropped() -> None:
    assert [len(batch) for batch in ResumableBatches(10, 4, drop_last=True)] == [4, 4]
    assert [len(batch) for batch in ResumableBatches(10, 4, drop_last=False)] == [4, 4, 2]
    ranks = [list(ResumableBatches(7, 2, rank=rank, world=2, drop_last=False)) for rank in range(2)]
    assert [len(batch) for batch in ranks[0]] == [len(batch) for batch in ranks[1]] == [2, 2]
    assert {index for rank in ranks for batch in rank for _, index in batch} == set(range(7))


def test_too_few_items_are_named() -> None:
    with pytest.raises(ValueError, match=r"3 training items do not fill one batch of 2 on 2 process"):
        ResumableBatches(3, 2, world=2)
    with pytest.raises(ValueError, match="empty"):
        ResumableBatches(0, 2)


@given(size=st.integers(0, 30), world=st.integers(1, 4))
def test_evaluation_slices_cover_every_item_once(size: int, world: int) -> None:
    seen = [index for rank in range(world) for index in RankSlice(size, rank, world)]
    assert sorted(seen) == list(range(size))


def test_item_seed_depends_on_each_argument() -> None:
    seeds = {item_seed(s, e, i) for s in range(3) for e in range(3) for i in range(3)}
    assert len(seeds) == 27
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_generators_are_put_back() -> None:
    import random

    state = capture_rng()
    drawn = (random.random(), float(np.random.rand()), torch.rand(1).item())
    restore_rng(state)
    assert drawn == (random.random(), float(np.random.rand()), torch.rand(1).item())


class Stream(IterableDataset[int]):
    def __iter__(self):
        return iter(range(10))


class Positioned(Stream):
    def resume_at(self, epoch: int, batch: int) -> None:
        self.position = (epoch, batch)


def test_a_stream_without_a_position_is_refused() -> None:
    data = ZooDataModule(batch_size=2)
    data.train_set = Stream()
    with pytest.raises(ValueError, match="cannot be positioned"):
        data.train_dataloader()
    data.train_set = Positioned()
    data.load_state_dict({"epoch": 2, "batch": 5})
    assert len(list(data.train_dataloader())) == 5
    assert data.train_set.position == (2, 5)


def lengths_of(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 1000, size)


@given(
    size=st.integers(1, 80),
    batch=st.integers(1, 5),
    world=st.integers(1, 3),
    epoch=st.integers(0, 3),
    pool=st.integers(1, 4),
    drop_last=st.booleans(),
    start=st.integers(0, 4),
)
def test_buckets_hold_every_item_once_and_resume_and_split_like_plain_batches(
    size: int, batch: int, world: int, epoch: int, pool: int, drop_last: bool, start: int
) -> None:
    full = batch * world
    if drop_last and size < full:
        return
    lengths = lengths_of(size)
    options = {"seed": 3, "drop_last": drop_last, "pool_batches": pool}
    joined = BucketBatches(lengths, full, **options)
    joined.set_epoch(epoch)
    whole = list(joined)
    plain = ResumableBatches(size, full, seed=3, drop_last=drop_last)
    plain.set_epoch(epoch)
    assert sorted(key for each in whole for key in each) == sorted(key for each in plain for key in each)
    assert [len(each) for each in whole] == [len(each) for each in plain]
    resumed = BucketBatches(lengths, full, **options)
    resumed.resume_at(epoch, start)
    assert list(resumed) == whole[start:]
    ranks = [BucketBatches(lengths, batch, rank=rank, world=world, **options) for rank in range(world)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    split = [list(sampler) for sampler in ranks]
    assert {len(batches) for batches in split} == {len(whole)}
    for number, keys in enumerate(whole):
        together = [key for batches in split for key in batches[number]]
        assert set(together) >= set(keys)  # the last is filled up from the beginning
        assert len(together) == -(-len(keys) // world) * world


def test_buckets_hold_little_padding_and_change_with_the_epoch() -> None:
    lengths = lengths_of(2000)

    def padding(sampler: ResumableBatches) -> float:
        batches = [lengths[[index for _, index in batch]] for batch in sampler]
        return 1 - sum(batch.sum() for batch in batches) / sum(batch.max() * len(batch) for batch in batches)

    buckets = BucketBatches(lengths, 8, seed=1)
    assert padding(buckets) < 0.05 < 0.3 < padding(ResumableBatches(2000, 8, seed=1))
    first = list(buckets)
    longest = [lengths[[index for _, index in batch]].max() for batch in first]
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.2  # the batches are not in order of length
    buckets.set_epoch(1)
    assert {frozenset(i for _, i in batch) for batch in buckets} != {frozenset(i for _, i in batch) for batch in first}


def test_lengths_choose_buckets() -> None:
    class Lengthy(PairData):
        def setup(self, stage: str) -> None:
            super().setup(stage)
            self.lengths = lengths_of(self.items)

    data = Lengthy(items=20, batch_size=3)
    data.setup("fit")
    data.load_state_dict({"epoch": 1, "batch": 2})
    loader = data.train_dataloader()
    assert isinstance(loader.batch_sampler, BucketBatches) and len(list(loader)) == 4
    assert not isinstance(data.val_dataloader().batch_sampler, BucketBatches)
    data.lengths = data.lengths[:5]
    with pytest.raises(ValueError, match="5 lengths for 20 training items"):
        data.train_dataloader()
    with pytest.raises(ValueError, match="pool_batches is at least 1"):
        BucketBatches([1, 2], 1, pool_batches=0)


CIRCUMSTANCES = {"batch_size": 4, "processes": 1, "accumulated_batches": 1, "seed": 0, "items": 40, "contents": "a"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"batch_size": 2, "processes": 2}, "batch size 2 (was 4), 2 processes (was 1): steps see the same items, so"),
        ({"batch_size": 2}, "batch size 2 (was 4): steps see more or fewer items, and this epoch repeats or leaves"),
        ({"batch_size": 2, "accumulated_batches": 2}, "2 accumulated batches (was 1): steps see more or fewer"),
        ({"seed": 3}, "data seed 3 (was 0): steps see other items from here on, so this is no longer the run that"),
        ({"items": 41, "contents": "b"}, "41 training items (was 40): steps see other items from here on"),
        ({"contents": "b", "processes": 2}, "2 processes (was 1), other training data of as many items: steps see"),
    ],
)
def test_what_changed_and_what_that_means(changes: dict[str, object], said: str | None) -> None:
    found = circumstances_changed(CIRCUMSTANCES, CIRCUMSTANCES | changes)
    assert found is None if said is None else said in str(found)


def test_a_resume_under_other_circumstances_says_so_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TOY)
    fit = [*map(str, TOY_FIT), f"--trainer.default_root_dir={tmp_path}"]
    told = []
    for steps, changes in enumerate([[], ["batch_size=4"], ["batch_size=4", "num_workers=1"], ["items=50"]], start=1):
        resumed = ["--ckpt_path=last"] if steps > 1 else []
        caplog.clear()
        options = [f"--data.init_args.{change}" for change in changes]
        assert main([*fit, *resumed, *options, f"--trainer.max_steps={steps}"]) == 0
        told.append([each.getMessage() for each in caplog.records if each.getMessage().startswith("resumed with")])
    assert [len(lines) for lines in told] == [0, 1, 0, 1]
    assert told[1][0].startswith("resumed with batch size 4 (was 2): steps see more or fewer items")
    assert told[3][0].startswith("resumed with batch size 2 (was 4), 50 training items (was 40): steps see other items")


@pytest.mark.parametrize("recipe", ["flow/demo_swissroll", "hifigan/smoke", "ci_llm/smoke", "compressed_ad/smoke"])
def test_contents_tell_data_apart(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = {"flow": "kind=moons", "hifigan": "embedded_utterances=7", "ci_llm": "max_items=20"}
    monkeypatch.chdir(tmp_path)

    def contents(*options: str) -> str:
        root = f"--trainer.default_root_dir={tmp_path}"
        cli = ZooCLI("fit", ["--config", str(REPOSITORY / "configs" / f"{recipe}.yaml"), root, *options])
        cli.datamodule.trainer = cli.trainer
        cli.datamodule.prepare_data()
        cli.datamodule.setup("fit")
        return str(cli.datamodule._circumstances()["contents"])

    known = contents()
    assert contents("--data.init_args.num_workers=0", "--data.init_args.batch_size=3") == known
    assert contents(f"--data.init_args.{change.get(recipe.split('/')[0], 'history_steps=20')}") != known


def large(kind: str, size: int, batch: int, rank: int, world: int, drop_last: bool) -> ResumableBatches:
    """Batches in keyed order, in windows so small that some tens of items fill several."""
    made = (
        ResumableBatches(size, batch, 3, rank, world, drop_last=drop_last)
        if kind == "random"
        else BucketBatches(lengths_of(size), batch, 3, rank, world, drop_last, pool_batches=2)
    )
    made.keyed = True
    return made


@pytest.mark.parametrize("kind", ["random", "by length"])
@settings(deadline=None)
@given(
    size=st.integers(1, 200),
    batch=st.integers(1, 4),
    world=st.integers(1, 5),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
    start=st.integers(0, 40),
)
def test_keyed_batches_hold_every_item_once_over_the_ranks_and_resume_anywhere(
    kind: str, size: int, batch: int, world: int, epoch: int, drop_last: bool, start: int
) -> None:
    full = batch * world
    if drop_last and size < full:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_module, "WINDOW_ITEMS", 8)
        patch.setattr(data_module, "_WINDOW_POOLS", 1)
        patch.setattr(data_module, "_BLOCK_ITEMS", 16)
        ranks = [large(kind, size, batch, rank, world, drop_last) for rank in range(world)]
        for sampler in ranks:
            sampler.set_epoch(epoch)
        split = [list(sampler) for sampler in ranks]
        assert {len(batches) for batches in split} == {len(ranks[0])}
        seen = [key for batches in split for keys in batches for key in keys]
        kept = size // full * full if drop_last else size
        assert {each for each, _ in seen} <= {epoch} and len(set(seen)) == kept
        assert len(seen) == (kept if drop_last else -(-size // world) * world)
        for rank, whole in enumerate(split):
            resumed = large(kind, size, batch, rank, world, drop_last)
            resumed.resume_at(epoch, start)
            assert list(resumed) == whole[start:]
        joined = large(kind, size, full, 0, 1, drop_last)
        joined.set_epoch(epoch)
        for number, keys in enumerate(joined):
            assert set(keys) <= {key for batches in split for key in batches[number]}
        assert ranks[0].order(epoch) != ranks[0].order(epoch + 1) or size < 20 or len(ranks[0]) < 4


def test_keyed_buckets_hold_little_padding_and_are_mixed_in_windows() -> None:
    lengths = lengths_of(40_000)
    sampler = BucketBatches(lengths, 8, seed=1)
    sampler.keyed = True
    batches = lengths[np.array(sampler.order(0)).reshape(-1, 8)]
    assert 1 - batches.sum() / (batches.max(axis=1).sum() * 8) < 0.05
    longest = batches.max(axis=1)
    assert abs(np.corrcoef(longest[1:], longest[:-1])[0, 1]) < 0.1
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.1


@pytest.mark.parametrize("workers", [0, 2])
def test_large_sets_are_keyed_and_runs_of_former_versions_keep_their_order(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys(state: dict[str, object] | None, size: int = 40) -> tuple[list[object], ZooDataModule]:
        data = PairData(items=size, batch_size=3, num_workers=workers)
        data.setup("fit")
        data.collate = list  # type: ignore[method-assign]
        data.train_set = Echo(size)
        if state is not None:
            data.load_state_dict(state)
        return list(data.train_dataloader()), data

    former, _ = keys(None)
    monkeypatch.setattr(data_module, "KEYED_ABOVE", 39)
    keyed, module = keys(None)
    assert keyed != former and module._keyed is True
    position = {"epoch": 0, "batch": 4}
    assert keys(position)[0] == former[4:]  # as a checkpoint of a former version has it
    assert keys(position | {"keyed": False})[0] == former[4:]
    assert keys(position | {"keyed": True})[0] == keyed[4:]
    monkeypatch.setattr(data_module, "KEYED_ABOVE", 41)
    assert keys(position | {"keyed": True})[0] == keyed[4:]
    assert keys(None)[0] == former


class Echo(Dataset[object]):
    """Items that are their keys."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: object) -> object:
        return key
