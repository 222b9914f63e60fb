"""The seconds and bytes of a recipe's steps."""

import torch
from torch import nn

from zoo.training.step_cost import ActivationCounter


def test_activations_are_counted_once_and_at_their_peak():
    first, second = nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)
    inputs = torch.randn(32, 8)
    saved = ActivationCounter([*first.parameters(), *second.parameters()])
    with saved:
        for _ in range(3):
            hidden = torch.sigmoid(first(inputs))  # kept by the sigmoid and by the second layer: one storage
            second(hidden).sum().backward()
            del hidden
    assert saved.peak == 4 * 32 * (8 + 16)
