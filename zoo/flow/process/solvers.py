"""Solvers of the flow's differential equation, and the time grids they step on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_one_of, check_positive, check_within
from zoo.flow.nets.velocity import VectorField
from zoo.flow.process.time_samplers import shifted

NODES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
# Fifth-order minus fourth-order weights.
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)

SAFETY = 0.9
MIN_FACTOR, MAX_FACTOR = 0.2, 10.0
# Exponents of the PI controller on this error and the one before (Hairer, Norsett and Wanner, section IV.2).
BETA = 0.04
ALPHA = 0.2 - 0.75 * BETA
MAX_STEPS = 10_000
SMALLEST_STEP = 1e-7


class Dopri5:
    """Steps as large as the tolerance allows, the same for the whole batch.

    The error of a step is the largest of the samples' root mean squares, so that a sample's accuracy does not depend
    on its neighbours.

    Attributes:
        nfe: evaluations of the field so far.

    Source: Dormand and Prince (1980); Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations I", II.4.
    """

    def __init__(self, velocity: VectorField, rtol: float = 1e-5, atol: float = 1e-5) -> None:
        check_positive(rtol=rtol, atol=atol)
        self.velocity = velocity
        self.rtol = rtol
        self.atol = atol
        self.nfe = 0
        self._slope: Tensor | None = None
        self._step: float | None = None
        self._error = 1e-4

    def advance(self, x: Tensor, first: float, last: float) -> Tensor:
        """Take a state (B, ...) from one time exactly to another; raises where the tolerance cannot be kept."""
        direction = 1.0 if last > first else -1.0
        t, rejected = first, False
        slope = self._evaluate(t, x) if self._slope is None else self._slope
        if self._step is None:
            self._step = self._first_step(x, slope, t, direction, abs(last - first))
        for _ in range(MAX_STEPS):
            remaining = abs(last - t)
            step = min(self._step, remaining)
            end = last if step == remaining else t + direction * step
            candidate, slopes = self._try(x, slope, t, direction * step, end)
            error = _norm(_moved(torch.zeros_like(x), direction * step, ERROR, slopes), self._scale(x, candidate))
            if error <= 1:
                factor = SAFETY * max(error, 1e-10) ** -ALPHA * self._error**BETA
                factor = min(MAX_FACTOR, max(MIN_FACTOR, factor))
                # the step that was cut to end here says nothing against the one that was planned
                grown = step * min(factor, 1.0 if rejected else MAX_FACTOR)
                self._step = grown if step < remaining else max(grown, self._step)
                self._error, rejected = max(error, 1e-4), False
                x, t, slope = candidate, end, slopes[-1]
                if t == last:
                    self._slope = slope
                    return x
                continue
            # an error that is not a number counts as a large one
            factor = max(MIN_FACTOR, SAFETY * error**-ALPHA) if error < float("inf") else MIN_FACTOR
            self._step, rejected = step * factor, True
            if self._step < SMALLEST_STEP:
                raise ValueError(
                    f"dopri5 needs steps below {SMALLEST_STEP} at t = {t:.4f} for rtol {self.rtol}, atol {self.atol}: "
                    "raise the tolerances, use a fixed grid, or look for infinite values in the net's output"
                )
        raise ValueError(f"dopri5 took {MAX_STEPS} steps and stands at t = {t:.4f}; raise the tolerances")

    def forget(self) -> None:
        """Evaluate anew at the next step: the state was changed from outside."""
        self._slope = None

    def _evaluate(self, t: float, x: Tensor) -> Tensor:
        self.nfe += 1
        return self.velocity(t, x)

    def _try(self, x: Tensor, slope: Tensor, t: float, step: float, end: float) -> tuple[Tensor, list[Tensor]]:
        """A step's result and its slopes, the last of which is the first of the next step."""
        slopes = [slope]
        candidate = x
        for node, stage in zip(NODES[1:], STAGES[1:], strict=True):
            candidate = x + _moved(torch.zeros_like(x), step, stage, slopes)
            slopes.append(self._evaluate(end if node == 1 else t + node * step, candidate))
        return candidate, slopes

    def _scale(self, x: Tensor, other: Tensor) -> Tensor:
        return self.atol + self.rtol * torch.maximum(x.abs(), other.abs())

    def _first_step(self, x: Tensor, slope: Tensor, t: float, direction: float, span: float) -> float:
        """A step by which Euler's method would err by about the tolerance (Hairer et al., II.4)."""
        scale = self._scale(x, x)
        size, speed = _norm(x, scale), _norm(slope, scale)
        guess = 0.01 * size / speed if size > 1e-5 and speed > 1e-5 else 1e-6
        guess = min(guess, span)
        bend = _norm(self._evaluate(t + direction * guess, x + direction * guess * slope) - slope, scale) / guess
        steepest = max(speed, bend)
        further = (0.01 / steepest) ** 0.2 if steepest > 1e-15 else max(1e-6, guess * 1e-3)
        step = min(100 * guess, further, span)
        return step if step > SMALLEST_STEP else SMALLEST_STEP


