import math

import pytest
import torch

from zoo.flow import ConditionalOT, Solver
from zoo.flow.process.sampling import inpaint, noise, slerp, straightness


def test_a_seed_gives_the_same_sample_in_any_batch():
    together = noise([3, 4, 5], (2, 4, 4))
    assert torch.equal(together[1:2], noise([4], (2, 4, 4)))
    assert not torch.equal(together[0], together[1])
    x = noise(range(4000), (3,))
    assert x.mean().abs() < 0.05 and x.std().item() == pytest.approx(1, abs=0.05)


def test_slerp_by_hand():
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    half = math.sqrt(0.5)
    expected = torch.tensor([[1.0, 0.0], [half, half], [0.0, 1.0]])
    torch.testing.assert_close(slerp(first, second, torch.tensor([0, 0.5, 1])), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(slerp(first, first, torch.tensor([0.3])), first[None])
    images = torch.randn(2, 3, 32, 32)
    middle = slerp(images[0], images[1], torch.tensor([0.5]))
    assert middle.shape == (1, 3, 32, 32) and middle.std().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("method", ["euler", "heun2", "dopri5"])
def test_inpainting_keeps_what_is_known_and_shows_it_to_the_net(method):
    mask = torch.tensor([True, False])
    available = torch.tensor([[3.0, float("nan")]]).expand(4, 2)
    x0 = noise(range(4), (2,))

    def field(t, x):
        """Draws the unknown coordinate to where the known one stands and goes."""
        drift = 10 * (x[:, :1] - x[:, 1:]) + 3.0 - x0[:, :1]
        return torch.cat([torch.zeros_like(drift), drift], dim=1)

    solution = inpaint(field, x0, available, mask, ConditionalOT(0.0), Solver(method, 50))
    assert torch.equal(solution.x[:, 0], torch.full((4,), 3.0))
    torch.testing.assert_close(solution.x[:, 1], torch.full((4,), 3.0), atol=0.1, rtol=0)


def test_straightness_of_a_line_and_of_an_arc():
    line = straightness(lambda t, x: torch.full_like(x, 2.0), torch.randn(3, 2), Solver("euler", 5))
    torch.testing.assert_close(line, torch.zeros(3), atol=1e-8, rtol=0)
    turn = 2.0

    def arc(t, x):
        return turn * torch.stack([-x[:, 1], x[:, 0]], dim=1)

    radii = torch.tensor([1.0, 2.0])
    x0 = torch.stack([radii, torch.zeros(2)], dim=1)
    # the mean of v is the chord, so the integral is the mean of |v|^2 minus |chord|^2
    expected = radii**2 * (turn**2 - (2 * math.sin(turn / 2)) ** 2)
    torch.testing.assert_close(straightness(arc, x0, Solver("rk4", 100)), expected, atol=1e-3, rtol=0)
