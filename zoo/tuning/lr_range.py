"""`zoo find-lr`: the range of learning rates in which a recipe learns, by training through all of them once.

The rates rise exponentially from step to step. The loss that the rate of a step leads to is that of the next batch.
Both are averaged with the same weights, so that the smoothed curve does not lag behind the rates.

Source: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3; the suggestions as in fastai.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from torch import Tensor
from torch.optim import Optimizer

from zoo.cli.names import near
from zoo.cli.trials import ENDLESS, train, trial
from zoo.common.locks import locked
from zoo.common.ranges import at_least, positive
from zoo.common.report import new_figure, show_table, terminal_table, write_report
from zoo.runs.folder import RUNS_ROOT
from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.guard import unscaled
from zoo.training.callbacks.logged_run import LoggedRun
from zoo.training.callbacks.metrics import TrainingMetrics
from zoo.training.callbacks.rates import Counting
from zoo.training.callbacks.report import Banner
from zoo.training.callbacks.train_log import TrainLog
from zoo.training.gan import GANTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from zoo.cli.trainer import ZooCLI

SMOOTHING = 0.9  # of the moving average: ten steps
DIVERGED = 4.0  # times the lowest loss
CAREFUL = 10.0  # below the rate of the lowest loss
BEGUN = 0.9  # of the fall is still to come where it is taken to begin
MAD_TO_STANDARD_DEVIATION = 1.4826  # of a normal distribution
NOISE = 6.0  # standard deviations of the smoothed loss by which it has to fall
NOT_TESTED = (Checkpoint, EMA, Counting, EarlyStopping, LoggedRun, TrainLog, Banner, TrainingMetrics)
TOTAL = "total"


def main(
    *fit: str,
    min_lr: float = 1e-7,
    max_lr: float = 1.0,
    batches: int = 100,
    optimizer: str | None = None,
    loss: str | None = None,
    output: Path | None = None,
) -> int:
    """Find learning rates for a recipe by a range test: zoo find-lr RECIPE [FRAGMENT | options of fit ...].

    Trains through the rates from the lowest to the highest, in a temporary folder, on one device, until the loss
    diverges. Schedules are overridden, guards of the loss and averages of the weights left out; clipping and
    accumulation stay, since they belong to a step. A GAN's optimizers rise together and keep their ratio.

    Args:
        *fit: a recipe, fragments and options of `zoo fit`; `--ckpt_path RUN` starts from a run's weights.
        min_lr: of the first step; of a GAN's generator, when both optimizers rise.
        max_lr: of the last step.
        batches: steps; one takes several batches where the recipe accumulates.
        optimizer: of a GAN, g or d: it rises alone, the other one keeps the recipe's rate.
        loss: key of the loss that is looked at, such as g/mel or total; when not given, the loss, of a generator its
            reconstruction terms as weighted, of discriminators alone theirs.
        output: folder for lr.csv and lr.png; runs/find-lr/RECIPE when not given.

    Returns:
        0.

    Raises:
        ValueError: when a number is out of its range, or the recipe has no such optimizer or loss.
    """
    positive(min_lr=min_lr)
    at_least(10, batches=batches)
    if not min_lr < max_lr:
        raise ValueError(f"max_lr ({max_lr:g}) must be above min_lr ({min_lr:g})")
    with trial(fit, **ENDLESS, log_every_n_steps=1) as cli:
        model, trainer = cli.model, cli.trainer
        test = RangeTest(min_lr, max_lr, batches, recipe_rates(cli), optimizer, loss)
        kept = [each for each in trainer.callbacks if not isinstance(each, NOT_TESTED)]  # type: ignore[attr-defined]
        trainer.callbacks, trainer.loggers = [*kept, test], []  # type: ignore[attr-defined]
        folder = output or RUNS_ROOT / "find-lr" / cli.recipe
        with locked(folder, "find-lr"):
            try:
                train(cli)
            except (ValueError, RuntimeError, ArithmeticError):
                if all(bool(weight.isfinite().all()) for weight in model.parameters()):
                    raise
                test.diverged = True
            curve = test.curve()
            found = suggest(curve["rate"], curve["smoothed"], curve["loss"])
            files = {"lr.csv": _table(test, curve), "lr.png": _figure(test, curve, found, cli.recipe)}
            write_report(folder, files)
    _tell(test, float(curve["rate"][-1]), found, cli.recipe, folder)
    return 0


@dataclass(frozen=True)
class Suggestion:
    """Rates that a curve suggests.

    Args:
        steepest: where the smoothed loss falls fastest.
        careful: a tenth of where it is lowest.
    """

    steepest: float
    careful: float


def recipe_rates(cli: ZooCLI) -> dict[str, float]:
    """The learning rates that a recipe names, by the option that sets them."""
    arguments = cli.config["model"].as_dict().get("init_args") or {}
    rates = {}
    for name in ("optimizer", *(f"optimizer_{each}" for each in getattr(cli.model, "optimizer_names", ()))):
        rate = ((arguments.get(name) or {}).get("init_args") or {}).get("lr")
        if isinstance(rate, int | float):
            rates[name] = float(rate)
    return rates


class RangeTest(L.Callback):
    """Sets the rates of each step, notes what they lead to, and ends the training.

    Args:
        low: rate of the first step, in units of the recipe's.
        high: of the last step.
        steps: whose rates are tested; one more is trained, for the loss that the last one leads to.
        given: rates by the options that set them; a task that scales them with its batch trains with others.
        only: name of the optimizer that rises alone.
        watched: key of the loss.

    Attributes:
        diverged: whether the loss rose above all measure, or was not finite.
        rising: those whose rates rise; the range is of the first.
        options: the option of each optimizer's rate.
        rates: of each optimizer in the recipe.
        watched: key of the loss.
        rows: the losses of each step, by key.
    """

    def __init__(
        self,
        low: float,
        high: float,
        steps: int,
        given: Mapping[str, float],
        only: str | None = None,
        watched: str | None = None,
    ) -> None:
        self.low, self.high, self.steps = low, high, steps
        self.given, self.only, self.watched = given, only, watched
        self.diverged = False
        self.names: tuple[str, ...] = ()
        self.rising: tuple[str, ...] = ()
        self.options: dict[str, str] = {}
        self.rates: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []
        self._bases: dict[str, list[float]] = {}
        self._pending: list[Tensor] = []
        self._parts: list[dict[str, float]] = []
        self._seen: dict[str, float] = {}
        self._stepped = False
        self._mean = Average()
        self._best = math.inf

    def rate(self, step: int) -> float:
        """The rate of a step of the first rising optimizer."""
        return self.low * (self.high / self.low) ** (min(step, self.steps - 1) / (self.steps - 1))

    def factor(self, step: int) -> float:
        """What the recipe's rates are multiplied by."""
        return self.rate(step) / self.rates[self.rising[0]]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take over the rates.

        Raises:
            ValueError: when there is no optimizer of that name, or its rate is zero.
        """
        several = len(trainer.optimizers) > 1
        named = tuple(getattr(pl_module, "optimizer_names", ()))
        self.names = named if len(named) == len(trainer.optimizers) else tuple(map(str, range(len(trainer.optimizers))))
        self.names = self.names if several else ("optimizer",)
        if self.only is not None and self.only not in self.names:
            raise ValueError(f"--optimizer {self.only}: the recipe's optimizers are {', '.join(self.names)}")
        self.rising = self.names if self.only is None else (self.only,)
        for name, optimizer in zip(self.names, trainer.optimizers, strict=True):
            self._bases[name] = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
            option = f"optimizer_{name}" if several else "optimizer"
            self.options[name] = option if option in self.given else ""
            self.rates[name] = self.given.get(option, max(self._bases[name]))
            if not self.rates[name] and name in self.rising:
                raise ValueError(f"the recipe's learning rate of {name} is zero: give one above")
            optimizer.register_step_pre_hook(self._setter(name))
        if self.watched is None and not isinstance(pl_module, GANTask):
            self.watched = TOTAL

    def _setter(self, name: str) -> Any:
        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            factor = self.factor(len(self.rows)) if name in self.rising else 1.0
            for group, base in zip(optimizer.param_groups, self._bases[name], strict=True):
                group["lr"] = base * factor

        return before

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        """Forget the last batch."""
        self._pending.clear()
        self._seen, self._stepped = {}, False

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Note the loss for the optimizer step that it belongs to."""
        self._pending.append(unscaled(trainer, loss))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Note whose loss it was."""
        name = next(name for name, each in zip(self.names, trainer.optimizers, strict=True) if each is optimizer)
        if not pl_module.automatic_optimization and self._pending:
            self._seen[f"{name}/{TOTAL}"] = float(torch.stack(self._pending).sum())
        self._pending.clear()
        self._stepped = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the losses; end training after the last step, or where it diverged."""
        terms = {key.removeprefix("train/"): float(value) for key, value in trainer.callback_metrics.items()}
        terms |= self._seen
        if isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor):
            terms[TOTAL] = float(outputs["loss"]) * trainer.accumulate_grad_batches
        self._parts.append(terms)
        if not self._stepped:
            return
        row = {key: sum(part[key] for part in self._parts if key in part) / len(self._parts) for key in terms}
        self._parts.clear()
        if isinstance(pl_module, GANTask):
            self._add_reconstruction(pl_module, row)
        assert self.watched is not None
        if self.watched not in row:
            raise ValueError(
                f"--loss {self.watched}: the recipe has none such{near(self.watched, row)} (its losses: "
                f"{', '.join(sorted(row))})"
            )
        self.rows.append(row)
        finite = all(math.isfinite(row[key]) for key in (self.watched, *(k for k in row if k.endswith(TOTAL))))
        self.diverged = not finite
        if finite and len(self.rows) > 1:
            mean = self._mean.add(row[self.watched])
            self.diverged = mean > self._best + (DIVERGED - 1) * abs(self._best)
            self._best = min(self._best, mean)
        if self.diverged or len(self.rows) > self.steps:
            trainer.should_stop = True

    def _add_reconstruction(self, task: GANTask, row: dict[str, float]) -> None:
        """Sum a generator's reconstruction terms; choose the loss that is looked at where none was chosen."""
        weighted = {key: task.loss_weights[key] for key in task.reconstruction_keys if key in row}
        if weighted:
            row["g/reconstruction"] = sum(weight * row[key] for key, weight in weighted.items())
        if self.only == "d" and "d/total" not in row:
            raise ValueError(
                f"the discriminators do not train before batch {task.discriminator_start}: add "
                "--model.init_args.discriminator_start=0"
            )
        if self.watched is None:
            self.watched = "d/total" if self.only == "d" else "g/reconstruction" if weighted else "g/total"

    def curve(self) -> dict[str, np.ndarray]:
        """Tested rates, the losses that they led to, and both smoothed alike.

        Raises:
            ValueError: when the loss was not finite from the beginning.
        """
        if len(self.rows) < 2 and not self.diverged:
            raise ValueError("the recipe trains no second step: see its data and trainer.limit_train_batches")
        losses = np.array([row[self.watched or TOTAL] for row in self.rows[1:]])
        losses = losses[: int(np.argmax(~np.isfinite(losses)))] if not np.isfinite(losses).all() else losses
        if not len(losses):
            raise ValueError(f"the loss is not finite at the lowest rate already ({self.low:g}): lower --min_lr")
        rates = np.array([self.rate(step) for step in range(len(losses))])
        smooth_rates, smooth_losses = Average(), Average()
        return {
            "rate": np.exp([smooth_rates.add(math.log(rate)) for rate in rates]),
            "smoothed": np.array([smooth_losses.add(loss) for loss in losses]),
            "tested": rates,
            "loss": losses,
        }


