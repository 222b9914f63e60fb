from __future__ import annotations

import errno
import io
import logging
from pathlib import Path

import lightning as L
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from zoo.runs.metrics_csv import MetricsCSV, read_metrics


def test_rows_and_widened_header(tmp_path):
    logger = MetricsCSV(tmp_path / "run")
    logger.log_metrics({"a": 0.1, "epoch": 0}, step=4)
    logger.log_metrics({"a,b": torch.tensor(float("nan")), "epoch": 1}, step=9)
    logger.log_metrics({"a": 3.0}, step=10)
    assert logger.path.read_text() == 'step,epoch,a,"a,b"\n4,0,0.1,\n9,1,,nan\n10,,3.0,\n'
    assert [path.name for path in logger.path.parent.iterdir()] == ["metrics.csv"]
    assert read_metrics(tmp_path / "run")[1] == {"step": "9", "epoch": "1", "a": "", "a,b": "nan"}
    MetricsCSV(tmp_path / "run").log_metrics({"a": 4.0}, step=11)
    assert [row["a"] for row in read_metrics(logger.path)] == ["0.1", "", "3.0", "4.0"]


@pytest.mark.parametrize("torn", ["2,0", "2,0,3.", "\x00\x00", "2,0,3.0,4.0\n", "garbage,0,1.0\n"])
def test_torn_last_line_is_dropped(tmp_path, torn):
    MetricsCSV(tmp_path).log_metrics({"a": 1.0, "epoch": 0}, step=1)
    path = tmp_path / "metrics.csv"
    complete = path.read_text()
    path.write_text(complete + torn)
    MetricsCSV(tmp_path).log_metrics({"a": 5.0, "epoch": 0}, step=2)
    assert path.read_text() == complete + "2,0,5.0\n"


@pytest.mark.parametrize("torn", ["", "ste", "step,epoch,a"])
def test_torn_header_starts_anew(tmp_path, torn):
    (tmp_path / "metrics.csv").write_text(torn)
    MetricsCSV(tmp_path).log_metrics({"a": 1.0}, step=0)
    assert (tmp_path / "metrics.csv").read_text() == "step,epoch,a\n0,,1.0\n"


def test_file_of_another_program_is_not_touched(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,step\n0,1\n")
    with pytest.raises(ValueError, match=r"metrics\.csv was not written by zoo"):
        MetricsCSV(tmp_path).log_metrics({"a": 1.0}, step=0)
    assert (tmp_path / "metrics.csv").read_text() == "epoch,step\n0,1\n"


CALLS = st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(CALLS, st.integers(0, 11), st.integers(0, 11))
def test_killed_and_resumed_equals_uninterrupted(tmp_path_factory, calls, checkpoint, killed):
    def log(logger, start, stop):
        for step in range(start, min(stop, len(calls))):
            logger.log_metrics({"epoch": 0} | {key: step / 7 for key in sorted(calls[step])}, step=step)

    whole, resumed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("resumed")
    log(MetricsCSV(whole), 0, len(calls))
    log(MetricsCSV(resumed), 0, max(checkpoint, killed))
    again = MetricsCSV(resumed)
    again.trim(checkpoint - 1)
    log(again, checkpoint, len(calls))
    assert (resumed / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()


def test_trim_keeps_rows_without_step_and_drops_unused_columns(tmp_path):
    logger = MetricsCSV(tmp_path)
    logger.trim(1)
    assert list(tmp_path.iterdir()) == []
    logger.log_metrics({"a": 1.0}, step=1)
    logger.log_metrics({"a": 2.0})
    logger.log_metrics({"b": 3.0}, step=2)
    logger.trim(1)
    assert logger.path.read_text() == "step,epoch,a\n1,,1.0\n,,2.0\n"


def test_full_disk_loses_no_row_and_leaves_no_torn_line(tmp_path, caplog):
    logger = MetricsCSV(tmp_path)
    logger.log_metrics({"a": 1.0}, step=0)

    class FullDisk(io.FileIO):
        def write(self, data):
            super().write(bytes(data)[:2])
            raise OSError(errno.ENOSPC, "No space left on device")

    write = Path.open
    with caplog.at_level(logging.WARNING), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode="r", *rest, **names: (
            FullDisk(self, "a") if mode == "ab" else write(self, mode, *rest, **names)
        ))  # fmt: skip
        patch.setattr(
            "zoo.runs.metrics_csv.write_atomic", lambda path, write: FullDisk(tmp_path / "aside", "w").write(b"")
        )
        logger.log_metrics({"a": 2.0}, step=1)
        logger.log_metrics({"b": 3.0}, step=2)
    assert [record.message.count("the disk is full") for record in caplog.records] == [1]
    logger.finalize("success")
    assert logger.path.read_text() == "step,epoch,a,b\n0,,1.0,\n1,,2.0,\n2,,,3.0\n"


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = MetricsCSV(tmp_path / "run")
    logger.log_metrics({"a": 1.0}, step=0)
    logger.trim(0)
    assert not (tmp_path / "run").exists()


class Toy(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        self.log("train/seen", float(self.global_step), on_step=True, on_epoch=False)
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val/seen", float(self.global_step))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Script(L.Callback):
    """Saves after `save` batches and dies at the start of batch number `die`."""

    def __init__(self, folder, save=None, die=None):
        self.folder, self.save, self.die = folder, save, die

    def on_train_start(self, trainer, module):
        trainer.logger.trim(module.global_step - 1)

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.save:
            trainer.save_checkpoint(self.folder / "saved.ckpt")

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == self.die:
            raise KeyError("killed")


def train(folder, ckpt_path=None, **script):
    data = DataLoader(torch.ones(6, 1))
    logger = MetricsCSV(folder)
    trainer = L.Trainer(
        default_root_dir=folder,
        logger=logger,
        max_epochs=2,
        val_check_interval=3,
        log_every_n_steps=2,
        accelerator="cpu",
        callbacks=[Script(folder, **script)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    assert trainer.log_dir == str(folder)
    trainer.fit(Toy(), data, DataLoader(torch.ones(2, 1)), ckpt_path=ckpt_path)
    return (folder / "metrics.csv").read_text()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("save", "die"), [(2, 5), (5, 6), (8, 11)])
def test_trainer_killed_and_resumed_writes_the_same_file(tmp_path, save, die):
    whole = train(tmp_path / "whole")
    assert whole.splitlines()[0] == "step,epoch,train/seen,val/seen"
    with pytest.raises(KeyError, match="killed"):
        train(tmp_path / "resumed", save=save, die=die)
    assert train(tmp_path / "resumed", ckpt_path=tmp_path / "resumed" / "saved.ckpt") == whole
