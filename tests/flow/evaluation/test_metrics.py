from __future__ import annotations

import math

import pytest
import torch

from zoo.flow.evaluation import metrics


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


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


def test_kernel_distance_by_hand():
    real, fake = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]])
    # kernel (x y + 1)^3: k(0,1) = 1, k(2,3) = 343, cross mean of 1, 1, 27, 64
    value, spread = metrics.kernel_distance(real, fake, subsets=3, standardise=False)
    assert value == pytest.approx(1 + 343 - 2 * (1 + 1 + 27 + 64) / 4) and spread == pytest.approx(0, abs=1e-9)


def test_kernel_distance_orders_sets_and_ignores_units():
    real, same, shifted = torch.randn(300, 4), torch.randn(300, 4), torch.randn(300, 4) + 1
    near, far = (metrics.kernel_distance(real, x, subsets=10)[0] for x in (same, shifted))
    assert abs(near) < 0.1 < far
    assert metrics.kernel_distance(1000 * real, 1000 * shifted, subsets=10)[0] == pytest.approx(far, rel=1e-6)


def test_rbf_mmd_by_hand_and_in_order():
    real, fake = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [2.0]])
    within, across = math.exp(-2), (2 + 2 * math.exp(-2)) / 4
    assert metrics.rbf_mmd(real, fake, bandwidth=1.0) == pytest.approx(2 * within - 2 * across)
    real = torch.randn(200, 2)
    assert metrics.rbf_mmd(real, torch.randn(200, 2)) < 0.02 < metrics.rbf_mmd(real, torch.randn(200, 2) + 1)


def test_manifold_scores_of_known_failures():
    real = torch.randn(200, 2)
    alike = metrics.manifold_scores(real, torch.randn(200, 2))
    assert alike["precision"] > 0.85 and alike["recall"] > 0.85 and alike["coverage"] > 0.85
    collapsed = metrics.manifold_scores(real, 0.01 * torch.randn(200, 2))
    assert collapsed["precision"] > 0.95 and collapsed["recall"] < 0.1 and collapsed["coverage"] < 0.2
    far = metrics.manifold_scores(real, torch.randn(200, 2) + 100)
    assert far == {"precision": 0, "recall": 0, "density": 0, "coverage": 0}


def test_sliced_wasserstein_of_a_shift():
    x = torch.randn(100, 1)
    assert metrics.sliced_wasserstein(x, x + 3) == pytest.approx(3, rel=1e-6)
    assert metrics.sliced_wasserstein(x, x) == 0
    # one point against two at -1 and 1: every quantile moves by 1
    two = torch.tensor([[-1.0], [1.0]])
    assert metrics.sliced_wasserstein(torch.zeros(1, 1), two) == pytest.approx(1)
    assert metrics.sliced_wasserstein(torch.zeros(3, 1), two) == pytest.approx(1)


def test_sliced_wasserstein_in_the_plane_is_the_shift_over_root_two():
    x = torch.randn(50, 2)
    value = metrics.sliced_wasserstein(x, x + torch.tensor([4.0, 0.0]), projections=20000)
    assert value == pytest.approx(4 / math.sqrt(2), rel=0.02)


def test_exact_wasserstein_undoes_an_order():
    x = torch.randn(40, 2)
    shifted = (x + torch.tensor([0.3, 0.4]))[torch.randperm(40)]
    assert metrics.wasserstein(x, shifted) == pytest.approx(0.5, rel=1e-5)
    with pytest.raises(ValueError, match="as many points in both sets, found 40 and 39"):
        metrics.wasserstein(x, x[:39])


def test_chamfer_by_hand():
    a, b = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    assert metrics.chamfer(a, b) == pytest.approx(1 + 4 + 1)


def test_errors_name_the_shapes():
    with pytest.raises(ValueError, match=r"found \(3, 2\) and \(3, 4\)"):
        metrics.chamfer(torch.zeros(3, 2), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="at least 6 rows"):
        metrics.manifold_scores(torch.zeros(5, 2), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="at least 2 features, found 1"):
        metrics.FeatureStatistics(2).update(torch.zeros(1, 2)).covariance()
    with pytest.raises(ValueError, match="2 and 3 dimensions"):
        metrics.frechet_distance(torch.randn(4, 2), torch.randn(4, 3))
