import math

import pytest
import torch

from zoo.training.task import WeightedMeans


def test_weights_count_items() -> None:
    means = WeightedMeans()
    means.add({"a": torch.tensor(1.0), "b": 4.0}, weight=1)
    means.add({"a": 2.0}, weight=3)
    assert means.compute() == {"a": pytest.approx(1.75), "b": 4.0}
    means.reset()
    assert means.compute() == {}


def test_no_weight_is_undefined() -> None:
    means = WeightedMeans()
    means.add({"a": 1.0}, weight=0)
    assert math.isnan(means.compute()["a"])
