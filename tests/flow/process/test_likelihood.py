import math

import pytest
import torch

from zoo.flow.process.likelihood import bits_per_dim, dequantise, log_likelihood
from zoo.flow.process.solvers import Solver

MEAN = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64)
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.5, 0.0], [-0.3, 0.4, 0.8]], dtype=torch.float64)
COVARIANCE = ROOT @ ROOT.T
EYE = torch.eye(3, dtype=torch.float64)
SOLVER = Solver("dopri5", rtol=1e-7, atol=1e-7)
DATA = MEAN + torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ ROOT.T
EXACT = torch.distributions.MultivariateNormal(MEAN, COVARIANCE).log_prob(DATA)


def field(t: float, x: torch.Tensor) -> torch.Tensor:
    """The exact velocity of the straight path (sigma_min 0) from noise to the Gaussian above."""
    spread = t**2 * COVARIANCE + (1 - t) ** 2 * EYE
    gain = (t * COVARIANCE - (1 - t) * EYE) @ torch.linalg.inv(spread)
    return MEAN + (x.flatten(1) - t * MEAN) @ gain.T


@pytest.mark.parametrize("shape", [(3,), (3, 1, 1)])
def test_exact_divergence_gives_the_gaussians_density(shape):
    def shaped(t, x):
        return field(t, x).reshape(x.shape)

    with torch.inference_mode():
        result = log_likelihood(shaped, DATA.reshape(6, *shape), SOLVER, probes=None)
    assert result.x0.shape == (6, *shape) and result.nfe > 0
    torch.testing.assert_close(result.log_p.clone(), EXACT, atol=1e-5, rtol=0)
    torch.testing.assert_close(SOLVER.solve(field, result.x0.reshape(6, 3)).x, DATA, atol=1e-5, rtol=0)


def test_hutchinsons_estimate_agrees_with_the_exact_density():
    generator = torch.Generator().manual_seed(0)
    for probes in (1, 4):
        rows = DATA[:1].expand(2000, 3)
        estimates = log_likelihood(field, rows, Solver("rk4", 20), probes, generator).log_p
        error = estimates.std() / 2000**0.5
        assert abs(estimates.mean() - EXACT[0]) < 4 * error
        assert error < 0.03 / probes**0.5


def test_bits_of_an_even_density():
    dims = 12
    even = torch.full((2,), -dims * math.log(2.0))  # density 1/2 on [-1, 1] in each dimension
    assert bits_per_dim(even, dims).tolist() == pytest.approx([8.0, 8.0])


def test_dequantised_values_stay_in_their_bins():
    images = torch.arange(256, dtype=torch.uint8).repeat(20, 1)
    spread = dequantise(images, torch.Generator().manual_seed(0))
    assert spread.min() >= -1 and spread.max() <= 1
    assert torch.equal(((spread + 1) * 128).floor().clamp(max=255).to(torch.uint8), images)
    with pytest.raises(ValueError, match="expected uint8 images"):
        dequantise(spread)
