"""When a task samples, and that sampling reaches nothing else."""

from __future__ import annotations

import logging
import os
import random

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.training.callbacks.parts import make_trainer
from zoo.training.callbacks.media import log_table
from zoo.training.callbacks.rng import RNGState
from zoo.training.callbacks.samples import Samples
from zoo.training.task import ZooTask

EPOCHS = {"max_steps": -1, "check_val_every_n_epoch": 1}


class Toy(ZooTask):
    inference_class, inference_modules = "", ()

    def __init__(self, sample=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.sample = sample
        self.calls = []

    def training_step(self, batch, batch_idx):
        return (self.weight * batch + torch.rand(1) - self.weight * random.random() * np.random.rand()).sum()

    def evaluate(self, batch, batch_idx, stage):
        return {"loss": self.weight.detach().sum()}, len(batch)

    def log_samples(self, batches, last):
        assert not self.training and not torch.is_grad_enabled()
        self.calls.append((self.global_step, [len(batch) for batch in batches], last, float(torch.rand(1))))
        if self.sample is not None:
            self.sample(self)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(folder, samples, task=None, **settings):
    """Train 8 steps in epochs of 4, validated after every second one."""
    task = task or Toy()
    periods = {"max_steps": 8, "val_check_interval": 2, "check_val_every_n_epoch": None, "num_sanity_val_steps": 0}
    trainer = make_trainer(RNGState(), samples, default_root_dir=folder, **{"devices": 1, **periods, **settings})
    L.seed_everything(3)
    loader = DataLoader(torch.ones(10, 1), batch_size=3)
    trainer.fit(task, loader, loader)
    return task


def test_first_items_with_one_seed(tmp_path):
    calls = train(tmp_path, Samples(items=4, every_n_validations=1)).calls
    assert [sizes for _, sizes, *_ in calls] == [[3, 3]] * 4 and len({number for *_, number in calls}) == 1


@pytest.mark.parametrize(
    ("every", "settings", "steps", "last"),
    [
        (1000, {}, [2, 8], 8),
        (1, {"max_steps": 7, "num_sanity_val_steps": 2}, [2, 4, 6], 6),  # no validation at the 7th
        (1, {"max_steps": 4, "num_sanity_val_steps": -1}, [0, 2, 4], 4),
        (1, {"max_steps": 4, "accumulate_grad_batches": 2}, [1, 2, 3, 4], 4),
        (1, {"max_steps": 9, "val_check_interval": None, "check_val_every_n_epoch": 2}, [8], 8),
        (1, {**EPOCHS, "max_epochs": 2, "val_check_interval": None}, [4, 8], 8),
        (9, {**EPOCHS, "max_epochs": 3, "val_check_interval": 2}, [2, 12], 12),
        (9, {**EPOCHS, "max_steps": 10, "val_check_interval": 3}, [3, 7], 7),  # the third of an epoch, then the 11th
        (9, {**EPOCHS, "max_steps": 14, "val_check_interval": 3, "check_val_every_n_epoch": 2}, [7], 7),
    ],
)
def test_first_and_last_validation_have_samples(tmp_path, every, settings, steps, last):
    calls = train(tmp_path, Samples(every_n_validations=every), **settings).calls
    assert [(step, is_last) for step, _, is_last, _ in calls] == [(step, step == last) for step in steps]


def test_samples_change_no_weight(tmp_path, caplog):
    def fail(task):
        random.random(), np.random.rand(), torch.rand(5)
        raise OSError("no space left")

    every = {"every_n_validations": 1}
    cases = [(None, {"enabled": False}), (None, every), (fail, every)]
    with caplog.at_level(logging.WARNING):
        weights = [train(tmp_path, Samples(**settings), Toy(sample)).weight.item() for sample, settings in cases]
    assert len(set(weights)) == 1
    assert sum("no space left" in record.message for record in caplog.records) == 1


def _rank(rank, store, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    environ = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(environ, GROUP_RANK="0", TORCHELASTIC_RUN_ID="x", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    task = Toy(lambda task: log_table(task, "x", ["rank"], [[rank]]))
    settings = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    train(folder, Samples(every_n_validations=1), task, **settings)
    assert [step for step, *_ in task.calls] == [2, 4, 6, 8]


def test_ranks_sample_together_and_one_writes(tmp_path):
    from torch.multiprocessing import start_processes

    start_processes(_rank, (str(tmp_path / "store"), str(tmp_path)), nprocs=2, start_method="fork")
    tables = list((tmp_path / "media").rglob("*.csv"))
    assert len(tables) == 4 and {file.read_text() for file in tables} == {"rank\n0\n"}