def _norm(x: Tensor, scale: Tensor) -> float:
    """Largest root mean square of a sample."""
    return float((x / scale).flatten(1).square().mean(dim=1).sqrt().max())


Method = Literal["euler", "midpoint", "heun2", "rk4", "ab2", "dopri5"]
Grid = Literal["uniform", "edm", "cosine", "sway"]
Projection = Callable[[float, Tensor], Tensor]

GRIDS = ("uniform", "edm", "cosine", "sway")
# Noise levels and exponent of the EDM grid (Karras et al., 2022, table 1).
EDM_SIGMA_MAX, EDM_SIGMA_MIN, EDM_RHO = 80.0, 0.002, 7.0


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge-Kutta method: stage times, weights of earlier slopes in each stage, final weights."""

    nodes: tuple[float, ...]
    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]


TABLEAUS = {
    "euler": Tableau((0.0,), ((),), (1.0,)),
    "midpoint": Tableau((0.0, 0.5), ((), (0.5,)), (0.0, 1.0)),
    "heun2": Tableau((0.0, 1.0), ((), (1.0,)), (0.5, 0.5)),
    "rk4": Tableau((0.0, 0.5, 0.5, 1.0), ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}
METHODS = (*TABLEAUS, "ab2", "dopri5")


@dataclass
class Solution:
    """What a solver returns."""

    x: Tensor  # state (B, ...) at the last time
    nfe: int  # evaluations of the field; a guided one runs the net once, on twice the batch
    times: list[float]  # the grid, first to last
    trajectory: list[Tensor] = field(default_factory=list)  # states at the times, or empty


class Solver:
    """Integrates a field over the flow time.

    Args:
        method: "euler", "midpoint", "heun2", "rk4", "ab2" (Adams-Bashforth, one evaluation per step, second order) or
            "dopri5" (adaptive, fifth order).
        steps: intervals of the grid. dopri5 chooses its own steps; there the grid only says where states are recorded.
        grid: "uniform"; "edm" (rho 7); "cosine" and "sway" (short steps near the noise).
        times: the grid itself, ascending from 0 to 1, instead of steps and grid.
        sway: strength of the sway grid, -1 (shortest steps near the noise) to 1; 0 is uniform.
        rtol: relative tolerance of dopri5.
        atol: absolute tolerance of dopri5.
        shift: moves the grid towards the noise as `zoo.flow.ShiftedTimes` moves training's times; 1 for none. A list
            of times is taken as it is.
    """

    shift = 1.0

    def __init__(
        self,
        method: Method = "midpoint",
        steps: int = 10,
        grid: Grid = "uniform",
        times: Sequence[float] | None = None,
        sway: float = -1.0,
        rtol: float = 1e-5,
        atol: float = 1e-5,
        shift: float = 1.0,
    ) -> None:
        check_one_of(METHODS, method=method)
        check_positive(shift=shift)
        self.method = method
        if shift != 1:  # none is not noted: folders of samples that were begun before go on
            self.shift = shift
        self.grid = check_times(times) if times is not None else time_grid(steps, grid, sway, shift)
        self.rtol = rtol
        self.atol = atol

    @property
    def steps(self) -> int:
        """Intervals of the grid."""
        return len(self.grid) - 1

    def using(self, method: Method, steps: int) -> Solver:
        """The same by another method, and on a uniform grid (shifted as before) where it has other steps."""
        other = copy.copy(self)
        other.method = method
        other.grid = self.grid if steps == self.steps else time_grid(steps, shift=self.shift)
        return other

    @torch.no_grad()
    def solve(
        self,
        velocity: VectorField,
        x: Tensor,
        start: float = 0.0,
        end: float = 1.0,
        keep_trajectory: bool = False,
        project: Projection | None = None,
    ) -> Solution:
        """Integrate from one time to another.

        Args:
            x: state (B, ...) at `start`, float.
            end: last time; before the first one, the flow runs backwards over the same grid.
            keep_trajectory: record the states at all times of the grid.
            project: changes the state at each time of the grid but the first, for instance to keep known pixels.

        Raises:
            ValueError: when the times are equal or dopri5 cannot keep its tolerance.
        """
        times = self.times(start, end)
        if self.method == "dopri5" and not keep_trajectory and project is None:
            times = [start, end]
        stepper = Dopri5(velocity, self.rtol, self.atol) if self.method == "dopri5" else _Fixed(velocity, self.method)
        trajectory = [x]
        for first, last in pairwise(times):
            x = stepper.advance(x, first, last)
            if project is not None:
                x = project(last, x)
                stepper.forget()
            if keep_trajectory:
                trajectory.append(x)
        return Solution(x, stepper.nfe, times, trajectory if keep_trajectory else [])

    def times(self, start: float = 0.0, end: float = 1.0) -> list[float]:
        """The grid mapped to an interval; towards the noise, the forward grid read backwards."""
        if start == end:
            raise ValueError(f"start and end are both {start}: nothing to integrate")
        low, high = min(start, end), max(start, end)
        mapped = [low + (high - low) * t for t in self.grid[:-1]] + [high]
        return mapped if start < end else mapped[::-1]


class _Fixed:
    """One step per interval by a Runge-Kutta tableau or Adams-Bashforth."""

    def __init__(self, velocity: VectorField, method: str) -> None:
        self.velocity = velocity
        self.tableau = TABLEAUS.get(method)
        self.nfe = 0
        self.before: tuple[float, Tensor] | None = None

    def advance(self, x: Tensor, first: float, last: float) -> Tensor:
        """Take the state at `first` to `last`."""
        step = last - first
        if self.tableau is None:
            return self._adams_bashforth(x, first, step)
        slopes: list[Tensor] = []
        for node, stage in zip(self.tableau.nodes, self.tableau.stages, strict=True):
            slopes.append(self._evaluate(first + node * step, _moved(x, step, stage, slopes)))
        return _moved(x, step, self.tableau.weights, slopes)

    def forget(self) -> None:
        """Nothing to forget: the slope of an earlier state serves Adams-Bashforth as well."""

    def _evaluate(self, t: float, x: Tensor) -> Tensor:
        self.nfe += 1
        return self.velocity(t, x)

    def _adams_bashforth(self, x: Tensor, t: float, step: float) -> Tensor:
        """The first step is Euler's: its error is of second order once, so the method's order stays."""
        slope = self._evaluate(t, x)
        if self.before is None:
            result = x + step * slope
        else:
            ratio = step / (2 * self.before[0])
            result = x + step * ((1 + ratio) * slope - ratio * self.before[1])
        self.before = (step, slope)
        return result


def _moved(x: Tensor, step: float, weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            x = x + (step * weight) * slope
    return x


def time_grid(steps: int, grid: Grid = "uniform", sway: float = -1.0, shift: float = 1.0) -> list[float]:
    """Ascending times from 0 to 1, of so many intervals.

    Args:
        grid: "uniform": i / n. "edm": t = 1 / (1 + s) with the noise levels s of Karras et al., whose first time,
            0.012, is moved to 0. "cosine": 1 - cos(pi i / 2n). "sway": t + sway (cos(pi t / 2) - 1 + t).
        shift: of these times, see `zoo.flow.process.time_samplers.shifted`.

    Source: Karras et al. (2022), equation 5; sway: Chen et al., "F5-TTS" (2024), equation 7.
    """
    if shift != 1:
        return [0.0, *(shifted(t, shift) for t in time_grid(steps, grid, sway)[1:-1]), 1.0]
    check_at_least(1, steps=steps)
    check_within(-1, 1, sway=sway)
    even = [i / steps for i in range(steps + 1)]
    if grid == "uniform":
        return even
    if grid == "cosine":
        return [1 - math.cos(math.pi / 2 * t) for t in even[:-1]] + [1.0]
    if grid == "sway":
        return [0.0, *(t + sway * (math.cos(math.pi / 2 * t) - 1 + t) for t in even[1:-1]), 1.0]
    if grid == "edm":
        high, low = EDM_SIGMA_MAX ** (1 / EDM_RHO), EDM_SIGMA_MIN ** (1 / EDM_RHO)
        levels = [(high + i / max(steps - 1, 1) * (low - high)) ** EDM_RHO for i in range(1, steps)]
        return [0.0, *(1 / (1 + level) for level in levels), 1.0]
    raise ValueError(f"grid is one of {', '.join(GRIDS)}, not {grid!r}; pass a list of your own as times")


def check_times(times: Sequence[float]) -> list[float]:
    """A user's grid as a list; refused unless it ascends from 0 to 1."""
    grid = [float(t) for t in times]
    if len(grid) < 2 or grid[0] != 0 or grid[-1] != 1 or any(a >= b for a, b in pairwise(grid)):
        raise ValueError(f"times ascend strictly from 0 to 1, found {grid}")
    return grid
