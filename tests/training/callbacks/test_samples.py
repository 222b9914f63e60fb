from __future__ import annotations

import logging
import os
import random

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from zoo.training.callbacks.media import log_table
from zoo.training.callbacks.samples import Samples
from zoo.training.resume import RNGState
from zoo.training.task import ZooTask


class Toy(ZooTask):
    inference_class, inference_modules = "", ()

    def __init__(self, draw=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.draw = draw
        self.seen = []

    def training_step(self, batch, batch_idx):
        return (self.weight * batch + torch.rand(1) - self.weight * random.random() * np.random.rand()).sum()

    def evaluate(self, batch, batch_idx, stage):
        return {"loss": self.weight.detach().sum()}, len(batch)

    def log_samples(self, batches, last):
        self.seen.append((self.global_step, [len(batch) for batch in batches], last, float(torch.rand(1))))
        assert not self.training
        assert not torch.is_grad_enabled()
        if self.draw is not None:
            self.draw(self)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(task, folder, samples=None, **settings):
    callbacks = [RNGState()] if samples is None else [RNGState(), samples]
    arguments = {"max_steps": 8, "val_check_interval": 2, "check_val_every_n_epoch": None, "devices": 1, **settings}
    trainer = L.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=arguments.pop("num_sanity_val_steps", 0),
        **arguments,
    )
    L.seed_everything(3)
    loader = DataLoader(torch.ones(10, 1), batch_size=3)
    trainer.fit(task, loader, loader)
    return task


def test_first_items_and_one_seed(tmp_path):
    drawn = train(Toy(), tmp_path, Samples(items=4, every_n_validations=1)).seen
    assert [(step, sizes, last) for step, sizes, last, _ in drawn] == [
        (2, [3, 3], False),
        (4, [3, 3], False),
        (6, [3, 3], False),
        (8, [3, 3], True),
    ]
    assert len({number for *_, number in drawn}) == 1


def test_first_and_last_always(tmp_path):
    drawn = train(Toy(), tmp_path, Samples(every_n_validations=1000)).seen
    assert [(step, last) for step, _, last, _ in drawn] == [(2, False), (8, True)]


@pytest.mark.parametrize(
    ("settings", "steps", "last"),
    [
        ({"max_steps": 7}, [2, 4, 6], 6),  # no validation at the 7th
        ({"max_steps": -1, "max_epochs": 2, "val_check_interval": None, "check_val_every_n_epoch": 1}, [4, 8], 8),
        ({"max_steps": -1, "max_epochs": 3, "val_check_interval": 2, "check_val_every_n_epoch": 1},
         [2, 4, 6, 8, 10, 12], 12),
        ({"max_steps": 9, "val_check_interval": None, "check_val_every_n_epoch": 2}, [8], 8),
        ({"max_steps": 4, "accumulate_grad_batches": 2}, [1, 2, 3, 4], 4),
    ],
)  # fmt: skip
def test_last_validation_is_known(tmp_path, settings, steps, last):
    drawn = train(Toy(), tmp_path, Samples(every_n_validations=1), **settings).seen
    assert [step for step, *_ in drawn] == steps
    assert [step for step, _, is_last, _ in drawn if is_last] == [last]


def test_samples_change_no_weight(tmp_path, caplog):
    def spoil(task):
        random.random(), np.random.rand(), torch.rand(5)
        raise RuntimeError("no picture today")

    with caplog.at_level(logging.WARNING):
        results = {
            name: train(Toy(draw), tmp_path, samples).weight.item()
            for name, draw, samples in (
                ("none", None, None),
                ("off", None, Samples(enabled=False)),
                ("on", None, Samples(every_n_validations=1)),
                ("failing", spoil, Samples(every_n_validations=1)),
            )
        }
    assert len(set(results.values())) == 1
    assert [record.message for record in caplog.records if "no picture today" in record.message] == [
        "samples failed, and will be missing (said once): RuntimeError: no picture today"
    ]


@pytest.mark.parametrize(("sanity", "expected"), [(2, [2, 4, 6, 8]), (-1, [0, 2, 4, 6, 8])])
def test_only_a_whole_sanity_check_shows_samples(tmp_path, sanity, expected):
    drawn = train(Toy(), tmp_path, Samples(every_n_validations=1), num_sanity_val_steps=sanity).seen
    assert [step for step, *_ in drawn] == expected


def test_off(tmp_path):
    task = train(Toy(), tmp_path, Samples(enabled=False))
    assert task.seen == []
    assert not (tmp_path / "media").exists()


def _rank(rank, store, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

    def draw(task):
        log_table(task, "x", ["rank"], [[rank]])

    task = Toy(draw)
    environ = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(environ, GROUP_RANK="0", TORCHELASTIC_RUN_ID="x", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    train(task, folder, Samples(every_n_validations=1), devices=2, strategy="ddp", use_distributed_sampler=False)
    assert [step for step, *_ in task.seen] == [2, 4, 6, 8]


def test_ranks_agree_and_one_writes(tmp_path):
    from torch.multiprocessing import start_processes

    start_processes(_rank, (str(tmp_path / "store"), str(tmp_path)), nprocs=2, start_method="fork")
    tables = list((tmp_path / "media").rglob("*.csv"))
    assert len(tables) == 4
    assert {file.read_text() for file in tables} == {"rank\n0\n"}


@pytest.mark.parametrize("settings", [{"items": 0}, {"every_n_validations": 0}, {"seed": -1}])
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Samples(**settings)
