import pytest
import torch

from zoo.flow import ConditionalOT, Cosine, Guidance, NestedGuidance, Solver, VelocityNet
from zoo.flow.process.conditions import ConditionBatch
from zoo.flow.process.guidance import velocity_field


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


class Normal(VelocityNet):
    """The exact prediction for standard normal data on straight paths."""

    def __init__(self, prediction: str) -> None:
        super().__init__()
        self.sample_shape, self.num_classes, self.prediction = (1,), 0, prediction

    def forward(self, x, t, label=None):
        alpha, sigma = t, 1 - t
        share = {"velocity": alpha - sigma, "x1": alpha, "noise": sigma}[self.prediction]
        return share / (alpha**2 + sigma**2) * x


@pytest.mark.parametrize("prediction", ["velocity", "x1", "noise"])
def test_every_prediction_ends_at_the_data(prediction):
    field = velocity_field(Normal(prediction), ConditionalOT(0.0), prediction=prediction)
    x = torch.ones(1, 1, dtype=torch.float64)
    assert Solver("rk4", 200).solve(field, x).x.item() == pytest.approx(1, abs=1e-3)


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
    assert run(Guidance(3, interval=(0.2, 0.6)), 0.1) == ([10, 20], [2])


def test_other_predictions_become_velocities():
    x, t, path = torch.randn(2, 2), 0.5, Cosine()
    field = velocity_field(Table(), path, LABEL, Guidance(2), prediction="x1")
    data = torch.tensor([[19.5], [39.5]]).expand(2, 2)
    torch.testing.assert_close(field(t, x), path.to_velocity(data, x, torch.full((2,), t), "x1"))


class Sum(Table):
    """Adds to the table a value of the text, ten times that of the image, and a product of all, to tell branches."""

    def forward(self, x, t, label=None, conditions=None):
        text, image = conditions["pooled"][:, 0], conditions["image"].flatten(1)[:, 0]
        table = super().forward(x, t, label)
        return table + (text + 10 * image + text * image)[:, None] + text[:, None] * table


INPUTS = {"pooled": torch.tensor([[1.0], [2.0]]), "image": torch.tensor([3.0, 4.0])[:, None, None, None]}
NULL = {"pooled": torch.zeros(1, 1), "image": torch.zeros(1, 1, 1, 1)}


def nested(guidance: Guidance | None, t: float = 0.5, label: torch.Tensor | None = LABEL) -> torch.Tensor:
    net = Sum()
    net.condition_shapes = {"pooled": (1,), "image": (1,)}
    conditions = ConditionBatch(INPUTS, NULL)
    return velocity_field(net, ConditionalOT(), label, guidance, conditions=conditions)(t, X)[:, 0]


def test_nested_conditions():
    complete = nested(None)
    assert complete.tolist() == [10 + 1 + 30 + 3 + 10, 20 + 2 + 40 + 8 + 40]
    for scales in ({"image": 1.0, "text": 1.0, "label": 1.0}, {"text": 1.0}):
        torch.testing.assert_close(nested(NestedGuidance(scales)), complete)
    assert torch.equal(nested(NestedGuidance({"text": 9.0}, interval=(0.6, 1.0))), complete)
    no_text = torch.tensor([10.0 + 30, 20.0 + 40])
    torch.testing.assert_close(nested(NestedGuidance({"text": 3.0})), no_text + 3 * (complete - no_text))
    nothing, image = torch.tensor([0.5, 0.5]), torch.tensor([30.5, 40.5])
    both = image + torch.tensor([1 + 3 + 0.5, 2 + 8 + 1])
    result = nested(NestedGuidance({"image": 2.0, "text": 5.0, "label": 0.5}))
    torch.testing.assert_close(result, nothing + 2 * (image - nothing) + 5 * (both - image) + 0.5 * (complete - both))
    torch.testing.assert_close(nested(Guidance(4.0)), nothing + 4 * (complete - nothing))
    assert nested(Guidance(0)).tolist() == [0.5, 0.5] and torch.equal(nested(Guidance(1)), complete)
    assert nested(Guidance(2), label=None).shape == (2,)


def test_conditions_are_dropped_by_row():
    remaining = {"text": torch.tensor([1, 0]), "image": torch.tensor([0, 1])}
    result = ConditionBatch(INPUTS, NULL).drop(remaining)
    assert result["pooled"].flatten().tolist() == [1, 0] and result["image"].flatten().tolist() == [0, 4]


def test_guidance_without_classes_is_refused():
    for net, label in ((Table(), None), (Table(0), LABEL)):
        with pytest.raises(ValueError, match="needs labels and a net with classes"):
            velocity_field(net, Cosine(), label, Guidance())
