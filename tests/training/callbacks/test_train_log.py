from __future__ import annotations

import logging
import warnings

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from zoo.training.callbacks.train_log import TrainLog


class Toy(L.LightningModule):
    def __init__(self, fail=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.fail = fail

    def training_step(self, batch, batch_idx):
        if batch_idx == 1:
            logging.getLogger("zoo.somewhere").info("zoo speaks")
            logging.getLogger("zoo.somewhere").debug("zoo whispers")
            logging.getLogger("lightning.pytorch.x").info("lightning speaks")
            warnings.warn("careful", UserWarning, stacklevel=1)
            if self.fail is not None:
                raise self.fail
        return self.weight.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(folder, module, callback):
    trainer = L.Trainer(
        default_root_dir=folder,
        logger=False,
        max_steps=3,
        accelerator="cpu",
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(torch.ones(8, 1), batch_size=2))


def handlers():
    names = ("zoo", "lightning.pytorch", "lightning.fabric")
    return [list(logging.getLogger(name).handlers) for name in names] + [warnings.showwarning]


@pytest.mark.filterwarnings("default:careful")
def test_train_log_captures_and_closes(tmp_path):
    before, level = handlers(), logging.getLogger("zoo").level
    with pytest.warns(UserWarning, match="careful"):
        shown = warnings.showwarning
        fit(tmp_path, Toy(), TrainLog())
        assert warnings.showwarning is shown
    text = (tmp_path / "train.log").read_text()
    assert "INFO    zoo.somewhere: zoo speaks" in text
    assert "INFO    lightning.pytorch.x: lightning speaks" in text
    assert "WARNING warnings: UserWarning: careful" in text
    assert "whispers" not in text
    assert handlers() == before
    assert logging.getLogger("zoo").level == level


@pytest.mark.filterwarnings("ignore")
def test_train_log_appends_and_records_the_exception(tmp_path):
    before = handlers()
    (tmp_path / "train.log").write_text("earlier\n")
    with pytest.raises(ArithmeticError):
        fit(tmp_path, Toy(fail=ArithmeticError("boom")), TrainLog("DEBUG"))
    text = (tmp_path / "train.log").read_text()
    assert text.startswith("earlier\n")
    assert "ended by ArithmeticError\nTraceback" in text
    assert "zoo whispers" in text
    assert handlers() == before


@pytest.mark.filterwarnings("ignore")
def test_a_stop_leaves_no_traceback(tmp_path):
    with pytest.raises(SystemExit):
        fit(tmp_path, Toy(fail=SystemExit(143)), TrainLog())
    text = (tmp_path / "train.log").read_text()
    assert "ended by SystemExit 143" in text
    assert "Traceback" not in text


def test_train_log_checks_its_level():
    with pytest.raises(ValueError, match="LOUD"):
        TrainLog("LOUD")
