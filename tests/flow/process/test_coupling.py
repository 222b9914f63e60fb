import itertools

import pytest
import torch

from zoo.flow import PooledTransport, WithinClassTransport
from zoo.flow.process.coupling import match_pairs


def cost(x0: torch.Tensor, x1: torch.Tensor) -> float:
    return (x0 - x1).square().sum().item()


def test_distances_are_squared():
    x0, x1 = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.6, 0.8]])
    assert match_pairs(x0, x1).tolist() == [0, 1]  # squares 1 + 1 or 3.2 + 0, lengths 1 + 1 or 1.79 + 0


def test_within_classes():
    torch.manual_seed(0)
    x0, x1, label = torch.randn(6, 2, 3), torch.randn(6, 2, 3), torch.tensor([1, 2, 1, 1, 2, 3])
    permutation = WithinClassTransport().permutation(x0, x1, label)
    assert torch.equal(WithinClassTransport().permutation(x0, x1, None), match_pairs(x0, x1))
    assert sorted(permutation.tolist()) == list(range(6))
    assert torch.equal(label[permutation], label)
    for value in (1, 2):
        rows = (label == value).nonzero()[:, 0].tolist()
        best = min(cost(x0[list(order)], x1[rows]) for order in itertools.permutations(rows))
        assert cost(x0[permutation[rows]], x1[rows]) == pytest.approx(best, rel=1e-6)


def test_pools_of_an_epoch():
    torch.manual_seed(0)
    x0, x1, label = torch.randn(300, 2), torch.randn(300, 2), torch.randint(1, 4, (300,))
    sizes = []

    def read_noise(indices):
        sizes.append(len(indices))
        return x0[indices]

    def pooled(seed=7, labels=label, pool=64):
        transport = PooledTransport(pool, labels is not None)
        return transport.pairing(read_noise, lambda i: x1[i], label, seed)

    permutation = pooled()
    assert max(sizes) <= 64
    assert sorted(permutation.tolist()) == list(range(300)) and torch.equal(label[permutation], label)
    assert torch.equal(permutation, pooled()) and not torch.equal(permutation, pooled(seed=8))
    assert not torch.equal(label[pooled(labels=None)], label)
    # larger pools pair better than the small batches of training would
    costs = [cost(x0[p], x1) for p in (pooled(labels=None, pool=300), pooled(labels=None, pool=16), torch.arange(300))]
    assert costs[0] < costs[1] < costs[2]
    assert torch.equal(pooled(labels=None, pool=1), torch.arange(300))
