"""What it costs to watch a run: python -m scripts.bench.terminal bar|samples|all [--quick]."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import lightning as L

from scripts.bench.tools import (
    ENDLESS,
    Cost,
    Finding,
    Settings,
    command,
    cpu_ms,
    in_folders,
    ratios,
    read_clocks,
)
from zoo.cli.trainer import ZooCLI
from zoo.common.systems import recipe_root
from zoo.training.callbacks.progress import ProgressBar

STEP_RECIPES = ("flow/demo_swissroll", "hifigan/demo")
SAMPLE_RECIPES = ("flow/demo_digits", "hifigan/demo")
LIMIT_OF_A_STEP, LIMIT_OF_A_VALIDATION = 3.0, 10.0  # per cent


class _Enough(Exception):
    """Ends a training that is only measured."""


class _Turns(L.Callback):
    """Takes the bar away in every other turn of some seconds."""

    def __init__(self, rounds: int, seconds: float) -> None:
        self.rounds, self.seconds = rounds, seconds
        self.costs: dict[str, list[Cost]] = {"with bar": [], "without": []}
        self._steps = 0
        self._began: Cost | None = None
        self._bar: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        now = read_clocks()
        if self._began is None:  # a first turn warms up
            self._began = now
        self._steps += 1
        passed = now - self._began
        if passed.wall < self.seconds:
            return
        name = "without" if self._bar else "with bar"
        self.costs[name].append(passed / (self._steps - 1))
        if len(self.costs["without"]) > self.rounds:
            raise _Enough
        shown = self._bar or [each for each in trainer.callbacks if isinstance(each, ProgressBar)]
        rest = [each for each in trainer.callbacks if not isinstance(each, ProgressBar)]
        trainer.callbacks, self._bar = ([*shown, *rest], []) if self._bar else (rest, shown)
        self._steps, self._began = 1, read_clocks()


@contextmanager
def _screen() -> Iterator[None]:
    """Standard error as a terminal that shows nothing."""
    kept = sys.stderr
    with open("/dev/null", "w", encoding="utf-8") as nothing:
        nothing.isatty = lambda: True  # type: ignore[method-assign]
        sys.stderr = nothing
        try:
            yield
        finally:
            sys.stderr = kept


def bar(settings: Settings) -> list[Finding]:
    """What the bar adds to a step, by turns within one training; lines are those of a file, one a second."""
    findings = []
    for recipe in STEP_RECIPES:
        for kind in ("bar", "lines"):
            turns = _Turns(settings.few(12, 2), settings.few(3, 1))
            folder = settings.folder / kind / recipe
            fit = settings.build_fit(
                [*_recipe(recipe), f"--trainer.default_root_dir={folder}", "--terminal.every_seconds=1", *ENDLESS]
            )
            fit.trainer.callbacks.append(turns)  # type: ignore[attr-defined]
            try:
                if kind == "bar":
                    with _screen():
                        fit.trainer.fit(fit.model, fit.datamodule)
                else:
                    fit.trainer.fit(fit.model, fit.datamodule)
            except _Enough:
                pass
            shown, without = (turns.costs[name][1:] for name in ("with bar", "without"))
            ratio = ratios(shown, without)
            details = {"by wall time, %": 100 * (ratio.wall - 1), **cpu_ms(turns.costs), "rounds": len(shown)}
            name = f"{kind}, a step of {recipe}"
            findings.append(Finding(name, 100 * (ratio.cpu - 1), "%", at_most=LIMIT_OF_A_STEP, details=details))
    return findings


class _Validations(L.Callback):
    """The costs of validations within a training."""

    def __init__(self) -> None:
        self.costs: list[Cost] = []
        self._began: Cost | None = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = read_clocks()

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        self._end()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end()

    def _end(self) -> None:
        if self._began is not None:
            self.costs.append(read_clocks() - self._began)
            self._began = None


def samples(settings: Settings) -> list[Finding]:
    """What samples take of a validation; a run with them and one without, by turns.

    Raises:
        ValueError: when recipes have no section `samples`.
    """
    findings = []
    for recipe in SAMPLE_RECIPES:
        costs: dict[str, list[Cost]] = {"with samples": [], "without": []}
        for number in range(settings.few(4, 1)):
            for name, each in costs.items():
                each += _validations(settings, recipe, f"{number}", name == "with samples")
        totals = [(sum(cost.cpu for cost in each), sum(cost.wall for cost in each)) for each in costs.values()]
        share, wall = (100 * (1 - without / shown) for shown, without in zip(*totals, strict=True))
        details = {"by wall time, %": wall, **cpu_ms(costs), "validations": len(costs["without"])}
        name = f"samples, share of a validation of {recipe}"
        findings.append(Finding(name, share, "%", at_most=LIMIT_OF_A_VALIDATION, details=details))
    return findings


def _validations(settings: Settings, recipe: str, number: str, enabled: bool) -> list[Cost]:
    """Ten validations of a fresh training, of which the first and the last show samples in any case."""
    folder = f"--trainer.default_root_dir={settings.folder / recipe / number / str(enabled)}"
    every = ["--trainer.max_steps=60", "--trainer.val_check_interval=6", "--trainer.num_sanity_val_steps=0"]
    options = [*_recipe(recipe), folder, *every, *ENDLESS[3:]]
    if "samples" not in settings.build_fit(options).config:  # type: ignore[attr-defined]
        raise ValueError("recipes have no section `samples` here")
    fit = settings.build_fit([*options, f"--samples.enabled={str(enabled).lower()}"])
    watch = _Validations()
    fit.trainer.callbacks.append(watch)  # type: ignore[attr-defined]
    fit.trainer.fit(fit.model, fit.datamodule)
    return watch.costs


def _recipe(name: str) -> list[str]:
    return [f"--config={recipe_root() / name}.yaml"]


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {each.__name__: each for each in (bar, samples)}

if __name__ == "__main__":
    try:
        command("terminal", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
    except ValueError as error:
        sys.exit(f"terminal.py: {error}")
