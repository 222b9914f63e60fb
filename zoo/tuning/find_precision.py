"""`zoo find-precision`: time, memory and numerical difference of a recipe's first steps in each precision."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from zoo.cli.trials import ENDLESS, train, trial
from zoo.common.hardware import peak_memory_bytes
from zoo.common.ranges import at_least
from zoo.common.report import show_table, terminal_table
from zoo.training.callbacks.guard import unscaled
from zoo.training.cost import Cost

EXACT = "32-true"
HEADS = ["trainer.precision", "s per step", "peak memory", "loss", "difference of loss", "of gradients"]


class Measurement(L.Callback):
    """Notes the losses of a training, and the gradients of its first optimizer step.

    Attributes:
        losses: of each batch, the sum of all that is back-propagated.
        gradient: of the first optimizer step, one vector, float32 on the CPU; a GAN begins with its discriminators.
    """

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gradient: Tensor | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin a batch."""
        self.losses.append(0.0)

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Add a loss."""
        self.losses[-1] += float(unscaled(trainer, loss))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Keep the first gradients."""
        if self.gradient is None:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            gradients = [weight.grad.float().flatten().cpu() for weight in weights if weight.grad is not None]
            self.gradient = torch.cat(gradients)


def main(*fit: str, steps: int = 4) -> int:
    """Compare precisions on a recipe's first steps: zoo find-precision RECIPE [options of fit].

    Each precision trains the same batches with the same random numbers, on one device: float32, bfloat16, and on CUDA
    also float16. Differences are relative to float32: of the mean loss, and of the first optimizer step's gradients.

    Args:
        *fit: a recipe, fragments and options of `zoo fit`; `--ckpt_path RUN` starts from a run's weights.
        steps: that are timed, after two others.

    Returns:
        0.
    """
    at_least(1, steps=steps)
    names = [EXACT, "bf16-mixed", *(["16-mixed"] if torch.cuda.is_available() else [])]
    rows, exact = [], None
    for name in names:
        try:
            measurement, seconds, memory = measure(fit, name, steps)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            rows.append((name, "", "out of memory", "", "", ""))
            continue
        exact = exact or measurement
        differences = compare(measurement, exact)
        peak = f"{memory / 2**30:.2f} GiB" if memory else "-"
        rows.append((name, f"{seconds:.4g}", peak, f"{_mean(measurement.losses):.5g}", *differences))
    show_table(terminal_table(HEADS, rows, left=HEADS[:1]))
    return 0


def measure(fit: tuple[str, ...], precision: str, steps: int) -> tuple[Measurement, float, int]:
    """Train some steps in a precision; returns what was noted, seconds a step, and peak bytes on CUDA (0 elsewhere)."""
    with trial(fit, precision=precision, **ENDLESS) as cli:
        measurement, cost = Measurement(), Cost(steps * cli.trainer.accumulate_grad_batches)
        cli.trainer.callbacks += [measurement, cost]  # type: ignore[attr-defined]
        device = cli.trainer.strategy.root_device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        train(cli)
        return measurement, cost.step_seconds, peak_memory_bytes(device) if device.type == "cuda" else 0


def compare(measurement: Measurement, exact: Measurement) -> tuple[str, str]:
    """Describe how far the mean loss and the first gradients lie from those of float32."""
    assert measurement.gradient is not None and exact.gradient is not None
    loss = abs(_mean(measurement.losses) / _mean(exact.losses) - 1)
    gradients = float((measurement.gradient - exact.gradient).norm() / exact.gradient.norm())
    return f"{loss:.2%}", f"{gradients:.2%}"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
