"""`zoo find-lr`: the range of learning rates in which a recipe learns, by training through all of them once.

The rates rise exponentially from step to step. The loss that the rate of a step leads to is that of the next batch.
Both are averaged with the same weights, so that the smoothed curve does not lag behind the rates.

Source: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3; the suggestions as in fastai.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning as L
import numpy as np
import torch
from scipy.signal import lfilter
from torch import Tensor
from torch.optim import Optimizer

from zoo.cli.trials import ENDLESS, train, trial
from zoo.common.checks import check_at_least, check_positive
from zoo.common.locks import lock_folder
from zoo.common.reports import new_figure, print_table, terminal_table, write_report
from zoo.runs.run_folder import RUNS_ROOT
from zoo.training.callbacks.guard import unscaled
from zoo.training.gan import GANTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHING = 0.9  # of the moving average: ten steps
DIVERGED = 4.0  # times the lowest loss
MIN_STEPS = 10  # the average of fewer is noise
CONSERVATIVE = 10.0  # below the rate of the lowest loss
FALL_LEFT = 0.9  # share of the fall that is still to come where it is taken to begin
MAD_TO_STANDARD_DEVIATION = 1.4826  # of a normal distribution
NOISE = 6.0  # standard deviations of the smoothed loss by which it has to fall
TOTAL = "total"


class Suggestion(NamedTuple):
    """Rates that a curve suggests: where the smoothed loss falls fastest, and a tenth of where it is lowest."""

    steepest: float
    conservative: float


def smooth(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the exponential moving average of values, without the bias of its beginning, (steps,)."""
    averages = lfilter([1 - SMOOTHING], [1, -SMOOTHING], np.asarray(values, dtype=float))
    return averages / (1 - SMOOTHING ** np.arange(1, len(averages) + 1))


def find_lr(
    *fit: str,
    min_lr: float = 1e-7,
    max_lr: float = 1.0,
    batches: int = 100,
    optimizer: str | None = None,
    loss: str | None = None,
    output: Path | None = None,
) -> int:
    """Find learning rates for a recipe by a range test: zoo find-lr RECIPE [options of fit].

    Trains through the rates from the lowest to the highest, in a temporary folder, on one device, until the loss
    diverges. Schedules are overridden and callbacks (guards, averages) left out; clipping and accumulation stay, since
    they belong to a step. A GAN's optimizers rise together and keep their ratio.

    Args:
        *fit: a recipe, fragments and options of `zoo fit`; `--ckpt_path RUN` starts from a run's weights.
        min_lr: of the first step; of a GAN's generator, when both optimizers rise.
        max_lr: of the last step.
        batches: steps; one takes several batches where the recipe accumulates.
        optimizer: of a GAN, g or d: it rises alone, the other one keeps the recipe's rate.
        loss: key of the loss, such as g/mel or total; when not given, the loss, of a generator its weighted
            reconstruction terms, of discriminators alone theirs.
        output: folder for lr.csv and lr.png; runs/find-lr/RECIPE when not given.

    Returns:
        0.

    Raises:
        ValueError: when a number is out of its range, or the recipe has no such optimizer or loss.
    """
    check_positive(min_lr=min_lr)
    check_at_least(10, batches=batches)
    if not min_lr < max_lr:
        raise ValueError(f"max_lr ({max_lr:g}) must be above min_lr ({min_lr:g})")
    with trial(fit, **ENDLESS, log_every_n_steps=1) as cli:
        test = LrRangeTest(min_lr, max_lr, batches, recipe_rates(cli), optimizer, loss)
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
            figure = _plot(test, curve, suggestion, cli.recipe)
            write_report(folder, {"lr.csv": _table(test, curve), "lr.png": figure})
    _print_result(test, float(curve["rate"][-1]), suggestion, cli.recipe, folder)
    return 0


