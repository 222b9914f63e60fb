"""`zoo find-precision`: time, memory and numerical difference of a recipe's first steps in each precision."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import lightning as L
import torch
from torch import Tensor

from zoo.cli.build_run import train, trial
from zoo.common.checks import check_at_least
from zoo.common.environment import peak_memory_bytes
from zoo.common.reports import print_table
from zoo.training.callbacks.guard import unscaled
from zoo.training.step_cost import StepCost

HEADS = ["trainer.precision", "s per step", "memory", "loss", "difference of loss", "of gradients"]


class Measurement(L.Callback):
    """Notes the loss of each backward pass, and the gradients of the first optimizer step, (weights,)."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gradient = torch.empty(0)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forget the peak of an earlier precision."""
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Note a loss."""
        self.losses.append(float(unscaled(trainer, loss)))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Store the first gradients."""
        if not len(self.gradient):
            gradients = [weight.grad for group in optimizer.param_groups for weight in group["params"]]
            self.gradient = torch.cat([each.float().flatten().cpu() for each in gradients if each is not None])


def find_precision(*recipe: str, steps: int = 4) -> int:
    """Compare precisions on a recipe's first steps.

    Each precision trains the same batches with the same random numbers, on one device: float32, bfloat16, on CUDA
    float16. Differences are relative to float32: of the mean loss, and of the first optimizer step's gradients. Memory
    is the peak on CUDA, elsewhere that of weights, gradients, optimizers and activations.

    Args:
        *recipe: a recipe, fragments and options of `zoo fit`; `--ckpt_path RUN` starts from a run's weights.
        steps: that are timed, after two others.
    """
    check_at_least(1, steps=steps)
    rows, exact = [], None
    for name in ["32-true", "bf16-mixed", *(["16-mixed"] if torch.cuda.is_available() else [])]:
        try:
            measurement, seconds, memory = measure_precision(recipe, name, steps)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            rows.append([name, "", "out of memory", "", "", ""])
            continue
        exact = measurement if name == "32-true" else exact
        loss, differences = fmean(measurement.losses), ["", ""]
        if exact is not None:
            gradients = float((measurement.gradient - exact.gradient).norm() / exact.gradient.norm())
            differences = [f"{abs(loss / fmean(exact.losses) - 1):.2%}", f"{gradients:.2%}"]
        rows.append([name, f"{seconds:.4g}", f"{memory / 2**30:.3g} GiB", f"{loss:.5g}", *differences])
    print_table(HEADS, rows, left=HEADS[:1])
    return 0


def measure_precision(fit: tuple[str, ...], precision: str, steps: int) -> tuple[Measurement, float, int]:
    """Train some steps in a precision; returns losses and gradients, seconds a step, and bytes."""
    with trial(fit, precision=precision) as cli:
        batches = cli.trainer.accumulate_grad_batches  # of a step
        measurement, cost = Measurement(), StepCost(steps, batches)
        cli.trainer.callbacks += [measurement, cost]  # type: ignore[attr-defined]
        train(cli)
        device = cli.trainer.strategy.root_device
        is_cuda = device.type == "cuda"
        memory = peak_memory_bytes(device) if is_cuda else cost.state_bytes + cost.activation_bytes
        # Lightning divides each batch's loss by their number
        measurement.losses = [batches * loss for loss in measurement.losses]
        return measurement, cost.step_seconds, memory
