"""`zoo find-lr`: the range of learning rates in which a recipe learns, by training through all of them once.

A step's rate is compared with the next batch's loss; both are averaged alike, so that the curve does not lag.

Source: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3; the suggestions as in fastai.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
from scipy.signal import lfilter
from torch import Tensor
from torch.optim import Optimizer

from zoo.cli.build_run import train, trial
from zoo.common.checks import check_above, check_at_least, check_positive
from zoo.common.locks import lock_folder
from zoo.common.reports import new_figure, print_table, write_report
from zoo.runs.run_folder import RUNS_ROOT
from zoo.training.gan import GANTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHING = 0.9  # of the moving average: ten steps
DIVERGED = 4.0  # times the lowest loss
MIN_STEPS = 10  # the average of fewer is noise
CONSERVATIVE = 10.0  # below the rate of the lowest loss
NOISE = 6.0  # standard deviations of the smoothed loss by which it has to fall
MAD_TO_STANDARD_DEVIATION = 1.4826  # of a normal distribution


def find_lr(
    *recipe: str,
    min_lr: float = 1e-7,
    max_lr: float = 1.0,
    batches: int = 100,
    loss: str | None = None,
    output: Path | None = None,
) -> int:
    """Find learning rates by a range test: zoo find-lr RECIPE.

    Trains through the rates from the lowest to the highest, in a temporary folder, on one device, without schedules
    and callbacks, until the loss diverges. A GAN's optimizers rise together and keep their ratio.

    Args:
        *recipe: a recipe, fragments and options of `zoo fit`; `--ckpt_path RUN` starts from a run's weights.
        min_lr: of the first step; of a GAN's generator.
        max_lr: of the last step.
        batches: steps; one takes several batches where the recipe accumulates.
        loss: key such as g/mel or total; a GAN's default is its first reconstruction term.
        output: folder for lr.csv and lr.png; runs/find-lr/RECIPE when not given.
    """
    check_positive(min_lr=min_lr)
    check_at_least(MIN_STEPS, batches=batches)
    check_above(min_lr, max_lr=max_lr)
    with trial(recipe, log_every_n_steps=1) as cli:
        test = LrRangeTest(min_lr, max_lr, batches, recipe_rates(cli), loss)
        cli.trainer.callbacks, cli.trainer.loggers = [test], []  # type: ignore[attr-defined]
        folder = output or RUNS_ROOT / "find-lr" / cli.recipe
        with lock_folder(folder, "find-lr"):
            try:
                train(cli)
            except (ValueError, RuntimeError, ArithmeticError):
                if all(bool(weight.isfinite().all()) for weight in cli.model.parameters()):
                    raise
                test.diverged = True
            curve = test.curve()
            suggestion = suggest_lr(curve["rate"], curve["smoothed"], curve["loss"])
            write_report(folder, {"lr.csv": _table(test, curve), "lr.png": _plot(test, curve, suggestion)})
    print(f"{cli.recipe}: loss {test.loss_key}, {'diverged' if test.diverged else 'did not diverge'}; see {folder}")
    _print_rates(test, suggestion)
    return 0


def lr_key(name: str) -> str:
    """Return the key of the recipe that sets an optimizer's learning rate."""
    return f"model.init_args.{name if name == 'optimizer' else f'optimizer_{name}'}.init_args.lr"


def recipe_rates(cli: Any) -> dict[str, float]:
    """Read the learning rates that a recipe gives as numbers, by the names of its optimizers."""
    names = getattr(cli.model, "optimizer_names", ()) or ("optimizer",)
    rates = {name: cli.config.get(lr_key(name)) for name in names}
    return {name: float(rate) for name, rate in rates.items() if isinstance(rate, int | float)}


