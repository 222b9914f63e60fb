from __future__ import annotations

import math

import pytest
import torch

from zoo.flow.evaluation.comparison import nearest_distances, spread, spread_ratio


def test_spread_by_hand():
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]])
    assert spread(features, [1, 1, 2]) == {1: pytest.approx(math.sqrt(2))}


def test_spread_ratio_of_scaled_and_collapsed_samples():
    torch.manual_seed(0)
    real, labels = torch.randn(40, 3), [1, 2] * 20
    shifted = 0.5 * real + 10 * torch.tensor(labels)[:, None]
    assert spread_ratio(real, labels, shifted, labels) == pytest.approx(0.5, rel=1e-5)
    assert spread_ratio(real, labels, torch.ones(4, 3), [1, 1, 2, 2]) == 0
    assert math.isnan(spread_ratio(real, labels, real, [3] * 40))


def test_nearest_distances_are_exact_for_copies_and_any_chunk(monkeypatch):
    torch.manual_seed(0)
    others = torch.randn(30, 5) + 1000
    points = torch.cat([others[[7, 3]], others[[4]] + torch.tensor([0.3, 0.4, 0, 0, 0])])
    expected = [0.0, 0.0, pytest.approx(0.5, rel=1e-3)]
    assert nearest_distances(points, others).tolist() == expected
    monkeypatch.setattr("zoo.flow.evaluation.comparison._PAIRS", 30)
    assert nearest_distances(points, others).tolist() == expected
    with pytest.raises(ValueError, match=r"found \(3, 5\) and \(2, 4\)"):
        nearest_distances(points, torch.zeros(2, 4))
