"""The robust guard: what it takes for bad, what it does in which order, and the explosion drill."""

import functools
import logging
import math

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import Dataset

from tests.harness import fingerprint
from zoo.runs.checkpoints import load_checkpoint
from zoo.training.callbacks.checkpoint import Checkpoints
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.guard import DivergedError, RobustGuard, robust_z
from zoo.training.callbacks.loss_monitor import LossMonitor, OriginalMonitor
from zoo.training.callbacks.rng import RNGState
from zoo.training.data import ZooDataModule, item_seed
from zoo.training.schedules import WarmupCosine

NAN = float("nan")
STEPS = 220


class Curve(Dataset):
    """Noisy points of a curve."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, key):
        seed = item_seed(0, *key) if isinstance(key, tuple) else item_seed(1, 0, key)
        x, noise = torch.randn(2, 16, 1, generator=torch.Generator().manual_seed(seed))
        return x, x.sin() + 0.3 * noise


class Points(ZooDataModule):
    def setup(self, stage):
        self.train_set, self.val_set = Curve(64), Curve(8)


class Task(L.LightningModule):
    """Its loss is multiplied at some steps; at one its weights are spoiled."""

    def __init__(self, faults=(), spoiled=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.faults, self.spoiled = dict(faults), spoiled
        self.rates = []

    def training_step(self, batch, batch_idx):
        if self.global_step == self.spoiled:
            nn.init.constant_(self.net[0].weight, NAN)
        x, y = batch
        return (self.net(x) - y).square().mean() * self.faults.get(self.global_step, 1.0)

    def on_before_zero_grad(self, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/loss", (self.net(x) - y).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.03)
        schedule = WarmupCosine(optimizer, warmup_steps=10, total_steps=STEPS, min_factor=0.05)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trainer(*callbacks, **kwargs):
    options = {"max_steps": STEPS, "val_check_interval": STEPS, "num_sanity_val_steps": 0, **kwargs}
    return L.Trainer(
        accelerator="cpu",
        logger=False,
        check_val_every_n_epoch=None,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing="default_root_dir" in options,
        use_distributed_sampler=False,
        callbacks=list(callbacks),
        **options,
    )


def fit(task, *callbacks, ckpt_path=None, **kwargs):
    run = trainer(*callbacks, **kwargs)
    run.fit(task, Points(batch_size=2), ckpt_path=ckpt_path)
    return run


guard = functools.partial(RobustGuard, window=30, calm_steps=10, snapshot_every=20, recover_steps=40)


def test_drill_the_robust_guard_recovers(caplog):
    faults = {60: NAN, 61: 1000.0, 90: 1000.0, 105: NAN}
    robust, task = guard(), Task(faults, spoiled=120)
    with caplog.at_level(logging.WARNING):
        run = fit(task, robust, EMA(["net"], decay=0.9))
    said = [record.getMessage() for record in caplog.records if record.name == "zoo.training.callbacks.guard"]
    ends = ["nan", "times 0.5", "last 30", "nan", "nan", "times 0.5", "times 0.25", "rolled back to batch 103"]
    assert robust.trips == len(said) == len(ends)
    assert all(text.endswith(end) for text, end in zip(said, ends, strict=True))
    assert robust.rolled_back == 0 and robust.multiplier == 1.0  # forgotten after 40 good steps
    clean = fit(Task(), EMA(["net"], decay=0.9))
    assert float(run.callback_metrics["val/loss"]) == pytest.approx(float(clean.callback_metrics["val/loss"]), rel=0.05)


def test_drill_without_a_guard_the_run_is_lost():
    run = fit(Task({10: NAN}), max_steps=12, val_check_interval=12)
    assert math.isnan(float(run.callback_metrics["val/loss"]))


def test_drill_the_original_monitor_decides_as_recorded():
    faults = {20: NAN, 40: 1000.0, 41: 1000.0}
    monitor, losses = OriginalMonitor(), []

    class Watch(L.Callback):
        def on_before_backward(self, trainer, pl_module, loss):
            losses.append((float(loss.detach()), trainer.global_step))

        def on_train_batch_end(self, *args):
            states.append(callback.monitor.state_dict())

    callback, states = LossMonitor(), []
    fit(Task(faults), Watch(), callback, max_steps=60, limit_val_batches=0)
    wanted = []
    for loss, step in losses:
        monitor.update(loss, step)
        wanted.append(monitor.state_dict())
    assert states == wanted and (monitor.nonfinite, monitor.reductions) == (1, 2)


def test_a_resumed_run_rolls_back_as_the_uninterrupted_one(tmp_path):
    def run(name, path=None):
        # the average is listed first: a snapshot taken at the end of a batch would miss its update
        saver = Checkpoints(every_n_batches=31, every_minutes=None, keep_last=3)
        callbacks = [EMA(["net"], decay=0.9), RNGState(), guard(window=15), saver]
        kwargs = {"max_steps": 80, "limit_val_batches": 0, "default_root_dir": tmp_path / name}
        fit(Task(spoiled=60), *callbacks, ckpt_path=path, **kwargs)
        last = tmp_path / name / "step_00000080.ckpt"
        return fingerprint(last), load_checkpoint(last)["callbacks"]["RobustGuard"]

    weights, state = run("whole")
    assert state["rolled_back"] == 1
    for step in (31, 62):  # in calm, and between the second bad step and the roll-back
        other_weights, other_state = run(f"from {step}", tmp_path / "whole" / f"step_{step:08d}.ckpt")
        assert other_weights == weights
        torch.testing.assert_close(other_state, state, rtol=0, atol=0)


def test_it_stops_after_its_roll_backs(caplog):
    faults = dict.fromkeys(range(50, 100), NAN)
    robust = guard(skips=0, reductions=1, rollbacks=2)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(DivergedError, match="after 2 roll-backs, the last: batch"),
    ):
        fit(Task(faults), robust)
    assert robust.trips == 6 and robust.multiplier == 0.125


def test_rates_are_the_schedules_times_a_multiplier_that_recovers():
    plain, task = Task(), Task(dict.fromkeys((50, 51), NAN))
    fit(plain, max_steps=100, limit_val_batches=0)
    robust = guard(recover_steps=10, calm_steps=1)
    fit(task, robust, max_steps=100, limit_val_batches=0)
    factors = [ours / theirs for ours, theirs in zip(task.rates, plain.rates, strict=True)]
    assert factors[:52] == [1.0] * 52
    assert factors[52:62] == pytest.approx([2 ** (step / 10 - 1) for step in range(10)])
    assert factors[63:] == [1.0] * len(factors[63:])


def test_an_explosion_of_the_gradient_alone_is_bad():
    class Steep(Task):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss.detach() + 1000 * (loss - loss.detach()) if self.global_step == 60 else loss

    robust = guard()
    fit(Steep(), robust, max_steps=70, limit_val_batches=0)
    assert robust.trips == 1


def test_robust_z():
    seen = [math.exp(value) for value in (-2, -1, 0, 1, 2)]
    assert robust_z(math.exp(3), seen) == pytest.approx(3 / 1.4826)
    assert robust_z(2.0, [1.0] * 5) == pytest.approx(math.log(2) / 0.1)
    assert robust_z(-1.0, [-3.0, -2.0, -1.0]) == pytest.approx(1 / 1.4826)
    assert robust_z(1.0, [0.0] * 5) == math.inf and robust_z(0.0, [0.0] * 5) == 0.0


def test_refusals():
    with pytest.raises(ValueError, match="threshold is positive"):
        RobustGuard(threshold=0)
    run = trainer()
    run.strategy.__class__ = FSDPStrategy
    with pytest.raises(ValueError, match="FSDPStrategy shards the weights"):
        RobustGuard().setup(run, Task(), "fit")
    run.strategy.__class__ = L.pytorch.strategies.SingleDeviceStrategy
