"""What a demo of the evidence is: trainings, figures, and claims on them with thresholds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, cast

from zoo.common.systems import recipe_root

Figures = dict[str, float]
MEAN, MEDIAN, EACH = "mean", "median", "every seed"


class EvidenceStep(NamedTuple):
    """A command of `zoo`: a training, or what the next one needs.

    Attributes:
        name: its folder below the seed's.
        arguments: of `zoo`.
    """

    name: str
    arguments: list[str]


class Demo(NamedTuple):
    """Trainings and figures of one seed.

    Attributes:
        name: `<system>/<demo>`.
        plan: steps of a seed in a folder, in order; short trainings when quick.
        measure: figures of a seed's finished steps, by name.
        runs: steps whose folders `measure` takes; the seed's folder without any.
        data: folders below ZOO_DATA that it learns from.
        redrawn: how often its recipe was changed after figures of its seeds were known; each change takes other seeds.
        prepare: writes into a seed's folder what its steps take.
    """

    name: str
    plan: Callable[[Path, int, bool], Iterable[EvidenceStep]]
    measure: Callable[..., Figures]
    runs: tuple[str, ...] = ("",)
    data: tuple[str, ...] = ()
    redrawn: int = 0
    prepare: Callable[[Path], None] = lambda root: None

    def figures(self, root: Path, quick: bool) -> Figures:
        """Return the figures of a seed's folder."""
        return self.measure(*(root / name for name in self.runs), quick=quick)

    @property
    def system(self) -> str:
        """The system's name."""
        return self.name.partition("/")[0]


class Claim(NamedTuple):
    """A figure and the threshold that it must keep.

    Attributes:
        demo: name of the demo.
        title: what is claimed.
        figure: as the demo calls it.
        statistic: what is compared: the mean or the median over seeds, or every seed's value.
        at_most: threshold from above.
        at_least: threshold from below.
        to: another figure by which it is divided; for a mean, after both were averaged.
    """

    demo: str
    title: str
    figure: str
    statistic: str
    at_most: float | None = None
    at_least: float | None = None
    to: str | None = None

    @property
    def limit(self) -> str:
        """The threshold in words."""
        sign, value = ("<=", self.at_most) if self.at_most is not None else (">=", self.at_least)
        return f"{self.statistic} {sign} {value:g}"

    def values(self, seeds: Sequence[Figures]) -> list[float]:
        """The figure of each seed."""
        return [each[self.figure] / (each[self.to] if self.to else 1.0) for each in seeds]

    def value(self, seeds: Sequence[Figures]) -> float:
        """The value to compare with the threshold: for every seed the worst; NaN where one is."""
        values = self.values(seeds)
        if any(map(math.isnan, values)):
            return math.nan
        if self.statistic == EACH:
            return max(values) if self.at_most is not None else min(values)
        if self.statistic == MEDIAN:
            return median(values)
        if self.to is None:
            return fmean(values)
        return fmean(each[self.figure] for each in seeds) / fmean(each[self.to] for each in seeds)

    def passes(self, seeds: Sequence[Figures]) -> bool:
        """Whether the threshold holds (never for NaN)."""
        value = self.value(seeds)
        return value <= self.at_most if self.at_most is not None else value >= cast(float, self.at_least)


def fit_step(root: Path, name: str, recipe: str, seed: int, **changes: Any) -> EvidenceStep:
    """A training of a recipe with a seed; `__` in the changes' keys stands for a dot."""
    arguments = ["fit", f"--config={recipe_root() / recipe}.yaml", f"--trainer.default_root_dir={root / name}"]
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    return EvidenceStep(
        name, [*arguments, f"--seed_everything={seed}", *(f"--{key}={value}" for key, value in changed.items())]
    )


def lasting(steps: int) -> dict[str, int]:
    """Changes of a training to so many steps, validated and kept at its end."""
    return dict.fromkeys(("trainer__max_steps", "trainer__val_check_interval", "checkpoints__every_n_steps"), steps)


def data_folder() -> Path:
    """The folder of recordings, weights and data sets: ZOO_DATA, or `data`."""
    return Path(os.environ.get("ZOO_DATA", "data")).absolute()
