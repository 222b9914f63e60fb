"""Dormand and Prince's adaptive Runge-Kutta method of order 5(4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.flow.velocity import VectorField

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

    Args:
        velocity: the field.
        rtol: relative tolerance.
        atol: absolute tolerance.

    Attributes:
        nfe: evaluations of the field so far.

    Raises:
        ValueError: when a tolerance is not positive.

    Source: Dormand and Prince (1980); Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations I", II.4.
    """

    def __init__(self, velocity: VectorField, rtol: float = 1e-5, atol: float = 1e-5) -> None:
        if rtol <= 0 or atol <= 0:
            raise ValueError(f"tolerances are positive, found rtol {rtol} and atol {atol}")
        self.velocity = velocity
        self.rtol = rtol
        self.atol = atol
        self.nfe = 0
        self._slope: Tensor | None = None
        self._step: float | None = None
        self._error = 1e-4

    def advance(self, x: Tensor, first: float, last: float) -> Tensor:
        """Take a state (B, ...) from one time exactly to another.

        Raises:
            ValueError: when the tolerance cannot be kept, or the field is not finite.
        """
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
            error = _norm(_combined(direction * step, ERROR, slopes), self._scale(x, candidate))
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
            candidate = x + _combined(step, stage, slopes)
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


def _combined(step: float, weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(slopes[0])
    for weight, slope in zip(weights, slopes, strict=True):
        if weight:
            total = total + (step * weight) * slope
    return total


def _norm(x: Tensor, scale: Tensor) -> float:
    """Largest root mean square of a sample."""
    return float((x / scale).flatten(1).square().mean(dim=1).sqrt().max())
