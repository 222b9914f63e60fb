"""Solvers of the flow's differential equation, and the time grids they step on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_one_of, check_positive
from zoo.flow.nets.velocity import VectorField
from zoo.flow.process.time_samplers import shifted

Method = Literal["euler", "midpoint", "heun2", "rk4", "dopri5"]
Projection = Callable[[float, Tensor], Tensor]

MAX_STEPS = 10_000  # of dopri5


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
METHODS: tuple[Method, ...] = get_args(Method)


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
        method: "euler", "midpoint", "heun2", "rk4" or "dopri5" (adaptive, fifth order, of torchdiffeq; the error of a
            step is that of the worst sample).
        steps: intervals of the grid. dopri5 chooses its own steps; there the grid only says where states are recorded.
        times: the grid itself, ascending from 0 to 1, instead of even steps.
        rtol: relative tolerance of dopri5.
        atol: absolute tolerance of dopri5.
        shift: moves the grid towards the noise as `zoo.flow.ShiftedTimes` moves training's times; 1 for none. A list
            of times is taken as it is.
    """

    def __init__(
        self,
        method: Method = "midpoint",
        steps: int = 10,
        times: Sequence[float] | None = None,
        rtol: float = 1e-5,
        atol: float = 1e-5,
        shift: float = 1.0,
    ) -> None:
        check_one_of(METHODS, method=method)
        check_positive(shift=shift, rtol=rtol, atol=atol)
        self.method = method
        self.shift = shift
        self.grid = check_times(times) if times is not None else time_grid(steps, shift)
        self.rtol = rtol
        self.atol = atol

    @property
    def steps(self) -> int:
        """Intervals of the grid."""
        return len(self.grid) - 1

    def using(self, method: Method, steps: int) -> Solver:
        """The same by another method, and on an even grid (shifted as before) where it has other steps."""
        other = copy.copy(self)
        other.method = method
        other.grid = self.grid if steps == self.steps else time_grid(steps, self.shift)
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
        nfe = 0

        def count_calls(t: float, x: Tensor) -> Tensor:
            nonlocal nfe
            nfe += 1
            return velocity(t, x)

        trajectory = [x]
        for first, last in pairwise(times):
            if self.method == "dopri5":
                x = self._dopri5(count_calls, x, first, last)
            else:
                x = runge_kutta_step(TABLEAUS[self.method], count_calls, x, first, last)
            if project is not None:
                x = project(last, x)
            if keep_trajectory:
                trajectory.append(x)
        return Solution(x, nfe, times, trajectory if keep_trajectory else [])

    def times(self, start: float = 0.0, end: float = 1.0) -> list[float]:
        """The grid mapped to an interval; towards the noise, the forward grid read backwards."""
        if start == end:
            raise ValueError(f"start and end are both {start}: nothing to integrate")
        low, high = min(start, end), max(start, end)
        mapped = [low + (high - low) * t for t in self.grid[:-1]] + [high]
        return mapped if start < end else mapped[::-1]

    def _dopri5(self, velocity: VectorField, x: Tensor, first: float, last: float) -> Tensor:
        from torchdiffeq import odeint

        times = torch.tensor([first, last], dtype=torch.float64, device=x.device)
        try:
            states = odeint(
                lambda t, x: velocity(float(t), x),
                x,
                times,
                rtol=self.rtol,
                atol=self.atol,
                method="dopri5",
                options={"norm": largest_rms, "max_num_steps": MAX_STEPS, "step_t": times[1:]},
            )
        except AssertionError as error:  # a step that is too small, or too many of them
            raise ValueError(
                f"dopri5 cannot keep rtol {self.rtol}, atol {self.atol} between t = {first:.4f} and {last:.4f} "
                f"({error}): raise the tolerances, use a fixed grid, or look for infinite values in the net's output"
            ) from error
        return states[-1]


def largest_rms(x: Tensor) -> Tensor:
    """Largest root mean square of a sample (B, ...): its steps do not depend on easier samples beside it."""
    return x.flatten(1).square().mean(dim=1).sqrt().max()


def runge_kutta_step(tableau: Tableau, velocity: VectorField, x: Tensor, first: float, last: float) -> Tensor:
    """Take a state (B, ...) from one time to another by one step of an explicit method."""
    step = last - first
    slopes: list[Tensor] = []
    for node, stage in zip(tableau.nodes, tableau.stages, strict=True):
        slopes.append(velocity(first + node * step, _add_slopes(x, step, stage, slopes)))
    return _add_slopes(x, step, tableau.weights, slopes)


def _add_slopes(x: Tensor, step: float, weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            x = x + (step * weight) * slope
    return x


def time_grid(steps: int, shift: float = 1.0) -> list[float]:
    """Times i / steps from 0 to 1, moved towards the noise by `zoo.flow.process.time_samplers.shifted`."""
    check_at_least(1, steps=steps)
    even = [i / steps for i in range(steps + 1)]
    return even if shift == 1 else [0.0, *(shifted(t, shift) for t in even[1:-1]), 1.0]


def check_times(times: Sequence[float]) -> list[float]:
    """A user's grid as a list; refused unless it ascends from 0 to 1."""
    grid = [float(t) for t in times]
    if len(grid) < 2 or grid[0] != 0 or grid[-1] != 1 or any(a >= b for a, b in pairwise(grid)):
        raise ValueError(f"times ascend strictly from 0 to 1, found {grid}")
    return grid
