"""The first loss scale of float16."""

import logging

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from zoo.training.callbacks.loss_scale import LossScale
from zoo.training.callbacks.metrics import TrainingMetrics


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder, callback, fp16=True, ckpt_path=None, steps=1):
    trainer = L.Trainer(
        accelerator="cpu",
        plugins=[MixedPrecision("16-mixed", "cpu")] if fp16 else [],
        logger=[L.pytorch.loggers.CSVLogger(folder)],
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        max_steps=steps,
        callbacks=[callback, TrainingMetrics()],
    )
    trainer.fit(Task(), DataLoader(torch.ones(4, 2)), ckpt_path=ckpt_path)
    return trainer


def test_the_scale_is_set_logged_and_resumed(tmp_path):
    trainer = fit(tmp_path, LossScale(1024.0, growth_interval=2), steps=3)
    assert float(trainer.callback_metrics["train/amp_scale"]) == trainer.precision_plugin.scaler.get_scale() == 2048.0
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = fit(tmp_path, LossScale(1.0), ckpt_path=tmp_path / "a.ckpt", steps=4)
    assert again.precision_plugin.scaler.get_scale() == 4096.0


def test_other_precisions_need_none(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        trainer = fit(tmp_path, LossScale(), fp16=False)
    assert "precision 32-true scales no loss" in caplog.text
    assert "train/amp_scale" not in trainer.callback_metrics
    with pytest.raises(ValueError, match="init_scale is positive"):
        LossScale(0.0)
