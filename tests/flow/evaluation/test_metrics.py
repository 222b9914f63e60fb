import pytest
import torch

from zoo.flow.evaluation import metrics


def whitened(count: int, dims: int) -> torch.Tensor:
    x = torch.randn(count, dims, dtype=torch.float64)
    x = x - x.mean(dim=0)
    return x @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T))).T


def test_frechet_distance_of_gaussians_in_closed_form():
    x = whitened(50, 3)
    assert metrics.frechet_distance(x, x) == pytest.approx(0, abs=1e-9)
    assert metrics.frechet_distance(x, 3 * x + 2) == pytest.approx(3 * 2**2 + 3 * (3 - 1) ** 2, rel=1e-9)


def test_frechet_distance_with_singular_covariance_is_finite():
    x = torch.randn(5, 20)
    assert metrics.frechet_distance(x, x) == pytest.approx(0, abs=1e-6)


def test_chamfer_by_hand():
    a, b = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    assert metrics.chamfer(a, b) == pytest.approx(1 + 4 + 1)
