"""Probability paths between noise (t = 0) and data (t = 1), and what a net may predict on them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

Prediction = Literal["velocity", "x1", "noise"]
PREDICTIONS = ("velocity", "x1", "noise")

# Where a coefficient vanishes its quotients are taken this far away from it: nearer, they blow a net's error up.
TIME_MARGIN = 0.025


class AffinePath(ABC):
    """A path x_t = alpha(t) x_1 + sigma(t) x_0; subclasses give the two coefficients and their derivatives.

    Source: Lipman et al., "Flow Matching for Generative Modeling" (2023), section 4.
    """

    @abstractmethod
    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return alpha, sigma and their derivatives at times of any shape, 0 to 1."""

    def sample(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Mix noise and data (B, ...) at times (B,), 0 to 1: points on the path."""
        alpha, sigma, _, _ = self._at(t, x1)
        return alpha * x1 + sigma * x0

    def target(self, x0: Tensor, x1: Tensor, t: Tensor, prediction: Prediction = "velocity") -> Tensor:
        """What a net is to predict at `sample(x0, x1, t)`: dx_t/dt ("velocity"), the data ("x1") or x_0 ("noise")."""
        if prediction == "x1":
            return x1
        if prediction == "noise":
            return x0
        _, _, d_alpha, d_sigma = self._at(t, x1)
        return d_alpha * x1 + d_sigma * x0

    def informative_time(self, t: float, prediction: Prediction) -> float:
        """The nearest time at which a prediction determines the velocity: data not at 1, noise not at 0."""
        return {"velocity": t, "x1": min(t, 1 - TIME_MARGIN), "noise": max(t, TIME_MARGIN)}[prediction]

    def to_velocity(self, output: Tensor, x: Tensor, t: Tensor, prediction: Prediction) -> Tensor:
        """The velocity dx_t/dt that a prediction (B, ...) at x (B, ...) and times (B,) implies.

        Data at t = 1 and noise at t = 0 do not determine it; the coefficients are then those of a time 0.025 away.
        """
        if prediction == "velocity":
            return output
        if prediction == "x1":
            alpha, sigma, d_alpha, d_sigma = self._at(t.clamp(max=1 - TIME_MARGIN), x)
            return d_alpha * output + d_sigma * (x - alpha * output) / sigma
        alpha, sigma, d_alpha, d_sigma = self._at(t.clamp(min=TIME_MARGIN), x)
        return d_alpha * (x - sigma * output) / alpha + d_sigma * output

    def _at(self, t: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The coefficients as (B, 1, ...), in the dtype of x."""
        shape = (-1, *(1,) * (x.dim() - 1))
        alpha, sigma, d_alpha, d_sigma = (value.reshape(shape).to(x.dtype) for value in self.coefficients(t))
        return alpha, sigma, d_alpha, d_sigma


class ConditionalOT(AffinePath):
    """Straight lines: alpha = t, sigma = 1 - (1 - sigma_min) t.

    Args:
        sigma_min: noise left at t = 1; 0.001 in the assignment, 0 for rectified flow.

    Source: Lipman et al. (2023), equation 22.
    """

    def __init__(self, sigma_min: float = 0.001) -> None:
        if not 0 <= sigma_min < 1:
            raise ValueError(f"sigma_min lies in [0, 1), not {sigma_min}")
        self.sigma_min = sigma_min

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return alpha, sigma and their derivatives."""
        slope = 1 - self.sigma_min
        return t, 1 - slope * t, torch.ones_like(t), torch.full_like(t, -slope)


class Cosine(AffinePath):
    """A quarter of a circle: alpha = sin(pi t / 2), sigma = cos(pi t / 2), so that the variance stays.

    Source: Albergo and Vanden-Eijnden, "Building Normalizing Flows with Stochastic Interpolants" (2023).
    """

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return alpha, sigma and their derivatives."""
        half_pi = math.pi / 2
        alpha, sigma = torch.sin(half_pi * t), torch.cos(half_pi * t)
        return alpha, sigma, half_pi * sigma, -half_pi * alpha
