"""The seconds and bytes of a recipe's steps."""

from functools import partial
from itertools import accumulate
from types import SimpleNamespace

import lightning as L
import torch
from torch import nn

from zoo.training import step_cost
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


def test_the_time_of_a_step_is_that_of_all_its_batches(monkeypatch):
    """Three batches of 1 s a step, the third with 2 s of the optimizer; each is waited for by 0.5 s."""
    waits_and_batches = [seconds for number in range(8) for seconds in (0.5, 3.0 if number % 3 == 2 else 1.0)]
    clock = accumulate([0.0, *waits_and_batches])
    monkeypatch.setattr(step_cost, "time", SimpleNamespace(perf_counter=partial(next, clock)))
    trainer, module, cost = SimpleNamespace(optimizers=[], should_stop=False), L.LightningModule(), StepCost(2, 3)
    cost.on_train_start(trainer, module)
    while not trainer.should_stop:
        cost.on_train_batch_start(trainer, module)
        cost.on_train_batch_end(trainer, module)
    assert (cost.step_seconds, cost.wait_seconds) == (5.0, 1.5)
