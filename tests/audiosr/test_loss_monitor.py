"""The original's monitor in the Trainer: what a left-out micro-batch leaves, and when training ends."""

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from tests.training.callbacks.parts import make_trainer
from zoo.audiosr.loss_monitor import LossMonitor

NAN = float("nan")


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)
        self.trail = []

    def training_step(self, scale, batch_idx):
        return (self.net(torch.full((1, 2), 1.0 + batch_idx)) * scale).square().mean()

    def on_train_batch_end(self, *args):
        self.trail.append(self.net.weight.detach().clone())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def fit(scales, monitor, ckpt_path=None, **kwargs):
    task = Task()
    trainer = make_trainer(*([monitor] if monitor else []), **{"max_epochs": 1, **kwargs})
    trainer.fit(task, DataLoader([torch.tensor(scale) for scale in scales], batch_size=None), ckpt_path=ckpt_path)
    return trainer, task


def fp16():
    return [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=8.0))]


@pytest.mark.parametrize("plugins", [list, fp16], ids=["fp32", "fp16"])
def test_a_loss_that_is_not_finite_is_left_out(plugins):
    monitor = LossMonitor()
    _, task = fit([1.0, NAN, NAN, 1.0], monitor, plugins=plugins(), accumulate_grad_batches=1)
    assert torch.equal(task.trail[0], task.trail[2]) and not torch.equal(task.trail[2], task.trail[3])
    assert monitor.monitor.nonfinite == 2


@pytest.mark.parametrize("plugins", [list, fp16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("bad", [0, 1])
def test_the_rest_of_its_window_counts(plugins, bad):
    scales = [1.0, 1.0]
    _, plain = fit([0.0 if i == bad else scale for i, scale in enumerate(scales)], None, accumulate_grad_batches=2)
    scales[bad] = NAN
    _, task = fit(scales, LossMonitor(), accumulate_grad_batches=2, plugins=plugins())
    torch.testing.assert_close(task.trail[-1], plain.trail[-1], atol=1e-4, rtol=0)


def test_it_stops_and_keeps_its_counters(tmp_path):
    first = LossMonitor(patience=3)
    trainer, task = fit([1.0, 5.0, 5.0, 5.0, 5.0, 5.0], first)
    assert len(task.trail) == 4
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=True)
    second = LossMonitor(patience=3)
    _, task = fit([5.0] * 8, second, ckpt_path=tmp_path / "a.ckpt", max_epochs=2)
    assert second.monitor.best == first.monitor.best and len(task.trail) == 1
