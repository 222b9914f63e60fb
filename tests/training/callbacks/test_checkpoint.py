"""When a run is saved."""

import functools
import signal
from pathlib import Path

import lightning as L
import pytest
import torch
from toy_wing.data import PairData
from toy_wing.nets import Gain
from toy_wing.task import GainTask

from zoo.runs.checkpoints import find_checkpoints, load_checkpoint
from zoo.training.callbacks.checkpoint import Checkpoints


class SignalAfter(L.Callback):
    def __init__(self, batches: int) -> None:
        self.batches = batches

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx + 1 == self.batches:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("batches", [3, 4, 5])
def test_a_signal_between_the_batches_of_a_step_waits_for_its_end(batches: int, tmp_path: Path) -> None:
    task = GainTask(Gain(), functools.partial(torch.optim.SGD, lr=0.1))
    trainer = L.Trainer(
        accelerator="cpu", accumulate_grad_batches=3, max_steps=5, logger=False, limit_val_batches=0,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[SignalAfter(batches), Checkpoints(every_n_steps=None, every_minutes=None)],
    )  # fmt: skip
    with pytest.raises(SystemExit):
        trainer.fit(task, PairData(items=40, batch_size=2))
    (saved,) = find_checkpoints(tmp_path, "step_*.ckpt")
    progress = load_checkpoint(saved)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
    steps = -(-batches // 3)
    assert (saved.name, progress["processed"]) == (f"step_{steps:08d}.ckpt", 3 * steps)
