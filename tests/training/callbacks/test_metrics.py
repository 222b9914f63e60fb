"""Metrics of the training itself, and train.log."""

from __future__ import annotations

import contextlib
import logging
import warnings

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from tests.training.callbacks.parts import make_trainer
from zoo.runs.metrics_csv import MetricsCSV, read_metrics
from zoo.training.callbacks.metrics import TrainingMetrics, count_items
from zoo.training.callbacks.train_log import LOGGERS, TrainLog

pytestmark = pytest.mark.filterwarnings("ignore")


def test_items_are_counted():
    batches = torch.zeros(3, 2), {"name": ["a", "b"], "audio": torch.zeros(4, 1)}, ([], [torch.zeros(5)]), ["a"], None
    assert [count_items(batch) for batch in batches] == [3, 4, 5, 1, 1]


class Toy(L.LightningModule):
    optimizer_names = ("toy",)

    def __init__(self, manual=False, error=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.automatic_optimization, self.error = not manual, error

    def training_step(self, batch, batch_idx):
        loss = self.weight[0] * 3.0 + self.weight[1] * 4.0
        if not self.automatic_optimization:
            self.manual_backward(loss)
            self.optimizers().step()
        if batch_idx == 1:
            logging.getLogger("zoo.somewhere").warning("zoo speaks")
            logging.getLogger("lightning.pytorch.x").info("lightning speaks")
            warnings.warn("careful", UserWarning, stacklevel=1)
            if self.error is not None:
                raise self.error
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(folder, module, callback, **settings):
    settings |= {"default_root_dir": folder, "logger": MetricsCSV(folder), "log_every_n_steps": 2, "max_epochs": 1}
    trainer = make_trainer(callback, **settings)
    trainer.fit(module, DataLoader(torch.ones(8, 1), batch_size=2))
    return read_metrics(folder) if (folder / "metrics.csv").is_file() else []


@pytest.mark.parametrize("manual", [False, True])
def test_resources_and_gradient_norm(tmp_path, manual):
    accumulation = {} if manual else {"gradient_clip_val": 1.0, "accumulate_grad_batches": 2}
    row = fit(tmp_path, Toy(manual=manual), TrainingMetrics(), **accumulation)[0]
    assert row["step"] == "1" and float(row["train/lr_toy"]) == 0.5
    assert 0.0 <= float(row["train/data_wait"]) < 1.0 < float(row["train/samples_per_sec"])
    assert 0.0 < float(row["train/memory_gib"]) < 64.0 and "train/amp_scale" not in row
    if manual:
        assert "train/grad_norm" not in row  # such tasks log their own
    else:
        assert float(row["train/grad_norm"]) == pytest.approx(5.0)


@pytest.mark.parametrize("error", [None, ArithmeticError("boom"), SystemExit(143)])
def test_train_log_has_reports_and_the_end(tmp_path, error):
    before = [list(logging.getLogger(name).handlers) for name in LOGGERS if name != "py.warnings"]
    (tmp_path / "train.log").write_text("earlier\n")
    with warnings.catch_warnings(), pytest.raises(type(error)) if error else contextlib.nullcontext():
        warnings.simplefilter("always")
        fit(tmp_path, Toy(error=error), TrainLog())
    text = (tmp_path / "train.log").read_text()
    assert text.startswith("earlier\n") and "WARNING zoo.somewhere: zoo speaks" in text and "careful" in text
    assert "INFO    lightning.pytorch.x: lightning speaks" in text
    assert ("ended by" in text) == (error is not None)
    assert ("ended by ArithmeticError\nTraceback" in text) == isinstance(error, ArithmeticError)
    assert "Traceback" not in text or isinstance(error, ArithmeticError)
    assert [list(logging.getLogger(name).handlers) for name in LOGGERS if name != "py.warnings"] == before
