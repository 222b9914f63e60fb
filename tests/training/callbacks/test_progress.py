"""The bar at a terminal, and the lines elsewhere."""

import logging

import lightning as L
import torch
from torch.utils.data import DataLoader

from tests.training.callbacks.parts import make_trainer
from zoo.training.callbacks import progress
from zoo.training.callbacks.checkpoint import Checkpoints
from zoo.training.callbacks.progress import ProgressBar


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 2)

    def training_step(self, batch, batch_idx):
        self.log("train/loss", torch.tensor(float(self.global_step)))
        return self.net(batch).sum()

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", 3.0)

    def test_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


def loader(items):
    return DataLoader(torch.ones(items, 3), batch_size=1)


def test_lines_between_and_after_validations(tmp_path, caplog):
    """A fit of 4 batches, validated on 2, and a test."""
    caplog.set_level(logging.INFO)
    settings = {"num_sanity_val_steps": 1, "enable_checkpointing": True, "enable_progress_bar": True, "max_epochs": 1}
    callbacks = ProgressBar(every_seconds=1e-9), Checkpoints(monitor="val/loss", every_n_steps=None)
    trainer = make_trainer(*callbacks, default_root_dir=tmp_path, log_every_n_steps=1, **settings)
    trainer.fit(Task(), loader(4), loader(2))
    lines = [record.getMessage() for record in caplog.records if record.name == progress.__name__]
    assert lines[0].startswith("validation before step 1 1/1 · 100 %")
    assert [line.split(" · ")[:2] for line in lines[1:5]] == [[f"step {n}/4", f"{25 * n} %"] for n in (1, 2, 3, 4)]
    assert lines[5].startswith("step 4/4") and " · validation 1/2 · 50 %" in lines[5]
    assert lines[-1].endswith("loss 3 · val/loss 3")
    trainer.test(Task(), loader(3), verbose=False)
    assert "test 2/3 · 67 %" in caplog.text
