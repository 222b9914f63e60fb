"""The first and last lines of a run: what is trained, and the results."""

from __future__ import annotations

import contextlib
import logging
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import Callback, Timer
from torch.utils.data import IterableDataset

from zoo.common.environment import describe_device
from zoo.common.registry import allowed_packages, public_name
from zoo.runs.checkpoints import find_checkpoints, step_of
from zoo.runs.csv_log import CSV_NAME, read_metrics
from zoo.runs.folder import run_folder
from zoo.runs.listing import read_run
from zoo.training.callbacks.checkpoint import Checkpoints, score_of
from zoo.training.callbacks.progress import LOSSES, duration, number, shown_metrics, steps_of
from zoo.training.callbacks.train_log import LOG_NAME, log_file
from zoo.training.datamodule import ZooDataModule
from zoo.training.schedules import accumulated_batches
from zoo.training.signals import Interrupted

log = logging.getLogger(__name__)

MEDIA_NAME = "media"


class Banner(Callback):
    """Prints what is trained, with which data and where, when a fit starts.

    Args:
        recipe: its name, e.g. `hifigan/smoke`.
    """

    def __init__(self, recipe: str | None = None) -> None:
        self.recipe = recipe

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Gather every rank's device name and log the facts once."""
        here = describe_device(trainer.strategy.root_device)
        places: list[Any] = [here]
        if trainer.world_size > 1:
            import torch.distributed as dist

            places = [None] * trainer.world_size
            dist.all_gather_object(places, here)
        if trainer.is_global_zero:
            recipe = {} if self.recipe is None else {"recipe": self.recipe}
            _log_table({**recipe, **facts(trainer, pl_module, places)})


def _log_table(rows: Mapping[str, str | list[str]]) -> None:
    for key, texts in rows.items():
        for line, text in enumerate([texts] if isinstance(texts, str) else texts):
            log.info("%-15s %s", "" if line else key, text)


def facts(trainer: L.Trainer, module: L.LightningModule, places: Sequence[str]) -> dict[str, str]:
    """Describe a run.

    Args:
        trainer: with its strategy and datamodule connected.
        places: the devices, by rank.

    Returns:
        Text by name, in the order in which it is shown.
    """
    world, data = trainer.world_size, getattr(trainer, "datamodule", None)
    described = {"system": public_name(type(module)), "parameters": _parameters(module)}
    if items := _items(data, world):
        described["data"] = items
    batch = getattr(data, "batch_size", None)
    if isinstance(batch, int):
        described["effective batch"] = _effective_batch(batch, world, accumulated_batches(trainer))
    accumulate = getattr(getattr(module, "step", None), "accumulate", 1)
    if isinstance(accumulate, int) and accumulate > 1:
        # A GAN task splits its batch, so this saves memory and does not enlarge the batch.
        described["micro-batches"] = f"{accumulate} of each batch"
    for config in trainer.lr_scheduler_configs:
        end = getattr(config.scheduler, "total_steps", None)
        if config.interval == "step" and end is not None and end < trainer.max_steps:
            described[f"schedule {config.name}"] = f"ends at step {end} of {trainer.max_steps} (total_steps)"
    if world > 1:
        nodes = f"{trainer.num_nodes} node{'s' if trainer.num_nodes > 1 else ''}"
        described["processes"] = f"{world} on {nodes}, {type(trainer.strategy).__name__}"
        described |= {f"rank {rank}": place for rank, place in enumerate(places)}
    else:
        idle = isinstance(trainer.accelerator, CPUAccelerator) and torch.cuda.is_available()
        described["device"] = places[0] + (" (there is a GPU: trainer.accelerator=gpu)" if idle else "")
    described["precision"] = str(trainer.precision)
    if trainer.ckpt_path is not None:
        described["goes on from"] = str(trainer.ckpt_path)
    described["run folder"] = str(trainer.default_root_dir)
    return described


def _parameters(module: L.LightningModule) -> str:
    """`62,927 trained (generator 25,200, mpd 37,727), 94,371,712 frozen (encoder)`."""
    told = []
    for word, trained in (("trained", True), ("frozen", False)):
        counts = {
            name: sum(weight.numel() for weight in part.parameters() if weight.requires_grad is trained)
            for name, part in module.named_children()
        }
        parts = [f"{name} {count:,}" for name, count in counts.items() if count]
        if parts:
            total = sum(weight.numel() for weight in module.parameters() if weight.requires_grad is trained)
            told.append(f"{total:,} {word} ({', '.join(parts) if len(parts) > 1 else parts[0].partition(' ')[0]})")
    return ", ".join(told)


def _items(data: Any, world: int) -> str:
    """`1,600 items to train on, 100 batches an epoch, 197 to validate`."""
    if not isinstance(data, ZooDataModule):
        return ""
    if isinstance(data.train_set, IterableDataset):
        told = ["a stream to train on"]
    else:
        batches = len(data.train_batches(0, world))
        told = [f"{len(data.train_set):,} items to train on, {batches:,} batches an epoch"]  # type: ignore[arg-type]
    with contextlib.suppress(AttributeError, TypeError):  # there may be none, or a stream
        told.append(f"{len(data.val_set):,} to validate")  # type: ignore[arg-type]
    return ", ".join(told)


