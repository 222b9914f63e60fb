from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import BucketBatchSampler, ResumableBatchSampler, describe_data_changes


def make_lengths(size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 1000, size)


def build(kind: str, size: int, batch: int, rank: int = 0, world: int = 1, drop_last: bool = True):
    if kind == "random":
        return ResumableBatchSampler(size, batch, 3, rank, world, drop_last)
    buckets = BucketBatchSampler(make_lengths(size), batch, 3, rank, world, drop_last)
    buckets.pool_batches = 2
    return buckets


@pytest.mark.parametrize("kind", ["random", "by length"])
@given(
    size=st.integers(1, 80),
    batch=st.integers(1, 5),
    world=st.integers(1, 4),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
    start=st.integers(0, 5),
)
def test_ranks_see_the_global_batches_and_resume_anywhere(
    kind: str, size: int, batch: int, world: int, epoch: int, drop_last: bool, start: int
) -> None:
    full = batch * world
    if drop_last and size < full:
        return
    joined = build(kind, size, full, drop_last=drop_last)
    joined.set_epoch(epoch)
    batches = list(joined)
    keys = [key for each in batches for key in each]
    assert len(batches) == len(joined) and {each for each, _ in keys} <= {epoch}
    assert len(set(keys)) == len(keys) == (size // full * full if drop_last else size)  # each item once
    resumed = build(kind, size, full, drop_last=drop_last)
    resumed.resume_at(epoch, start)
    assert list(resumed) == batches[start:]
    ranks = [build(kind, size, batch, rank, world, drop_last) for rank in range(world)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    joined.set_epoch(epoch + 1)
    assert size < max(20, 5 * full) or [index for each in joined for _, index in each] != [index for _, index in keys]
    for expected, *parts in zip(batches, *ranks, strict=True):
        together = [key for part in parts for key in part]
        assert set(together) >= set(expected)  # the last is filled up from the epoch's beginning
        assert len(together) == -(-len(expected) // world) * world


def test_epoch_without_batch_is_refused() -> None:
    for size, reason in ((3, "do not fill one batch"), (0, "empty")):
        with pytest.raises(ValueError, match=reason):
            ResumableBatchSampler(size, 2, world=2)


def test_buckets_have_little_padding_and_no_order_of_length() -> None:
    lengths = make_lengths(2000)

    def padding(sampler: ResumableBatchSampler) -> float:
        batches = [lengths[[index for _, index in batch]] for batch in sampler]
        return 1 - sum(batch.sum() for batch in batches) / sum(batch.max() * len(batch) for batch in batches)

    buckets = BucketBatchSampler(lengths, 8, seed=1)
    assert padding(buckets) < 0.05 < 0.3 < padding(ResumableBatchSampler(2000, 8, seed=1))
    longest = [lengths[[index for _, index in batch]].max() for batch in buckets]
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.2


@given(size=st.integers(0, 30), world=st.integers(1, 4))
def test_evaluation_slices_hold_every_item_once(size: int, world: int) -> None:
    data, indices = ZooDataModule(batch_size=1), []
    for rank in range(world):
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world)
        loader = data.evaluation_loader(range(size))
        assert len(loader) == len(loader.sampler)
        indices += loader.sampler
    assert sorted(indices) == list(range(size))


FACTS = {"batch_size": 4, "processes": 1, "accumulated_batches": 1, "seed": 0, "items": 40, "contents": "a"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"batch_size": 2, "processes": 2}, "steps see the same items"),
        ({"batch_size": 2, "accumulated_batches": 2}, "steps see more or fewer items"),
        ({"seed": 3}, "steps see other items"),
        ({"contents": "b", "processes": 2}, "steps see other items"),
    ],
)
def test_data_changes_are_described(changes: dict[str, object], message: str | None) -> None:
    description = describe_data_changes(FACTS, FACTS | changes)
    assert description is None if message is None else message in str(description)
