"""Accumulated gradients: a step weighs its items alike, also where an epoch ends in the middle of its batches."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tests.training.callbacks.parts import make_trainer
from zoo.training.datamodule import ZooDataModule
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


class Points(Dataset):
    def __init__(self, count: int) -> None:
        self.points = torch.randn(count, 2, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, place: tuple[int, int]) -> torch.Tensor:
        return self.points[place[1]]  # of (epoch, index)


class Data(ZooDataModule):
    def __init__(self, items: int, batch_size: int) -> None:
        super().__init__(batch_size)
        self.train_set = Points(items)


def expected(items: int, accumulate: int, epochs: int, limit: int | None) -> tuple[nn.Linear, int]:
    """Gradient descent on the mean over all items of each step."""
    task, data = Task(), Data(items, 8)
    optimizer, steps = torch.optim.SGD(task.parameters(), lr=0.1), 0
    batches = data.train_batches(0, 1)
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        order = [list(indices) for indices in batches][:limit]
        for start in range(0, len(order), accumulate):
            chosen = [index for batch in order[start : start + accumulate] for index in batch]
            x = torch.stack([data.train_set[index] for index in chosen])
            optimizer.zero_grad()
            (task.net(x) - 1).square().mean().backward()
            optimizer.step()
            steps += 1
    return task.net, steps


# batches of an epoch: as many as a step takes, more by some, fewer
@pytest.mark.parametrize(
    ("items", "accumulate", "limit"),
    [(32, 4, None), (40, 4, None), (56, 3, None), (16, 8, None), (24, 1, None), (80, 4, 6)],
)
def test_step_is_that_of_one_large_batch(items, accumulate, limit):
    task = Task()
    options = {"max_epochs": 2, "limit_val_batches": 0, "use_distributed_sampler": False}
    fit = make_trainer(accumulate_grad_batches=accumulate, limit_train_batches=limit, **options)
    fit.fit(task, Data(items, 8))
    net, steps = expected(items, accumulate, 2, limit)
    assert fit.global_step == steps
    torch.testing.assert_close(task.net.weight, net.weight)
    torch.testing.assert_close(task.net.bias, net.bias)
