"""Accumulated gradients: a step weighs its items alike, also where an epoch ends in the middle of its batches."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.training.callbacks.parts import make_trainer
from zoo.training.task import SingleOptimizerTask


class Task(SingleOptimizerTask):
    inference_class, inference_modules = "", ()

    def __init__(self) -> None:
        super().__init__(lambda weights: torch.optim.SGD(weights, lr=0.1))
        self.net = nn.Linear(2, 1)
        nn.init.constant_(self.net.weight, 0.5)
        nn.init.zeros_(self.net.bias)

    def training_step(self, batch, batch_idx):
        return (self.net(batch) - 1).square().mean()

    def setup(self, stage: str) -> None:
        pass


def expected(batches: list[torch.Tensor], accumulate: int, epochs: int) -> tuple[nn.Linear, int]:
    """Gradient descent on the mean over all items of each step."""
    task, steps = Task(), 0
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    for _ in range(epochs):
        for start in range(0, len(batches), accumulate):
            optimizer.zero_grad()
            (task.net(torch.cat(batches[start : start + accumulate])) - 1).square().mean().backward()
            optimizer.step()
            steps += 1
    return task.net, steps


@pytest.mark.parametrize(("count", "accumulate", "limit"), [(4, 4, None), (5, 4, None), (2, 8, None), (10, 4, 6)])
def test_step_is_that_of_one_large_batch(count, accumulate, limit):
    """Batches of an epoch: as many as a step takes, more by some, fewer."""
    task, batches = Task(), list(torch.randn(count, 8, 2, generator=torch.Generator().manual_seed(1)))
    options = {"max_epochs": 2, "limit_val_batches": 0, "use_distributed_sampler": False}
    fit = make_trainer(accumulate_grad_batches=accumulate, limit_train_batches=limit, **options)
    fit.fit(task, DataLoader(batches, batch_size=None))
    net, steps = expected(batches[:limit], accumulate, 2)
    assert fit.global_step == steps
    torch.testing.assert_close(task.net.weight, net.weight)
    torch.testing.assert_close(task.net.bias, net.bias)
