"""Loss monitor, schedule and average of ProjectLily's trainers: their recorded decisions, number for number."""

import json
import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.training.callbacks.parts import make_trainer
from zoo.audiosr.loss_monitor import LossMonitor, MonitorState
from zoo.training.callbacks.ema import EMA

NAMES = {"patience": "patience", "explosion_threshold": "threshold"}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["explosion_nan", "plateau_accum4", "early_stop", "min_lr_floor"])
def test_monitor(folder: Path, name: str) -> None:
    trace = read(folder / "common" / "loss_monitor_trace.json")["traces"][name]
    rows = trace.get("rows") or trace["rows_kept"]
    rules = {NAMES[key]: value for key, value in trace["kwargs"].items() if key in NAMES}
    factor = trace["kwargs"].get("lr_reduction_factor", 0.5)
    monitor = MonitorState()
    rate, made = trace["lr0"], []
    losses = trace.get("losses") or [row[0] for row in rows]
    steps = trace.get("steps") or [row[1] for row in rows]
    for loss, step in zip(losses, steps, strict=True):
        kind, stop = monitor.update(float(loss), step, **rules)
        skip, reduce = kind == "nonfinite", kind in ("explosion", "plateau")
        rate = max(rate * factor, 1e-7) if reduce else rate
        averages, counters = [monitor.short, monitor.long, monitor.since_best], [monitor.reductions, monitor.nonfinite]
        decisions = [int(skip), int(reduce), int(stop), "early_stop" if stop else kind]
        made.append([loss, step, *decisions, rate, *averages, 0, *counters])
    if "rows" in trace:
        assert made == rows
    else:
        assert all(row in made for row in rows)
        assert [row for row in made if any(row[2:5])] == [row for row in rows if any(row[2:5])]
    stats = trace["stats"]
    assert (monitor.best, monitor.since_best) == (stats["best_loss"], stats["steps_without_improvement"])
    assert (monitor.reductions, monitor.nonfinite) == (stats["lr_reductions"], stats["inf_nan_count"])
    assert (monitor.short, monitor.long) == (stats["short_ma"], stats["long_ma"])
    assert stats["exploded_count"] == stats["scale_reductions"] == 0


class OriginalWarmupCosine(torch.optim.lr_scheduler.LambdaLR):
    """ProjectLily's schedule with its faults: the first batch has the base rate, and past the end it rises."""

    def __init__(self, optimizer: Any, warmup_steps: int, total_steps: int, min_factor: float = 0.1) -> None:
        def call(number: int) -> float:
            if number < warmup_steps:
                return (number + 1) / warmup_steps
            progress = (number - warmup_steps) / (total_steps - warmup_steps)
            return min_factor + (1.0 - min_factor) * 0.5 * (1.0 + math.cos(math.pi * progress))

        super().__init__(optimizer, lambda step: 1.0 if step == 0 else call(step - 1))


class Toy(L.LightningModule):
    """Its loss is what the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return batch.sum() + 0 * self.weight.sum()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-4)
        schedule = OriginalWarmupCosine(optimizer, warmup_steps=10, total_steps=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Watch(L.Callback):
    """Notes the rate after the monitor, at the step and after the schedule."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    def on_after_backward(self, trainer, pl_module):
        self.rows.append([trainer.optimizers[0].param_groups[0]["lr"]])

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rows[-1].append(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, *args):
        if len(self.rows[-1]) == 2:
            self.rows[-1].append(trainer.optimizers[0].param_groups[0]["lr"])


def test_the_schedule_undoes_what_the_monitor_does(folder: Path) -> None:
    rows = read(folder / "common" / "warmup_cosine.json")["interplay"]["rows"]
    watch = Watch()
    trainer = make_trainer(LossMonitor(), watch, max_epochs=1, accumulate_grad_batches=4)
    trainer.fit(Toy(), DataLoader([torch.tensor([row[1]]) for row in rows], batch_size=None))
    assert watch.rows == [row[2:] for row in rows]


def test_average(folder: Path) -> None:
    trace = read(folder / "common" / "ema_trace.json")
    task = L.LightningModule()
    task.net = nn.Linear(3, 2)
    task.net.load_state_dict({key: torch.tensor(value) for key, value in trace["init"].items()})
    ema = EMA(["net"], decay=trace["decay"])
    ema._update(ema._model_tensors(task))
    for increment, expected in zip(trace["increments"], trace["shadow_after_each"], strict=True):
        for parameter in task.net.parameters():
            parameter.data += increment
        ema._update(ema._model_tensors(task))
        for key, value in expected.items():
            # one rounding apart: s + (1 - d) (p - s) where the original computes d s + (1 - d) p
            torch.testing.assert_close(ema.shadow[f"net.{key}"], torch.tensor(value), atol=6e-8, rtol=0)
