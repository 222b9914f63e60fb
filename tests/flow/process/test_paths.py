import pytest
import torch

from zoo.flow.process import paths

ALL = [paths.ConditionalOT(0.001), paths.ConditionalOT(0.0), paths.Cosine()]


@pytest.mark.parametrize("path", ALL, ids=lambda p: type(p).__name__)
def test_velocity_is_the_derivative_of_the_path(path):
    torch.manual_seed(0)
    x0, x1 = torch.randn(2, 9, 2, 3, dtype=torch.float64)
    t = torch.linspace(0.05, 0.95, 9, dtype=torch.float64)
    h = 1e-6
    slope = (path.sample(x0, x1, t + h) - path.sample(x0, x1, t - h)) / (2 * h)
    torch.testing.assert_close(path.target(x0, x1, t), slope, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("path", ALL, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("prediction", paths.PREDICTIONS)
def test_every_prediction_gives_the_same_velocity(path, prediction):
    torch.manual_seed(0)
    x0, x1 = torch.randn(2, 7, 5, dtype=torch.float64)
    t = torch.linspace(0.1, 0.9, 7, dtype=torch.float64)
    x = path.sample(x0, x1, t)
    output = path.target(x0, x1, t, prediction)
    torch.testing.assert_close(path.to_velocity(output, x, t, prediction), path.target(x0, x1, t))


@pytest.mark.parametrize("path", ALL, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("prediction", paths.PREDICTIONS)
@pytest.mark.parametrize("t", [0.0, 1.0])
def test_conversions_at_the_ends_keep_a_small_error_small(path, prediction, t):
    torch.manual_seed(0)
    x0, x1 = torch.randn(2, 3, 2)
    t = torch.full((3,), t)
    output = path.target(x0, x1, t, prediction) + 0.03
    assert path.to_velocity(output, path.sample(x0, x1, t), t, prediction).abs().max() < 6
