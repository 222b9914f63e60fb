"""Faults on purpose, triggered by the step: what a wall clock triggers mostly hits the imports."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from toy_wing.data import PairData, Pairs


class KillAt(L.Callback):
    """Sends a signal to this process at the end of a batch, in a validation or in the sanity check.

    Args:
        step: number of batches trained.
        signum: 9 kill, 15 SIGTERM, 2 SIGINT, 10 SIGUSR1.
        where: "train", "validation" or "sanity".
        times: how often in a row.
        group: to the whole process group, data workers included, as Ctrl-C and batch systems do.
    """

    def __init__(self, step: int, signum: int = 9, where: str = "train", times: int = 1, group: bool = False) -> None:
        self.step, self.signum, self.where, self.times, self.group = step, signum, where, times, group

    def _send(self, trainer: L.Trainer, where: str) -> None:
        if where == self.where and (where == "sanity" or trainer.global_step == self.step) and self.times:
            Path("signalled").touch()
            while self.times:
                self.times -= 1
                if self.group:
                    os.killpg(os.getpgrp(), self.signum)
                else:
                    os.kill(os.getpid(), self.signum)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._send(trainer, "train")

    def on_validation_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        self._send(trainer, "sanity" if trainer.sanity_checking else "validation")


class Ballast(L.Callback):
    """Makes every checkpoint bigger, so that a kill can hit its writing."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["ballast"] = torch.arange(self.megabytes * 2**18, dtype=torch.int32)


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


class PlainPairs(Pairs):
    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        x = torch.randn(8)
        return {"x": x, "y": 2 * x}


class PlainData(PairData):
    """The usual loader, shuffled and augmented by global generators: the negative control."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(PlainPairs(self.items, self.seed), batch_size=self.batch_size, shuffle=True)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass
