import pytest
import torch
from torch.utils.data import DataLoader

from zoo.flow.data.items import DRAWS, EVALUATION_EPOCH, Items, StoredValues
from zoo.flow.process.coupling import PooledTransport
from zoo.flow.process.sampling import noise
from zoo.training.resume import ResumableBatchSampler, item_seed

COUNT = 60


def build(**kwargs: object) -> Items:
    values = torch.randn(COUNT, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return Items(StoredValues(values), [1 + i % 3 for i in range(COUNT)], **{"seed": 5, **kwargs})


@pytest.mark.parametrize("key", [(2, 7), 7])
def test_an_item_has_data_label_and_keyed_noise(key: tuple[int, int] | int) -> None:
    items = build(indices=range(10, 40))
    item, seed = items[key], item_seed(5, *(key if isinstance(key, tuple) else (EVALUATION_EPOCH, key)))
    assert len(items) == 30 and item["label"] == 1 + 17 % 3
    assert torch.equal(item["x1"], items.read.values[17])
    assert torch.equal(item["x0"], noise([seed], (1, 4, 4))[0])
    assert item["seed"] == item_seed(seed, 0, DRAWS)


def test_flips_mirror_about_half_anew_in_each_epoch() -> None:
    plain, flipped = build(), build(flips=True)
    mirrored = []
    for epoch in (0, 1):
        a, b = (items.__getitems__([(epoch, i) for i in range(COUNT)]) for items in (plain, flipped))
        rows = [torch.equal(x, y.flip(-1)) for x, y in zip(a["x1"], b["x1"], strict=True)]
        assert all(flip or torch.equal(x, y) for flip, x, y in zip(rows, a["x1"], b["x1"], strict=True))
        assert torch.equal(a["x0"], b["x0"]) and a["seeds"] == b["seeds"]
        mirrored.append(rows)
    assert all(15 < sum(rows) < 45 for rows in mirrored) and mirrored[0] != mirrored[1]
    assert torch.equal(flipped.data(range(COUNT)), plain.read.values)


def test_pooled_noise_is_another_order_of_the_same_noise() -> None:
    plain, pooled = build(), build(pooled=PooledTransport(pool=20))
    a, b = (items.__getitems__([(1, i) for i in range(COUNT)]) for items in (plain, pooled))
    rows = (a["x0"].flatten(1)[:, None] == b["x0"].flatten(1)[None]).all(2)
    assert torch.equal(rows.sum(0), torch.ones(COUNT, dtype=torch.int64)) and bool((rows.sum(1) == 1).all())
    assert torch.equal(a["label"][rows.int().argmax(0)], b["label"])  # within classes
    assert torch.equal(a["x1"], b["x1"]) and a["seeds"] == b["seeds"]


def test_pools_see_the_data_as_the_epoch_shows_it() -> None:
    values = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(10, 1)
    items = Items(StoredValues(values), [0] * 20, seed=1, flips=True, pooled=PooledTransport())
    batch = items.__getitems__([(0, i) for i in range(20)])
    difference = batch["x0"][:, 0] - batch["x0"][:, 1]
    left = batch["x1"][:, 0] > 0
    assert difference[left].min() > difference[~left].max()  # otherwise two could be exchanged for the better


def test_neither_workers_nor_ranks_matter_to_pools() -> None:
    items = build(flips=True, pooled=PooledTransport(pool=16))
    full = items.__getitems__([(3, i) for i in range(COUNT)])
    for rank in range(2):
        sampler = ResumableBatchSampler(COUNT, 10, 5, rank, 2)
        sampler.set_epoch(3)
        again = build(flips=True, pooled=PooledTransport(pool=16))
        loader = DataLoader(again, batch_sampler=sampler, num_workers=2, collate_fn=dict)
        for keys, batch in zip(sampler, loader, strict=True):
            rows = [item for _, item in keys]
            assert all(torch.equal(batch[name], full[name][rows]) for name in ("x0", "x1", "label"))