def recipe_rates(cli: Any) -> dict[str, float]:
    """Read the learning rates that a recipe names, by the option that sets them."""
    arguments = cli.config["model"].as_dict().get("init_args") or {}
    rates = {}
    for name in ("optimizer", *(f"optimizer_{each}" for each in getattr(cli.model, "optimizer_names", ()))):
        rate = ((arguments.get(name) or {}).get("init_args") or {}).get("lr")
        if isinstance(rate, int | float):
            rates[name] = float(rate)
    return rates


class LrRangeTest(L.Callback):
    """Sets the rates of each step, notes the losses they lead to, and ends the training.

    Args:
        low: rate of the first step, in units of the recipe's.
        high: of the last step.
        steps: whose rates are tested; one more is trained, for the loss that the last one leads to.
        recipe_rates: rates by the options that set them; a task may scale them with its batch.
        only: name of the optimizer that is swept alone.
        loss_key: key of the loss.

    Attributes:
        diverged: whether the loss rose above `DIVERGED` times its lowest value, or was not finite.
        swept: names of the optimizers whose rates rise; the range is of the first.
        rates: of each optimizer in the recipe.
        rows: the losses of each step, by key.
    """

    def __init__(
        self, low: float, high: float, steps: int, recipe_rates: Mapping[str, float],
        only: str | None = None, loss_key: str | None = None,
    ) -> None:  # fmt: skip
        self.low, self.high, self.steps = low, high, steps
        self.recipe_rates, self.only, self.loss_key = recipe_rates, only, loss_key
        self.diverged = False
        self.names: tuple[str, ...] = ()
        self.swept: tuple[str, ...] = ()
        self.rates: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []
        self._initial_lrs: dict[str, list[float]] = {}
        self._pending: list[Tensor] = []
        self._step_losses: list[dict[str, float]] = []  # of the batches of a step
        self._batch_losses: dict[str, float] = {}
        self._stepped = False

    def rate(self, step: int) -> float:
        """Return the rate of a step of the first swept optimizer."""
        return self.low * (self.high / self.low) ** (min(step, self.steps - 1) / (self.steps - 1))

    def option(self, name: str) -> str:
        """Return the key of the task that holds an optimizer."""
        return f"optimizer_{name}" if len(self.names) > 1 else "optimizer"

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take over the rates.

        Raises:
            ValueError: when there is no optimizer of that name, or its rate is zero.
        """
        count = len(trainer.optimizers)
        named = tuple(getattr(pl_module, "optimizer_names", ()))
        self.names = ("optimizer",) if count == 1 else named if len(named) == count else tuple(map(str, range(count)))
        if self.only is not None and self.only not in self.names:
            raise ValueError(f"--optimizer {self.only}: the recipe's optimizers are {', '.join(self.names)}")
        self.swept = self.names if self.only is None else (self.only,)
        for name, optimizer in zip(self.names, trainer.optimizers, strict=True):
            self._initial_lrs[name] = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
            self.rates[name] = self.recipe_rates.get(self.option(name), max(self._initial_lrs[name]))
            if not self.rates[name] and name in self.swept:
                raise ValueError(f"the recipe's learning rate of {name} is zero: give one above")
            optimizer.register_step_pre_hook(self._rate_setter(name))
        if self.loss_key is None and not isinstance(pl_module, GANTask):
            self.loss_key = TOTAL

    def _rate_setter(self, name: str) -> Any:
        def set_rates(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            factor = self.rate(len(self.rows)) / self.rates[self.swept[0]] if name in self.swept else 1.0
            for group, initial in zip(optimizer.param_groups, self._initial_lrs[name], strict=True):
                group["lr"] = initial * factor

        return set_rates

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """Forget the last batch."""
        self._pending.clear()
        self._batch_losses, self._stepped = {}, False

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Note the loss for the optimizer step that it belongs to."""
        self._pending.append(unscaled(trainer, loss))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Note whose loss it was."""
        name = next(name for name, each in zip(self.names, trainer.optimizers, strict=True) if each is optimizer)
        if not pl_module.automatic_optimization and self._pending:
            self._batch_losses[f"{name}/{TOTAL}"] = float(torch.stack(self._pending).sum())
        self._pending.clear()
        self._stepped = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the losses; end training after the last step, or where it diverged."""
        losses = {key.removeprefix("train/"): float(value) for key, value in trainer.callback_metrics.items()}
        losses |= self._batch_losses
        if isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor):
            losses[TOTAL] = float(outputs["loss"]) * trainer.accumulate_grad_batches
        self._step_losses.append(losses)
        if not self._stepped:
            return
        count = len(self._step_losses)
        row = {key: sum(each[key] for each in self._step_losses if key in each) / count for key in losses}
        self._step_losses.clear()
        if isinstance(pl_module, GANTask):
            self._add_reconstruction(pl_module, row)
        loss = row.get(self.loss_key or "")
        if loss is None:
            raise ValueError(f"--loss {self.loss_key}: the recipe has none such (its losses: {', '.join(sorted(row))})")
        self.rows.append(row)
        self.diverged = not all(math.isfinite(row[key]) for key in row if key == self.loss_key or key.endswith(TOTAL))
        if not self.diverged and len(self.rows) > MIN_STEPS:
            averages = smooth([each[self.loss_key or TOTAL] for each in self.rows[1:]])[MIN_STEPS - 1 :]
            self.diverged = averages[-1] > averages.min() + (DIVERGED - 1) * abs(averages.min())
        if self.diverged or len(self.rows) > self.steps:
            trainer.should_stop = True

    def _add_reconstruction(self, task: GANTask, row: dict[str, float]) -> None:
        """Sum a generator's weighted reconstruction terms; choose the loss where none was chosen."""
        weighted = {key: task.loss_weights[key] for key in task.reconstruction_keys if key in row}
        if weighted:
            row["g/reconstruction"] = sum(weight * row[key] for key, weight in weighted.items())
        if self.only == "d" and "d/total" not in row:
            raise ValueError(
                f"the discriminators do not train before batch {task.discriminator_start}: add "
                "--model.init_args.step.discriminator_start=0"
            )
        if self.loss_key is None:
            self.loss_key = "d/total" if self.only == "d" else "g/reconstruction" if weighted else "g/total"

    def curve(self) -> dict[str, np.ndarray]:
        """Return the tested rates and the losses that they led to; "rate" and "smoothed" are both averaged.

        Raises:
            ValueError: when the loss was not finite from the beginning.
        """
        if len(self.rows) < 2 and not self.diverged:
            raise ValueError("the recipe trains no second step: see its data and trainer.limit_train_batches")
        losses = np.array([row[self.loss_key or TOTAL] for row in self.rows[1:]])
        losses = losses[: int(np.argmax(~np.isfinite(losses)))] if not np.isfinite(losses).all() else losses
        if not len(losses):
            raise ValueError(f"the loss is not finite at the lowest rate already ({self.low:g}): lower --min_lr")
        rates = np.array([self.rate(step) for step in range(len(losses))])
        return {
            "rate": np.exp(smooth(np.log(rates))),
            "smoothed": smooth(losses),
            "tested": rates,
            "loss": losses,
        }


