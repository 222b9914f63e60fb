"""The first and last lines of a fit: what is trained, and the results."""

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

from zoo.common.environment import describe_device
from zoo.common.registry import import_options, public_name
from zoo.runs.checkpoints import best_checkpoint, find_checkpoints, parse_score, parse_step
from zoo.runs.metrics_csv import read_metrics
from zoo.runs.run_folder import CSV_NAME, LOG_NAME, run_folder
from zoo.runs.run_info import format_duration
from zoo.training.callbacks.checkpoint import find_checkpoints_callback
from zoo.training.callbacks.progress import count_steps, format_number, select_metrics
from zoo.training.callbacks.train_log import log_to_file
from zoo.training.datamodule import ZooDataModule
from zoo.training.optimizers import accumulated_batches
from zoo.training.signals import Interrupted

log = logging.getLogger(__name__)


class RunSummary(L.Callback):
    """Logs what is trained, with which data and where, when a fit of a recipe (`hifigan/smoke`) starts."""

    def __init__(self, recipe: str) -> None:
        self.recipe = recipe

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the lines."""
        if trainer.is_global_zero:
            _log_table({"recipe": self.recipe, **describe_run(trainer, pl_module)})


def _log_table(rows: Mapping[str, str | list[str]]) -> None:
    for key, texts in rows.items():
        for line, text in enumerate([texts] if isinstance(texts, str) else texts):
            log.info("%-15s %s", "" if line else key, text)


def describe_run(trainer: L.Trainer, module: L.LightningModule) -> dict[str, str]:
    """Return texts by name, in the order of their lines, for a trainer whose strategy and data are connected."""
    world_size, data = trainer.world_size, getattr(trainer, "datamodule", None)
    rows = {"system": public_name(type(module)), "parameters": _count_parameters(module)}
    if isinstance(data, ZooDataModule):
        rows["data"] = _count_items(data, world_size)
    batch = None if getattr(data, "token_budget", None) else getattr(data, "batch_size", None)
    if isinstance(batch, int):
        factors = {"per process": batch, "processes": world_size, "accumulated batches": accumulated_batches(trainer)}
        texts = [f"{factor} {name}" for name, factor in factors.items() if name == "per process" or factor > 1]
        product = math.prod(factors.values())
        rows["effective batch"] = f"{product} = {' x '.join(texts)}" if len(texts) > 1 else f"{product}"
    for config in trainer.lr_scheduler_configs:
        end = getattr(config.scheduler, "total_steps", None)
        if config.interval == "step" and end is not None and end < trainer.max_steps:
            rows[f"schedule {config.name}"] = f"ends at step {end} of {trainer.max_steps} (total_steps)"
    idle = isinstance(trainer.accelerator, CPUAccelerator) and torch.cuda.is_available()
    hint = " (a GPU is idle: trainer.accelerator=gpu)" if idle else ""
    rows["device"] = describe_device(trainer.strategy.root_device) + hint
    if world_size > 1:
        rows["processes"] = f"{world_size} on {trainer.num_nodes} node(s), {type(trainer.strategy).__name__}"
    rows["precision"] = str(trainer.precision)
    if trainer.ckpt_path is not None:
        rows["resumed from"] = str(trainer.ckpt_path)
    return rows | {"run folder": str(trainer.default_root_dir)}


def _count_parameters(module: L.LightningModule) -> str:
    trained = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
    frozen = sum(weight.numel() for weight in module.parameters() if not weight.requires_grad)
    return f"{trained:,} trained" + (f", {frozen:,} frozen" if frozen else "")


def _count_items(data: ZooDataModule, world_size: int) -> str:
    """Return `1,600 items to train on, 100 batches an epoch, 197 to validate`."""
    batches = len(data.train_batches(0, world_size))
    texts = [f"{len(data.train_set):,} items to train on, {batches:,} batches an epoch"]  # type: ignore[arg-type]
    with contextlib.suppress(AttributeError, TypeError):  # there may be none
        texts.append(f"{len(data.val_set):,} to validate")  # type: ignore[arg-type]
    return ", ".join(texts)


@contextlib.contextmanager
def print_summary(trainer: L.Trainer, start: int, metrics: Sequence[str] | None = None) -> Iterator[None]:
    """Log a fit's results when it ends, whatever ends it, but an error before the first step, which follows `start`."""
    started = time.monotonic()
    error: BaseException | None = None
    try:
        yield
    except BaseException as caught:
        error = caught
        raise
    finally:
        trained = trainer.global_step > start or error is None or isinstance(error, Interrupted)
        if trainer.is_global_zero and trained and run_folder(trainer).is_dir():
            with contextlib.suppress(OSError, ValueError), log_to_file(run_folder(trainer) / LOG_NAME, [__name__]):
                _log_table(summarize_fit(trainer, error, start, time.monotonic() - started, metrics))


def summarize_fit(
    trainer: L.Trainer, error: BaseException | None, start: int, seconds: float, metrics: Sequence[str] | None
) -> dict[str, str | list[str]]:
    """Return the results of a fit that ended, by an error or by itself: texts by name, in the order of their lines."""
    folder = run_folder(trainer)
    checkpoints = find_checkpoints_callback(trainer)
    monitor = None if checkpoints is None else checkpoints.monitor
    state = "trained" if error is None else "failed" if isinstance(error, Exception) else "stopped"
    done, total = trainer.global_step, count_steps(trainer)
    steps = f"steps {start + 1:,} to {done:,}" if done > start else "no step"
    of_total = f" of {total:,.0f}" if done < total < math.inf else ""
    rows: dict[str, str | list[str]] = {state: f"{steps}{of_total} in {format_duration(seconds)}"}
    last = find_checkpoints(folder, "step_*.ckpt")[:1]
    rows["run folder"] = f"{folder} ({last[0].name})" if last else str(folder)
    if checkpoints and monitor and (best := best_checkpoint(folder, checkpoints.mode)) is not None:
        rows["best"] = f"{monitor} {format_number(parse_score(best))} at step {parse_step(best):,} ({best.name})"
    records = read_metrics(folder) if (folder / CSV_NAME).is_file() else []
    for key in select_metrics(records[0] if records else (), metrics, monitor):
        if values := [float(record[key]) for record in records if record[key]]:
            text = f"first {format_number(values[0])}, last {format_number(values[-1])}"
            hint = "" if math.isfinite(values[-1]) else "; zoo.training.LossGuard skips batches that are not finite"
            rows[key.removeprefix("train/")] = text + hint
    if last:
        rows["next"] = suggest_commands(folder, trainer.lightning_module, finished=error is None)
    return rows


def suggest_commands(folder: Path, module: Any, finished: bool) -> list[str]:
    """Return the commands that one may want after a fit, first to resume one that did not train to its end."""
    quoted = shlex.quote(str(folder))
    commands = [] if finished else [f"zoo fit --ckpt_path {quoted}"]
    if getattr(module, "inference_class", ""):
        commands += [module.usage_command.format(run=quoted), f"zoo export {quoted} FOLDER"]
    return [" ".join([command, *import_options()]) for command in commands]
