"""Faults on purpose, triggered by the step: what a wall clock triggers mostly hits the imports."""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader

from toy_system.data import PairData
from toy_system.inference import Amplifier
from toy_system.task import GainTask
from zoo.runs.run_folder import run_folder
from zoo.training.callbacks import media


class KillAt(L.Callback):
    """Sends a signal to this process at the end of a batch, in a validation or in the sanity check.

    Args:
        step: number of batches trained.
        signum: 9 kill, 15 SIGTERM, 2 SIGINT, 10 SIGUSR1.
        where: "train", "validation", "sanity", or "media": after the first sample that a validation writes.
        times: how often in a row.
        group: to the whole process group, data workers included, as Ctrl-C and batch systems do.
    """

    def __init__(self, step: int, signum: int = 9, where: str = "train", times: int = 1, group: bool = False) -> None:
        self.step, self.signum, self.where, self.times, self.group = step, signum, where, times, group

    def _send(self, trainer: L.Trainer, where: str) -> None:
        if where == self.where and (where == "sanity" or trainer.global_step == self.step) and self.times:
            (run_folder(trainer).parent / "signalled").touch()
            while self.times:
                self.times -= 1
                if self.group:
                    os.killpg(os.getpgrp(), self.signum)
                else:
                    os.kill(os.getpid(), self.signum)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        write = media._write_and_log

        def keep(task: L.LightningModule, *given: Any) -> None:
            write(task, *given)
            self._send(task.trainer, "media")

        media._write_and_log = keep

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._send(trainer, "train")

    def on_validation_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        self._send(trainer, "sanity" if trainer.sanity_checking else "validation")


class Misfortune(L.Callback):
    """Kills one rank of several before a batch, once in a run.

    Args:
        rank: whom.
        step: number of batches trained.
    """

    def __init__(self, rank: int, step: int) -> None:
        self.rank, self.step = rank, step

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        struck = run_folder(trainer) / "struck"
        if (trainer.global_rank, trainer.global_step) != (self.rank, self.step) or struck.exists():
            return
        struck.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Ballast(L.Callback):
    """Makes every checkpoint bigger, so that a kill can hit its writing."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["ballast"] = torch.arange(self.megabytes * 2**18, dtype=torch.int32)


class Hungry(L.Callback):
    """Holds memory while a batch is trained, by its items."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes
        self.held: torch.Tensor | None = None

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.held = None  # before the next is made
        self.held = torch.ones(len(batch["x"]) * self.megabytes << 18)


class FillDisk(L.Callback):
    """Fills the disk of the run folder before one batch and frees it before a later one.

    Args:
        step: number of batches trained when the disk fills.
        until: number of batches trained when it is freed; None for never.
        spare: bytes left free, so that a write fails in its middle.
    """

    def __init__(self, step: int, until: int | None = None, spare: int = 0) -> None:
        self.step, self.until, self.spare = step, until, spare

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        filler = Path(trainer.default_root_dir).parent / "filler"
        if trainer.global_step == self.step:
            fill(filler, self.spare)
        if trainer.global_step == self.until:
            filler.unlink()


def fill(filler: Path, spare: int = 0) -> None:
    """Fill a disk with a file, but for `spare` bytes."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        room = shutil.disk_usage(filler.parent).free - spare
        while room > 0:
            room -= file.write(bytes(min(room, 2**16)))


class PlainData(PairData):
    """The usual loader, shuffled by the global generator: a resume trains on other batches."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train_set, self.batch_size, shuffle=True)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class BrokenLogger(Logger):
    """A service that fails from one call on.

    Args:
        calls: how many calls it serves.
    """

    name, version, experiment = "broken", 0, None

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.calls -= 1
        if self.calls < 1:
            raise ConnectionError("the service is gone")

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        raise ConnectionError("the service is gone")

    save = finalize = after_save_checkpoint = log_hyperparams


class DyingAmplifier(Amplifier):
    """Kills its process in the middle of one file, named by TOY_DIES_AT, and notes every file that it finished.

    It takes TOY_SECONDS for each.
    """

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        time.sleep(float(os.environ.get("TOY_SECONDS", "0")))
        if source.stem == os.environ.get("TOY_DIES_AT"):
            target.with_name(f".{target.name}.tmp-{os.getpid()}").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        facts = super().process_file(source, target)
        with Path("finished").open("a") as file:
            file.write(f"{source.stem}\n")
        return facts


class DyingTask(GainTask):
    inference_class = "toy_system.DyingAmplifier"
