from __future__ import annotations

import pytest
import torch

from zoo.flow.nets.velocity import VelocityNet
from zoo.flow.process.guidance import Guidance, velocity_field
from zoo.flow.process.paths import ConditionalOT, Cosine


class Table(VelocityNet):
    """Predicts a value per label: 10 times the label, 0.5 for the null class, 0.25 for no class vector."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.sample_shape, self.num_classes, self.rows = (2,), num_classes, []

    def forward(self, x, t, label=None):
        self.rows.append(len(x))
        label = torch.full((len(x),), -1) if label is None else label
        value = torch.where(label > 0, 10.0 * label, torch.where(label == 0, 0.5, 0.25))
        return value[:, None].expand_as(x)


LABEL = torch.tensor([1, 2])
X = torch.zeros(2, 2)


def run(guidance: Guidance | None, t: float = 0.5, label: torch.Tensor | None = LABEL) -> tuple[list[float], list[int]]:
    net = Table()
    return velocity_field(net, ConditionalOT(), label, guidance)(t, X)[:, 0].tolist(), net.rows


def test_scales():
    assert run(Guidance(7.5)) == ([0.5 + 7.5 * 9.5, 0.5 + 7.5 * 19.5], [4])
    assert run(Guidance(7.5, null_mode="none")) == ([0.25 + 7.5 * 9.75, 0.25 + 7.5 * 19.75], [4])
    assert run(Guidance(1)) == ([10, 20], [2])
    assert run(Guidance(0)) == ([0.5, 0.5], [2])
    assert run(Guidance(0, null_mode="none")) == ([0.25, 0.25], [2])
    assert run(None) == ([10, 20], [2])
    assert run(None, label=None) == ([0.25, 0.25], [2])


def test_interval_and_schedules():
    inside = Guidance(3, interval=(0.2, 0.6))
    assert [inside.scale_at(t) for t in (0.1, 0.2, 0.6, 0.7)] == [1, 3, 3, 1]
    assert run(inside, 0.1) == ([10, 20], [2])
    linear, cosine = (Guidance(3, interval=(0.2, 0.6), schedule=name) for name in ("linear", "cosine"))
    assert [linear.scale_at(t) for t in (0.2, 0.4, 0.6)] == pytest.approx([1, 2, 3])
    assert [cosine.scale_at(t) for t in (0.2, 0.3, 0.6)] == pytest.approx([1, 1 + 2 * (1 - 0.5**0.5) / 2, 3])


def test_rescale_restores_the_spread():
    class Spread(Table):
        def forward(self, x, t, label=None):
            return super().forward(x, t, label) * torch.tensor([1.0, -1.0])

    def run(share: float) -> torch.Tensor:
        return velocity_field(Spread(), ConditionalOT(), LABEL, Guidance(4, rescale=share))(0.5, X)

    full, half, none = run(1.0), run(0.5), run(0.0)
    torch.testing.assert_close(full.std(dim=1), Spread()(X, 0.5, LABEL).std(dim=1))
    torch.testing.assert_close(half, (full + none) / 2)


def test_other_predictions_become_velocities():
    x, t, path = torch.randn(2, 2), 0.5, Cosine()
    field = velocity_field(Table(), path, LABEL, Guidance(2), prediction="x1")
    data = torch.tensor([[19.5], [39.5]]).expand(2, 2)
    torch.testing.assert_close(field(t, x), path.to_velocity(data, x, torch.full((2,), t), "x1"))


def test_one_label_serves_all_rows():
    assert run(Guidance(1), label=torch.tensor([3]))[0] == [30, 30]


def test_errors():
    with pytest.raises(ValueError, match="labels lie between 1 and 3"):
        velocity_field(Table(), Cosine(), torch.tensor([4]))
    with pytest.raises(ValueError, match="needs labels and a net with classes"):
        velocity_field(Table(), Cosine(), None, Guidance())
    with pytest.raises(ValueError, match="needs labels and a net with classes"):
        velocity_field(Table(0), Cosine(), LABEL, Guidance())
    for arguments in ({"null_mode": "zero"}, {"interval": (0.5, 0.5)}, {"rescale": 2.0}, {"schedule": "step"}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Guidance(**arguments)
