"""The seconds and bytes of a recipe's steps."""

import torch
from torch import nn

from zoo.cli.trials import ENDLESS, train, trial
from zoo.training.step_cost import ActivationCounter, StepCost


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


def test_the_memory_of_a_recipe_is_counted():
    cost = StepCost(2)
    with trial(["flow/smoke"], **ENDLESS) as cli:
        cli.trainer.callbacks.append(cost)
        train(cli)
        weights = 4 * sum(weight.numel() for weight in cli.model.parameters())
    assert 1.1 > cost.state_bytes / (4 * weights) > 1  # with gradients, two moments of AdamW and its counters
    assert cost.activation_bytes > 0 and cost.step_seconds > 0
