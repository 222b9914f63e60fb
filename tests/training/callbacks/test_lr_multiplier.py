"""Plateaus and early stopping, by validations every few batches and over a resume."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from toy_wing.data import PairData

from zoo.runs.checkpoints import find_checkpoints
from zoo.training.callbacks.checkpoint import Checkpoints
from zoo.training.callbacks.guard import Plateau
from zoo.training.task import ZooTask

ERRORS = [5.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]  # of the validations


class Task(ZooTask):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.trail = []

    def training_step(self, batch, batch_idx):
        return self.weight.sum()

    def on_train_batch_end(self, *args):
        self.trail.append(self.weight.item())

    def evaluate(self, batch, batch_idx, stage):
        return {"loss": ERRORS[self.global_step // 3 - 1]}, 1

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(folder, callback, max_steps, ckpt_path=None):
    task = Task()
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        val_check_interval=3,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,
        max_steps=max_steps,
        callbacks=[callback, Checkpoints(every_n_steps=1, every_minutes=None, keep_last=100)],
    )
    trainer.fit(task, PairData(items=8, batch_size=2), ckpt_path=ckpt_path)
    return trainer, task


def test_a_plateau_lowers_the_rates_below_any_schedule(tmp_path):
    plateau = Plateau(patience=2, factor=0.1)
    trainer, task = fit(tmp_path, plateau, 16)
    moves = [a - b for a, b in zip([0.0, *task.trail], task.trail, strict=False)]
    # after batch 12 there were two validations without improvement
    factors = [0.1 if batch >= 12 else 1.0 for batch in range(16)]
    assert moves == pytest.approx([factor * 0.5**batch for batch, factor in enumerate(factors)], rel=0.02)
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.5**16


@pytest.mark.parametrize("killed", [8, 9, 10])  # 9: saved before the validation that belongs to it
def test_both_resume_as_if_never_killed(killed, tmp_path):
    whole, plateau = EarlyStopping("val/loss", patience=4, mode="min"), Plateau(patience=3, factor=0.1)
    trainer, _ = fit(tmp_path / "a", whole, 100)
    assert trainer.global_step == 27  # the ninth validation is the fourth without improvement
    fit(tmp_path / "b", plateau, 28)
    for name, callback, end in (
        ("a", EarlyStopping("val/loss", patience=4, mode="min"), 27),
        ("b", Plateau(patience=3, factor=0.1), 28),
    ):
        saved = next(p for p in find_checkpoints(tmp_path / name, "step_*.ckpt") if p.name == f"step_{killed:08d}.ckpt")
        again, _ = fit(tmp_path / f"{name}2", callback, 100 if name == "a" else 28, ckpt_path=saved)
        assert again.global_step == end
        other = whole if name == "a" else plateau
        assert str(callback.state_dict()) == str(other.state_dict())


def test_a_metric_that_is_not_logged_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"monitor 'val/x' is not logged; logged metrics: .*val/loss"):
        fit(tmp_path, Plateau("val/x"), 3)
    with pytest.raises(ValueError, match="factor lies between 0 and 1"):
        Plateau(factor=1.0)
