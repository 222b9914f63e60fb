from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.flow.conditions import quiet_task
from zoo.flow import VelocityNet
from zoo.flow.data.images import Framing


class Spy(VelocityNet):
    """Predicts one number everywhere and keeps what it was called with."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.sample_shape, self.num_classes = (1, 2, 2), num_classes
        self.value = nn.Parameter(torch.zeros(()))
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def forward(self, x: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        self.calls.append((x, t, label))
        return self.value.expand_as(x)


def make(count: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    image, noise = torch.randn(2, count, 1, 2, 2, generator=generator)
    label = torch.arange(count) % 3 + 1
    return {"x1": image, "x0": noise, "label": label, "seeds": list(range(count))}


def test_loss_is_the_error_of_the_velocity() -> None:
    task, batch = quiet_task(Spy()), make(8)
    torch.testing.assert_close(task.training_step(batch, 0), (batch["x1"] - batch["x0"]).square().mean())
    x, t, _ = task.net.calls[0]
    at = t[:, None, None, None]
    torch.testing.assert_close(x, at * batch["x1"] + (1 - at) * batch["x0"])


@pytest.mark.parametrize(("prediction", "target"), [("x1", "x1"), ("noise", "x0")])
def test_loss_of_other_predictions(prediction: str, target: str) -> None:
    batch = make(4)
    loss = quiet_task(Spy(), prediction=prediction).training_step(batch, 0)
    torch.testing.assert_close(loss, batch[target].square().mean())


def test_labels_are_dropped_as_often_as_requested_and_the_batch_stays() -> None:
    task, batch = quiet_task(Spy(), label_drop=0.3), make(2000)
    before = batch["label"].clone()
    task.training_step(batch, 0)
    label = task.net.calls[0][2]
    assert abs(float((label == 0).float().mean()) - 0.3) < 0.04
    assert torch.equal(label[label > 0], before[label > 0])
    assert torch.equal(batch["label"], before)


def test_evaluation_is_deterministic_over_a_grid_of_times() -> None:
    task, batch = quiet_task(Spy()).eval(), make(2)
    first, count = task.evaluate(batch, 0, "val")
    assert count == 2 and first["loss"] == task.evaluate(batch, 0, "val")[0]["loss"]
    torch.testing.assert_close(first["loss"], (batch["x1"] - batch["x0"]).square().mean())
    x, t, label = task.net.calls[0]
    torch.testing.assert_close(t, ((torch.arange(10) + 0.5) / 10).repeat(2))
    at, x1, x0 = t[:, None, None, None], *(batch[name].repeat_interleave(10, 0) for name in ("x1", "x0"))
    torch.testing.assert_close(x, at * x1 + (1 - at) * x0)
    assert label.tolist() == [1] * 10 + [2] * 10


def test_times_of_half_precision_are_not_rounded() -> None:
    task, batch = quiet_task(Spy()).bfloat16(), make(512)
    task.training_step({**batch, "x1": batch["x1"].bfloat16(), "x0": batch["x0"].bfloat16()}, 0)
    x, t, _ = task.net.calls[0]
    assert (x.dtype, t.dtype) == (torch.bfloat16, torch.float32) and len(t.unique()) == 512 and t.max() < 1


def test_what_contradicts_itself_is_named() -> None:
    with pytest.raises(ValueError, match="num_classes is 0"):
        quiet_task(Spy(0))
    task = quiet_task(Spy())
    for classes, message in ((["a", "b"], r"2 classes \(a, b\): set .* to 2"), ([], "no classes: set .* to 0")):
        task._trainer = SimpleNamespace(datamodule=SimpleNamespace(classes=classes))
        with pytest.raises(ValueError, match=message):
            task.setup("fit")
    task.latents, task._trainer = torch.nn.Identity(), SimpleNamespace(precision="bf16-true")
    with pytest.raises(ValueError, match="to bf16-mixed"):
        task.setup("fit")


def test_inference_knows_the_classes_of_the_data_by_name_and_how_they_read_images() -> None:
    names, task, loaded = ["cat", "dog", "wild"], quiet_task(Spy()), quiet_task(Spy())
    named, unlabelled = quiet_task(Spy(), classes=["a", "b", "c"]), quiet_task(Spy(0), label_drop=0.0)
    for each in (task, named, unlabelled):
        each.specs = {"options": {"classes": None}}
        data = SimpleNamespace(classes=names, framing=Framing(2, 1, "crop", (0, 0, 9)))
        each._trainer = SimpleNamespace(datamodule=data, strategy=None)
        each.setup("fit")
    loaded.on_load_checkpoint({"zoo": task.specs})
    for each, classes in ((task, names), (loaded, names), (named, ["a", "b", "c"]), (unlabelled, None)):
        model = each.inference()
        assert (model.classes, model.resize, model.background) == (classes, "crop", (0, 0, 9))