def _effective_batch(batch: int, world: int, accumulation: int) -> str:
    if world * accumulation == 1:
        return str(batch)
    parts = [f"{batch} per process", f"{world} processes" if world > 1 else "1 process"]
    parts += [f"{accumulation} accumulated batches"] if accumulation > 1 else []
    return f"{batch * world * accumulation} = {' x '.join(parts)}"


@contextlib.contextmanager
def told_at_end(trainer: L.Trainer, start: int, metrics: Sequence[str] | None = None) -> Iterator[None]:
    """Tell a fit's results when it ends, whatever ends it; errors before the first step tell enough themselves.

    Args:
        start: steps done before it, >= 0.
        metrics: keys of the values to tell; see `TerminalSettings`.
    """
    began = time.monotonic()
    error: BaseException | None = None
    try:
        yield
    except BaseException as caught:
        error = caught
        raise
    finally:
        begun = trainer.global_step > start or error is None or isinstance(error, Interrupted)
        if trainer.is_global_zero and begun and run_folder(trainer).is_dir():
            with contextlib.suppress(OSError, ValueError), log_file(run_folder(trainer) / LOG_NAME, log):
                _log_table(results(trainer, error, start, time.monotonic() - began, metrics))


def results(
    trainer: L.Trainer, error: BaseException | None, start: int, seconds: float, metrics: Sequence[str] | None
) -> dict[str, str | list[str]]:
    """What came of a fit.

    Args:
        trainer: of the fit that ended.
        error: what ended it, if anything did before its time.
        start: steps done before it.
        metrics: keys of the values to tell; see `TerminalSettings`.

    Returns:
        Texts by name, in the order in which they are shown.
    """
    folder = run_folder(trainer)
    checkpoints = next((each for each in trainer.checkpoint_callbacks if isinstance(each, Checkpoints)), None)
    monitor = None if checkpoints is None else checkpoints.monitor
    how = "trained" if error is None else "failed" if isinstance(error, Exception) else "stopped"
    told: dict[str, str | list[str]] = {how: _course(trainer, start, seconds)}
    last = find_checkpoints(folder, "step_*.ckpt")[:1]
    told["run folder"] = f"{folder} ({last[0].name})" if last else str(folder)
    best = sorted(folder.glob("best-step_*.ckpt"), key=score_of)
    if best and checkpoints is not None:
        path = best[0 if checkpoints.mode == "min" else -1]
        told["best"] = f"{monitor} {number(score_of(path))} at step {step_of(path):,} ({path.name})"
    rows = read_metrics(folder) if (folder / CSV_NAME).is_file() else []
    for key in shown_metrics(rows[0] if rows else (), metrics, monitor):
        values = [float(row[key]) for row in rows if row[key]]
        if values:
            told[key.removeprefix("train/")] = f"first {number(values[0])}, last {number(values[-1])}"
    broken = {key: step for key in LOSSES if (step := _broken_from(rows, key)) is not None}
    if broken:
        said = ", ".join(f"{key.removeprefix('train/')} from step {step:,} on" for key, step in broken.items())
        told["not finite"] = f"{said}: such weights are of no use; zoo.training.LossGuard skips bad batches"
    if (folder / MEDIA_NAME).is_dir():
        told["samples"] = str(folder / MEDIA_NAME)
    if last:
        told["next"] = next_commands(folder, trainer.lightning_module, ended=error is None)
    return told


def _broken_from(rows: Sequence[Mapping[str, str]], key: str) -> int | None:
    """The step from which on a column holds nothing but NaN and infinities, None where it ends with a number."""
    step = None
    for row in rows:
        if row.get(key) and math.isfinite(float(row[key])):
            step = None
        elif row.get(key) and step is None:
            step = int(row["step"])
    return step


def _course(trainer: L.Trainer, start: int, seconds: float) -> str:
    """`40 steps in 25 s`, `steps 41 to 60 in 12 s`; of a run that ended before its time, how many there would be."""
    done, total = trainer.global_step, steps_of(trainer)
    if start and done == start:
        return f"no step; the checkpoint has {start:,}{f', training ends at {total:,.0f}' if total < math.inf else ''}"
    steps = f"steps {start + 1:,} to {done:,}" if start else f"{done:,} steps"
    timer = next((each for each in trainer.callbacks if isinstance(each, Timer)), None)  # type: ignore[attr-defined]
    late = timer is not None and (timer.time_remaining() or 1) <= 0
    of_all = f" of {total:,.0f}" if done < total < math.inf else ""
    return f"{steps}{of_all} in {duration(seconds)}{', the time limit' if late else ''}"


def next_commands(folder: Path, module: Any, ended: bool) -> list[str]:
    """The commands that one may want after a fit.

    Args:
        ended: whether it trained to its end.
    """
    quoted = shlex.quote(str(folder))
    packages = "".join(f" --allow-import {package}" for package in allowed_packages())
    commands = [] if ended else [f"zoo fit --ckpt_path {quoted}"]
    if getattr(module, "inference_class", ""):
        commands.append(module.usage_command.format(run=quoted))
        commands.append(f"zoo export {quoted} FOLDER")
    others = [path for path in folder.parent.glob(f"*/{CSV_NAME}") if path.parent != folder]
    newest_first = (path.parent for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True))
    if other := next((each for each in newest_first if _system(each) == _system(folder)), None):
        commands.append(f"zoo compare {shlex.quote(str(other))} {quoted}")
    return [command + packages for command in commands]


def _system(run: Path) -> str:
    return read_run(run, run.parent).recipe.partition("/")[0]
