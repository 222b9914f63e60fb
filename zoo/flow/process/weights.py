"""How much the error at a time counts."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from zoo.common.checks import check_positive
from zoo.flow.process.paths import TIME_MARGIN, AffinePath, Prediction


class LossWeight(ABC):
    """Weight of the squared error of a velocity by its time; for other predictions it is converted.

    The errors of what a net may predict are multiples of one another at a time, so a weight of one is that of all.
    """

    @abstractmethod
    def of_velocity(self, t: Tensor, path: AffinePath) -> Tensor:
        """Weights (B,) of the squared error of a velocity at times (B,), float."""

    def __call__(self, t: Tensor, path: AffinePath, prediction: Prediction) -> Tensor:
        """Weights (B,) of the squared error of a prediction; times are kept 1e-4 away from both ends."""
        t = t.clamp(TIME_MARGIN, 1 - TIME_MARGIN)
        weight = self.of_velocity(t, path)
        if prediction == "velocity":
            return weight
        alpha, sigma, d_alpha, d_sigma = path.coefficients(t)
        # velocity error = (alpha' sigma - alpha sigma') / sigma of the data's, / -alpha of the noise's
        return weight * ((d_alpha * sigma - alpha * d_sigma) / (sigma if prediction == "x1" else alpha)) ** 2


class MinSnr(LossWeight):
    """The loss of the data weighted by the signal-to-noise ratio, at most gamma.

    On straight paths min(t^2, gamma (1 - t)^2) of a velocity's error.

    Args:
        gamma: where the weight stops growing.

    Source: Hang et al., "Efficient Diffusion Training via Min-SNR Weighting Strategy" (2023), section 3.4.
    """

    def __init__(self, gamma: float = 5.0) -> None:
        check_positive(gamma=gamma)
        self.gamma = gamma

    def of_velocity(self, t: Tensor, path: AffinePath) -> Tensor:
        """Weights (B,) of a velocity's error."""
        alpha, sigma, d_alpha, d_sigma = path.coefficients(t)
        return (alpha**2).minimum(self.gamma * sigma**2) / (d_alpha * sigma - alpha * d_sigma) ** 2
