import logging
from types import SimpleNamespace

import pytest
import torch

from zoo.training.schedules import LrScaling, WarmupLinear
from zoo.training.task import SingleOptimizerTask


def trainer(batch_size, world=1, accumulated=1):
    return SimpleNamespace(
        datamodule=SimpleNamespace(batch_size=batch_size),
        world_size=world,
        accumulate_grad_batches=accumulated,
        is_global_zero=True,
        limit_train_batches=1.0,
        max_steps=4,
    )


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("sqrt", 8**0.5), ("linear", 8.0)])
def test_rates_follow_the_effective_batch(rule, factor, caplog):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}])
    with caplog.at_level(logging.INFO):
        LrScaling(128, rule).scale(optimizer, trainer(128, 2, 4))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * factor)
    assert "effective batch 1024 (128 x 2 processes x 4 accumulated), rates are for 128" in caplog.text


def test_the_same_batch_keeps_its_rate():
    assert all(LrScaling(64, rule).factor(64) == 1.0 for rule in ("none", "sqrt", "linear"))


def test_a_task_scales_before_its_schedule_begins():
    def build(lr_scaling):
        task = SingleOptimizerTask(
            lambda p: torch.optim.SGD(p, lr=1.0), lambda o: WarmupLinear(o, 0, 4), lr_scaling=lr_scaling
        )
        task.weight = torch.nn.Parameter(torch.zeros(1))
        task._trainer = trainer(8, 2)
        return task.configure_optimizers()

    assert build(None)["lr_scheduler"]["scheduler"].base_lrs == [1.0]
    assert build(LrScaling(4, "sqrt"))["lr_scheduler"]["scheduler"].base_lrs == [2.0]


def test_what_cannot_be_scaled_is_named():
    with pytest.raises(ValueError, match="rule is one of none, sqrt, linear, not 'cubic'"):
        LrScaling(4, "cubic")
    with pytest.raises(ValueError, match="batch_size is at least 1, not 0"):
        LrScaling(0)
    with pytest.raises(ValueError, match="needs data with a batch_size"):
        LrScaling(4).scale(None, SimpleNamespace(datamodule=None))
