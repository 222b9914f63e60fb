import math
from itertools import pairwise

import pytest
import torch

from zoo.flow.process.solvers import Solver

DOUBLE = torch.float64
START = torch.tensor([[1.0, 0.0], [0.5, -2.0]], dtype=DOUBLE)


def rotate(t: float, x: torch.Tensor) -> torch.Tensor:
    """dx/dt = (1 + cos t) J x, whose solution turns by t + sin t."""
    return (1 + math.cos(t)) * torch.stack([-x[:, 1], x[:, 0]], dim=1)


def rotated(x: torch.Tensor, first: float, last: float) -> torch.Tensor:
    angle = (last + math.sin(last)) - (first + math.sin(first))
    c, s = math.cos(angle), math.sin(angle)
    return x @ torch.tensor([[c, s], [-s, c]], dtype=x.dtype)


@pytest.mark.parametrize(
    ("method", "order", "evaluations"), [("euler", 1, 1), ("midpoint", 2, 2), ("heun2", 2, 2), ("rk4", 4, 4)]
)
def test_order_of_convergence(method, order, evaluations):
    steps = 40
    errors = []
    for n in (steps, 2 * steps):
        solution = Solver(method, n).solve(rotate, START)
        assert solution.nfe == evaluations * n
        errors.append((solution.x - rotated(START, 0, 1)).abs().max().item())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.2)


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun2", "rk4", "dopri5"])
def test_backwards_and_partial_intervals(method):
    solver = Solver(method, 400)
    back = solver.solve(rotate, START, start=1.0, end=0.25)
    tolerance = 0.02 if method == "euler" else 1e-4
    torch.testing.assert_close(back.x, rotated(START, 1.0, 0.25), atol=tolerance, rtol=0)
    assert back.times[0] == 1.0 and back.times[-1] == 0.25


def test_trajectory_of_dopri5_has_the_grid():
    adaptive = Solver("dopri5", 4, rtol=1e-8, atol=1e-8).solve(rotate, START, keep_trajectory=True)
    for t, x in zip(adaptive.times, adaptive.trajectory, strict=True):
        torch.testing.assert_close(x, rotated(START, 0, t), atol=1e-6, rtol=0)


def stiff(t: float, x: torch.Tensor) -> torch.Tensor:
    return -50 * (x - math.sin(10 * t))


def test_dopri5_sample_does_not_depend_on_easier_neighbours():
    solver = Solver("dopri5", rtol=1e-6, atol=1e-6)
    hard = torch.ones(1, 1, dtype=DOUBLE)

    def together(t, x):
        return torch.cat([stiff(t, x[:1]), torch.zeros_like(x[1:])])

    a = solver.solve(stiff, hard)
    b = solver.solve(together, torch.ones(50, 1, dtype=DOUBLE))
    assert torch.equal(a.x, b.x[:1]) and a.nfe == b.nfe


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0), (0.2, 0.7)])
def test_dopri5_does_not_leave_the_interval(start, end):
    times = []
    Solver("dopri5", rtol=1e-2, atol=1e-2).solve(lambda t, x: times.append(t) or x, torch.ones(1, 1), start, end)
    assert (min(times), max(times)) == pytest.approx((min(start, end), max(start, end)), abs=1e-6)


def test_what_cannot_be_integrated_is_refused():
    for field in (lambda t, x: x * float("nan"), lambda t, x: x**2):  # the second is infinite at t = 0.5
        with pytest.raises(ValueError, match="dopri5 cannot keep"):
            Solver("dopri5").solve(field, torch.full((1, 1), 2.0))


def test_own_times():
    solver = Solver("euler", times=[0, 0.1, 1])
    assert solver.times(1.0, 0.0) == [1, 0.1, 0] and solver.times(0.0, 0.5) == [0, 0.05, 0.5]
    solution = solver.solve(lambda t, x: torch.full_like(x, t), torch.zeros(1, 1))
    assert solution.x.item() == pytest.approx(0.9 * 0.1)
    assert all(a < b for a, b in pairwise(solver.grid))


def test_shifted_grid():
    solver = Solver(steps=4, shift=3.0)
    assert solver.grid == pytest.approx([0, 0.25 / 2.5, 0.25, 0.75 / 1.5, 1])
    assert solver.using("euler", 2).grid == pytest.approx([0, 0.25, 1])
    assert Solver(times=[0, 0.3, 1], shift=2.0).grid == [0, 0.3, 1]