class Average:
    """Exponential moving average without the bias of its beginning."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> float:
        """Add a value; gives the average."""
        self._sum = SMOOTHING * self._sum + (1 - SMOOTHING) * value
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        return self._sum / self._weight


def suggest(rates: np.ndarray, smoothed: np.ndarray, losses: np.ndarray) -> Suggestion | None:
    """Read the rates off a curve.

    Args:
        rates: smoothed, rising.
        smoothed: the loss at them.
        losses: as measured, whose noise a fall has to exceed.

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
    first = int(np.flatnonzero(smoothed[: lowest + 1] >= smoothed[lowest] + BEGUN * fall)[-1])
    wide = max(1, len(smoothed) // 20)
    slopes = []
    for middle in range(first, lowest + 1):
        part = slice(max(0, middle - wide), middle + wide + 1)
        slopes.append(np.polyfit(np.log(rates[part]), smoothed[part], 1)[0])
    return Suggestion(float(rates[first + int(np.argmin(slopes))]), float(rates[lowest]) / CAREFUL)


def _table(test: RangeTest, curve: Mapping[str, np.ndarray]) -> tuple[list[str], list[dict[str, Any]]]:
    """A row for each tested rate: the rates of all rising optimizers, the loss, smoothed with its rate, all losses."""
    rows = []
    for step, rate in enumerate(curve["tested"]):
        named = {f"lr_{name}": rate / test.rates[test.rising[0]] * test.rates[name] for name in test.rising}
        values = {key: float(curve[key][step]) for key in ("loss", "smoothed")} | {"smoothed_lr": curve["rate"][step]}
        rows.append({"step": step, **named, **values, **test.rows[step + 1]})
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return columns, [{key: row.get(key) for key in columns} for row in rows]


def _figure(test: RangeTest, curve: Mapping[str, np.ndarray], found: Suggestion | None, recipe: str) -> Figure:
    figure = new_figure(7.0, 4.5)
    axes = figure.subplots()
    axes.plot(curve["tested"], curve["loss"], ".", color="0.7", label="loss")
    axes.plot(curve["rate"], curve["smoothed"], color="C0", label="smoothed")
    first = test.rising[0]
    marks: list[tuple[str, float, str]] = [("the recipe's", test.rates[first], "0.3")]
    if found is not None:
        marks += [("steepest fall", found.steepest, "C1"), ("lowest / 10", found.careful, "C2")]
    for name, rate, color in marks:
        axes.axvline(rate, color=color, linestyle="--", label=f"{name}: {rate:.2g}")
    low, high = float(curve["smoothed"].min()), float(curve["smoothed"].max())
    begun = float(curve["smoothed"][: int(np.argmin(curve["smoothed"])) + 1].max())
    high = min(high, begun + (begun - low)) if begun > low else high
    margin = 0.1 * (high - low) or 1.0
    axes.set(
        xscale="log", xlabel="learning rate", ylabel=test.watched, title=recipe, ylim=(low - margin, high + margin)
    )
    if len(test.names) > 1:
        ratios = (f"{name}: x {test.rates[name] / test.rates[first]:.3g}" for name in test.rising[1:])
        axes.set_xlabel(", ".join([f"learning rate of {first}", *ratios]))
    axes.legend()
    return figure


def _tell(test: RangeTest, last: float, found: Suggestion | None, recipe: str, folder: Path) -> None:
    end = f"diverged at {last:.2g}" if test.diverged else "without divergence"
    print(f"{recipe}: the loss {test.watched} over rates from {test.low:.2g} to {test.high:.2g}, {end}")
    print(f"curve: {folder / 'lr.csv'}, {folder / 'lr.png'}")
    if found is None:
        print("the loss does not fall by more than its noise: no suggestion; try more --batches, or another --loss")
        return
    ratios = {name: test.rates[name] / test.rates[test.rising[0]] for name in test.rising}
    rows = [
        (name, *(f"{rate:.2g}" for rate in (test.rates[name], found.steepest * ratio, found.careful * ratio)))
        for name, ratio in ratios.items()
    ]
    show_table(terminal_table(["optimizer", "the recipe's", "steepest fall", "lowest / 10"], rows, left=["optimizer"]))
    flags = [
        f"--model.init_args.{test.options[name]}.init_args.lr={found.steepest * ratio:.2g}"
        for name, ratio in ratios.items()
        if test.options[name]
    ]
    print(" ".join(flags) or "set the rates where the recipe's optimizer takes them")