def suggest_lr(rates: np.ndarray, smoothed: np.ndarray, losses: np.ndarray) -> Suggestion | None:
    """Read the rates off a curve.

    Args:
        rates: smoothed, rising, (steps,).
        smoothed: the loss at them, (steps,).
        losses: as measured, whose noise a fall has to exceed, (steps,).

    Returns:
        None where the loss does not fall.
    """
    lowest = int(np.argmin(smoothed))
    first = min(lowest, len(smoothed) // 10)  # the average of the few before is noise
    if lowest - first < 2:
        return None
    fall = float(smoothed[first:lowest].max() - smoothed[lowest])
    # neighbours differ by noise, mostly; the median leaves the fall itself out
    deviation = MAD_TO_STANDARD_DEVIATION * float(np.median(np.abs(np.diff(losses[: lowest + 1])))) / math.sqrt(2)
    if fall <= NOISE * deviation * math.sqrt((1 - SMOOTHING) / (1 + SMOOTHING)):
        return None
    first = int(np.flatnonzero(smoothed[: lowest + 1] >= smoothed[lowest] + FALL_LEFT * fall)[-1])
    width = max(1, len(smoothed) // 20)
    windows = [slice(max(0, middle - width), middle + width + 1) for middle in range(first, lowest + 1)]
    slopes = [np.polyfit(np.log(rates[window]), smoothed[window], 1)[0] for window in windows]
    return Suggestion(float(rates[first + int(np.argmin(slopes))]), float(rates[lowest]) / CONSERVATIVE)


def _table(test: LrRangeTest, curve: Mapping[str, np.ndarray]) -> tuple[list[str], list[dict[str, Any]]]:
    """Make a row for each tested rate: the rates of all swept optimizers, the loss, smoothed with its rate, losses."""
    rows = []
    for step, rate in enumerate(curve["tested"]):
        rates = {f"lr_{name}": rate / test.rates[test.swept[0]] * test.rates[name] for name in test.swept}
        values = {key: float(curve[key][step]) for key in ("loss", "smoothed")} | {"smoothed_lr": curve["rate"][step]}
        rows.append({"step": step, **rates, **values, **test.rows[step + 1]})
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return columns, [{key: row.get(key) for key in columns} for row in rows]


def _plot(test: LrRangeTest, curve: Mapping[str, np.ndarray], suggestion: Suggestion | None, recipe: str) -> Figure:
    figure = new_figure(7.0, 4.5)
    axes = figure.subplots()
    axes.plot(curve["tested"], curve["loss"], ".", color="0.7", label="loss")
    axes.plot(curve["rate"], curve["smoothed"], color="C0", label="smoothed")
    marks = {"the recipe's": test.rates[test.swept[0]]}
    if suggestion is not None:
        marks |= {"steepest fall": suggestion.steepest, "lowest / 10": suggestion.conservative}
    for (name, rate), color in zip(marks.items(), ("0.3", "C1", "C2"), strict=False):
        axes.axvline(rate, color=color, linestyle="--", label=f"{name}: {rate:.2g}")
    smoothed = curve["smoothed"]
    low, start = float(smoothed.min()), float(smoothed[: int(np.argmin(smoothed)) + 1].max())
    high = min(float(smoothed.max()), 2 * start - low) if start > low else float(smoothed.max())
    margin = 0.1 * (high - low) or 1.0
    limits = (low - margin, high + margin)
    label = f"learning rate of {test.swept[0]}"
    axes.set(xscale="log", xlabel=label, ylabel=test.loss_key, title=recipe, ylim=limits)
    axes.legend()
    return figure


def _print_result(test: LrRangeTest, last: float, suggestion: Suggestion | None, recipe: str, folder: Path) -> None:
    end = f"diverged at {last:.2g}" if test.diverged else "without divergence"
    print(f"{recipe}: the loss {test.loss_key} over rates from {test.low:.2g} to {test.high:.2g}, {end}")
    print(f"curve: {folder / 'lr.csv'}, {folder / 'lr.png'}")
    if suggestion is None:
        print("the loss does not fall by more than its noise: no suggestion; try more --batches, or another --loss")
        return
    rows, flags = [], []
    for name in test.swept:
        ratio = test.rates[name] / test.rates[test.swept[0]]
        rates = (test.rates[name], suggestion.steepest * ratio, suggestion.conservative * ratio)
        rows.append((name, *(f"{rate:.2g}" for rate in rates)))
        if test.option(name) in test.recipe_rates:
            flags.append(f"--model.init_args.{test.option(name)}.init_args.lr={suggestion.steepest * ratio:.2g}")
    print_table(terminal_table(["optimizer", "the recipe's", "steepest fall", "lowest / 10"], rows, left=["optimizer"]))
    print(" ".join(flags) or "set the rates where the recipe's optimizer takes them")
