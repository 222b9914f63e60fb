from __future__ import annotations

import pytest
import torch

from zoo.flow.losses import MinSnr
from zoo.flow.process.paths import AffinePath, ConditionalOT, Cosine

T = torch.linspace(0.02, 0.98, 49, dtype=torch.float64)


def test_min_snr_on_straight_paths():
    path, snr = ConditionalOT(0.0), (T / (1 - T)) ** 2
    weight = MinSnr(5.0)
    torch.testing.assert_close(weight(T, path, "velocity"), (T**2).minimum(5 * (1 - T) ** 2))
    torch.testing.assert_close(weight(T, path, "x1"), snr.clamp(max=5))
    torch.testing.assert_close(weight(T, path, "noise"), snr.clamp(max=5) / snr)


@pytest.mark.parametrize("path", [ConditionalOT(0.001), Cosine()], ids=lambda path: type(path).__name__)
def test_one_weight_for_all_predictions(path: AffinePath):
    """The weighted error is the same whatever a net predicts, for one and the same wrong net."""
    x0, x1, guess = torch.randn(3, len(T), 1, dtype=torch.float64)
    x = path.sample(x0, x1, T)
    outputs = {"velocity": guess}
    outputs["noise"], outputs["x1"] = path.endpoints(guess, x, T, "velocity")
    errors = []
    for prediction, output in outputs.items():
        error = (output - path.target(x0, x1, T, prediction)).square()[:, 0]
        errors.append(MinSnr(2.0)(T, path, prediction) * error)
    torch.testing.assert_close(errors[0], errors[1], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(errors[0], errors[2], rtol=1e-6, atol=1e-9)


def test_weights_are_finite():
    ends = torch.tensor([0.0, 1.0])
    assert all(MinSnr()(ends, ConditionalOT(0.0), kind).isfinite().all() for kind in ("velocity", "x1", "noise"))
    with pytest.raises(ValueError, match="gamma is positive"):
        MinSnr(0)