class LrRangeTest(L.Callback):
    """Sets the rates of each step, from `low` to `high`, and ends after one more, whose loss the last rate leads to.

    Rates are of the first optimizer, in the units of `recipe_rates`, which a task may scale with its batch.
    """

    def __init__(
        self, low: float, high: float, steps: int, recipe_rates: Mapping[str, float], loss_key: str | None = None
    ) -> None:
        self.low, self.high, self.steps = low, high, steps
        self.recipe_rates, self.loss_key = recipe_rates, loss_key
        self.diverged = False  # or not finite
        self.rates: dict[str, float] = {}  # the recipe's, of each optimizer
        self.losses: list[float] = []  # of each step
        self._batch_losses: list[float] = []  # of a step
        self._stepped = False

    def rate(self, step: int) -> float:
        """Return the rate of a step of the first optimizer."""
        return self.low * (self.high / self.low) ** (min(step, self.steps - 1) / (self.steps - 1))

    def ratios(self) -> dict[str, float]:
        """Return each optimizer's rate relative to the first."""
        return {name: rate / next(iter(self.rates.values())) for name, rate in self.rates.items()}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take over the rates."""
        names = getattr(pl_module, "optimizer_names", ()) or ("optimizer",)  # a GAN without discriminators has one
        for name, optimizer in zip(names, trainer.optimizers, strict=False):
            initial = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
            self.rates[name] = self.recipe_rates.get(name, max(initial))
            check_positive(**{f"the recipe's learning rate of {name}": self.rates[name]})
            optimizer.register_step_pre_hook(partial(self._set_rates, initial))
        if self.loss_key is None:
            keys = [*pl_module.reconstruction_keys, "g/total"] if isinstance(pl_module, GANTask) else ["total"]
            self.loss_key = keys[0]

    def _set_rates(self, initial: list[float], optimizer: Optimizer, *_: Any) -> None:
        factor = self.rate(len(self.losses)) / next(iter(self.rates.values()))
        for group, rate in zip(optimizer.param_groups, initial, strict=True):
            group["lr"] = rate * factor
        self._stepped = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the loss; end training after the last step, or where it diverged."""
        losses = {key.removeprefix("train/"): float(value) for key, value in trainer.callback_metrics.items()}
        if isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor):
            losses["total"] = float(outputs["loss"]) * trainer.accumulate_grad_batches
        if self.loss_key not in losses:
            raise ValueError(f"--loss {self.loss_key}: the recipe has none such (its losses: {', '.join(losses)})")
        self._batch_losses.append(losses[self.loss_key])
        if not self._stepped:
            return
        self.losses.append(float(np.mean(self._batch_losses)))
        self._stepped, self._batch_losses = False, []
        self.diverged = not math.isfinite(self.losses[-1])
        if not self.diverged and len(self.losses) > MIN_STEPS:
            averages = smooth(self.losses[1:])[MIN_STEPS - 1 :]
            self.diverged = averages[-1] > averages.min() + (DIVERGED - 1) * abs(averages.min())
        trainer.should_stop = self.diverged or len(self.losses) > self.steps

    def curve(self) -> dict[str, np.ndarray]:
        """Return the tested rates and the losses that they led to, and both averaged, (steps,) each."""
        if len(self.losses) < 2 and not self.diverged:
            raise ValueError("the recipe trains no second step: see its data and trainer.limit_train_batches")
        losses = np.array(self.losses[1:])
        losses = losses[: int(np.argmin(np.append(np.isfinite(losses), False)))]
        if not len(losses):
            raise ValueError(f"the loss is not finite at the lowest rate already ({self.low:g}): lower --min_lr")
        rates = np.array([self.rate(step) for step in range(len(losses))])
        return {"tested": rates, "loss": losses, "rate": np.exp(smooth(np.log(rates))), "smoothed": smooth(losses)}


def smooth(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the exponential moving average of values, without the bias of its beginning, (steps,)."""
    averages = lfilter([1 - SMOOTHING], [1, -SMOOTHING], np.asarray(values, dtype=float))
    return averages / (1 - SMOOTHING ** np.arange(1, len(averages) + 1))


def suggest_lr(rates: np.ndarray, smoothed: np.ndarray, losses: np.ndarray) -> tuple[float, float] | None:
    """Return the rates where the smoothed loss falls fastest and a tenth of where it is lowest.

    `rates` are smoothed and rise, `losses` are as measured, (steps,) each. None where the fall is within their noise.
    """
    lowest = int(np.argmin(smoothed))
    first = min(lowest, len(smoothed) // 10)  # the average of the few before is noise
    if lowest - first < 2:
        return None
    # neighbours differ by noise, mostly; the median leaves the fall itself out
    deviation = MAD_TO_STANDARD_DEVIATION * float(np.median(np.abs(np.diff(losses[: lowest + 1])))) / math.sqrt(2)
    fall = float(smoothed[first:lowest].max() - smoothed[lowest])
    if fall <= NOISE * deviation * math.sqrt((1 - SMOOTHING) / (1 + SMOOTHING)):
        return None
    slopes = np.gradient(smoothed, np.log(rates))
    return float(rates[first + int(np.argmin(slopes[first : lowest + 1]))]), float(rates[lowest]) / CONSERVATIVE


def _table(test: LrRangeTest, curve: Mapping[str, np.ndarray]) -> tuple[list[str], list[dict[str, float]]]:
    """Make a row for each tested rate: columns and rows."""
    rows = [
        {f"lr_{name}": ratio * rate for name, ratio in test.ratios().items()}
        | {"loss": loss, "smoothed": smoothed, "smoothed_lr": smoothed_rate}
        for rate, loss, smoothed_rate, smoothed in zip(*curve.values(), strict=True)
    ]
    return list(rows[0]), rows


def _plot(test: LrRangeTest, curve: Mapping[str, np.ndarray], suggestion: tuple[float, float] | None) -> Figure:
    figure = new_figure(7.0, 4.5)
    axes = figure.subplots()
    axes.plot(curve["tested"], curve["loss"], ".", color="0.7", label="loss")
    axes.plot(curve["rate"], curve["smoothed"], label="smoothed")
    for label, value in zip(("steepest fall", "lowest / 10"), suggestion or (), strict=False):
        axes.axvline(value, color="0.3", linestyle="--", label=f"{label}: {value:.2g}")
    axes.set(xscale="log", xlabel=f"learning rate of {next(iter(test.rates))}", ylabel=test.loss_key)
    axes.set_ylim(top=2 * float(curve["smoothed"][0]) - float(curve["smoothed"].min()) or None)
    axes.legend()
    return figure


def _print_rates(test: LrRangeTest, suggestion: tuple[float, float] | None) -> None:
    if suggestion is None:
        print("the loss does not fall by more than its noise: no suggestion; try more --batches, or another --loss")
        return
    rows, flags = [], []
    for name, ratio in test.ratios().items():
        steepest, conservative = (f"{each * ratio:.2g}" for each in suggestion)
        rows.append((name, f"{test.rates[name]:.2g}", steepest, conservative))
        if name in test.recipe_rates:
            flags.append(f"--{lr_key(name)}={steepest}")
    print_table(["optimizer", "the recipe's", "steepest fall", "lowest / 10"], rows, left=["optimizer"])
    print(" ".join(flags) or "set the rates where the recipe's optimizer takes them")
