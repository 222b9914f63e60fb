import itertools

import pytest
import torch
from torch.utils.data import DataLoader

from zoo.flow.data.items import Items, StoredValues
from zoo.flow.process.coupling import PooledTransport
from zoo.flow.process.sampling import noise
from zoo.training.resume import ResumableBatchSampler, item_seed

COUNT = 60


def build(shape: tuple[int, ...] = (1, 4, 4), **kwargs: object) -> Items:
    values = torch.randn(COUNT, *shape, generator=torch.Generator().manual_seed(0))
    return Items(StoredValues(values), [1 + i % 3 for i in range(COUNT)], **{"seed": 5, **kwargs})


def cost(items: Items, epoch: int = 0) -> float:
    batch = items.__getitems__([(epoch, i) for i in range(len(items))])
    return float((batch["x1"] - batch["x0"]).square().sum())


def assert_equal_files(a: dict, b: dict) -> bool:
    return all(torch.equal(a[k], b[k]) for k in ("x0", "x1", "label")) and a["seeds"] == b["seeds"]


@pytest.mark.parametrize("shape", [(1, 4, 4), (2,)])
def test_an_item_has_data_label_and_keyed_noise(shape: tuple[int, ...]) -> None:
    items = build(shape, indices=range(10, 40))
    item = items[2, 7]
    assert len(items) == 30 and item["label"] == 1 + 17 % 3
    assert torch.equal(item["x1"], items.read.values[17])
    assert torch.equal(item["x0"], noise([item_seed(5, 2, 7)], shape)[0])
    assert item["x0"].dtype == torch.float32 and type(item["seed"]) is int and item["seed"] >= 0


def test_keys_decide_everything_random() -> None:
    items, again = build(flips=True), build(flips=True)
    for key in [(0, 3), (1, 3), (0, 4), 3]:
        assert torch.equal(items[key]["x0"], again[key]["x0"]) and items[key]["seed"] == again[key]["seed"]
    keys = [(0, 3), (1, 3), (0, 4), 3]
    for a, b in itertools.combinations(keys, 2):
        assert not torch.equal(items[a]["x0"], items[b]["x0"]) and items[a]["seed"] != items[b]["seed"]
    assert not torch.equal(items[0, 3]["x0"], build(seed=6)[0, 3]["x0"])


def test_flips_mirror_about_half_anew_in_each_epoch() -> None:
    plain, flipped = build(), build(flips=True)
    mirrored = []
    for epoch in (0, 1):
        keys = [(epoch, i) for i in range(COUNT)]
        a, b = plain.__getitems__(keys), flipped.__getitems__(keys)
        rows = [torch.equal(x, y.flip(-1)) for x, y in zip(a["x1"], b["x1"], strict=True)]
        assert all(flip or torch.equal(x, y) for flip, x, y in zip(rows, a["x1"], b["x1"], strict=True))
        assert torch.equal(a["x0"], b["x0"]) and a["seeds"] == b["seeds"]
        mirrored.append(rows)
    assert all(15 < sum(rows) < 45 for rows in mirrored) and mirrored[0] != mirrored[1]
    assert torch.equal(flipped.data(range(COUNT)), plain.read.values)


def test_pooled_noise_is_a_better_order_of_the_same_noise() -> None:
    plain, pooled = build(), build(pooled=PooledTransport(pool=20))
    a, b = (items.__getitems__([(1, i) for i in range(COUNT)]) for items in (plain, pooled))
    assert cost(pooled, 1) < cost(plain, 1)
    rows = (a["x0"].flatten(1)[:, None] == b["x0"].flatten(1)[None]).all(2)
    assert torch.equal(rows.sum(0), torch.ones(COUNT, dtype=torch.int64)) and bool((rows.sum(1) == 1).all())
    assert torch.equal(a["label"][rows.int().argmax(0)], b["label"])  # within classes
    assert torch.equal(a["x1"], b["x1"]) and a["seeds"] == b["seeds"]
    assert cost(build(pooled=PooledTransport(within_classes=False))) < cost(build(pooled=PooledTransport()))


def test_pools_see_the_data_as_the_epoch_shows_it() -> None:
    values = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(10, 1)
    items = Items(StoredValues(values), [0] * 20, seed=1, flips=True, pooled=PooledTransport())
    batch = items.__getitems__([(0, i) for i in range(20)])
    difference = batch["x0"][:, 0] - batch["x0"][:, 1]
    left = batch["x1"][:, 0] > 0
    assert difference[left].min() > difference[~left].max()  # otherwise two could be exchanged for the better


@pytest.mark.parametrize(("workers", "world"), [(2, 1), (0, 2)])
def test_neither_workers_nor_ranks_matter(workers: int, world: int) -> None:
    items = build(flips=True, pooled=PooledTransport(pool=16))
    full = items.__getitems__([(3, i) for i in range(COUNT)])
    calls = []
    for rank in range(world):
        sampler = ResumableBatchSampler(COUNT, 10, 5, rank, world)
        sampler.set_epoch(3)
        loader = DataLoader(build(flips=True, pooled=PooledTransport(pool=16)), batch_sampler=sampler,
                            num_workers=workers, collate_fn=dict)  # fmt: skip
        for keys, batch in zip(sampler, loader, strict=True):
            rows = [item for _, item in keys]
            assert assert_equal_files(batch, items.__getitems__(keys)) and torch.equal(batch["x0"], full["x0"][rows])
            calls += rows
    assert sorted(calls) == list(range(COUNT))
