from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from zoo.flow import ConditionalOT, Guidance, Sampler, Solver, ToyNet, VelocityNet
from zoo.flow.process.sampling import interpolate, invert, noise, straightness


class Level(VelocityNet):
    """The exact field of a point mass: images of one grey level per class, 0.25 times its label."""

    sample_shape, num_classes = (1, 2, 3), 4

    def forward(self, x: Tensor, t: float, label: Tensor | None = None) -> Tensor:
        level = 0.25 * (label if label is not None else torch.zeros(len(x)))
        return (level.reshape(-1, 1, 1, 1) - x) / (1 - t)


def build(net: VelocityNet | None = None, **kwargs: object) -> Sampler:
    return Sampler(net or Level(), ConditionalOT(0.0), Solver("euler", 5), **kwargs)


def test_samples_their_labels() -> None:
    samples = build().sample([1, 2, 4], [5, 6, 7])
    torch.testing.assert_close(samples[:, 0, 0, 0], torch.tensor([0.25, 0.5, 1.0]))
    guided = build(guidance=Guidance(2.0)).sample([1, 2], [5, 6])
    torch.testing.assert_close(guided[:, 0, 0, 0], torch.tensor([0.5, 1.0]))


def test_a_sample_does_not_depend_on_its_batch() -> None:
    model = build(ToyNet()).eval()
    together = model.sample(None, list(range(7)))
    torch.testing.assert_close(build(model.net, chunk=3).sample(None, list(range(7))), together)
    torch.testing.assert_close(model.sample(None, [4])[0], together[4])
    assert not torch.equal(together, noise(range(7), (2,)))
    assert not together.is_inference()  # may serve a training


def test_trajectory_leads_from_the_noise_to_the_sample() -> None:
    model = build(chunk=2)
    states = model.trajectory([1, 2, 4], [5, 6, 7])
    assert states.shape == (6, 3, 1, 2, 3)
    assert torch.equal(states[0], model.noise([5, 6, 7]))
    assert torch.equal(states[-1], model.sample([1, 2, 4], [5, 6, 7]))
    # straight lines at constant speed
    torch.testing.assert_close(states[2], states[0] + 0.4 * (states[-1] - states[0]))


def test_solutions_show_their_evaluations() -> None:
    model = build(guidance=Guidance(2.0), chunk=2)
    result = list(model.solutions([1, 2, 3], [1, 2, 3], record=1))
    assert [(len(each.x), each.nfe, len(each.trajectory)) for each in result] == [(2, 5, 6), (1, 5, 0)]
    other = model.using(Solver("midpoint", 2), None)
    assert [each.nfe for each in other.solutions([1, 2, 3], [1, 2, 3])] == [4, 4]


def test_field_serves_what_stands_around_sampling() -> None:
    model = build(ToyNet(), chunk=8).eval()
    model.solver = Solver("rk4", 20)
    x1 = model.sample(None, [1, 2])
    torch.testing.assert_close(invert(model.field(), x1, model.solver).x, model.noise([1, 2]), atol=1e-4, rtol=0)
    line = interpolate(model.field(), x1[0], x1[1], torch.linspace(0, 1, 3), model.solver)
    torch.testing.assert_close(line[::2], x1, atol=1e-4, rtol=0)
    images = build()
    assert straightness(images.field([2]), images.noise([1, 2, 3]), Solver("euler", 3)).shape == (3,)


def test_file_becomes_a_picture(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"label": 4, "seed": 1}\n\n{"label": 0, "seed": 2}\n{"label": 4, "seed": 3}\n')
    assert build().process_file(tmp_path / "in.jsonl", tmp_path / "out.png") == {"images": 3, "nfe": 5}
    pixels = np.array(Image.open(tmp_path / "out.png"))
    assert pixels.shape == (160, 240)  # 2 x 2 images of 2 x 3 pixels, enlarged
    assert pixels[::80, ::120].tolist() == [[255, 128], [255, 0]]
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.png"}


def test_example_is_read(tmp_path: Path) -> None:
    points = build(ToyNet()).eval()
    source = points.write_example(tmp_path / "deep" / "in")
    assert points.process_file(source, tmp_path / "out.png") == {"points": 4, "nfe": 5}
    assert np.array_equal(np.load(tmp_path / "out.npy"), points.sample(None, [0, 1, 2, 3]).numpy())
    assert np.array_equal(points(None, [0, 1]), np.load(tmp_path / "out.npy")[:2])


def test_bad_requests_are_named(tmp_path: Path) -> None:
    for text, message in (
        ("", "asks for nothing"),
        ("no json", "line 1: no JSON"),
        ('{"label": 1, "seed": 1, "cuont": 5}', "line 1: expected whole numbers"),
        ('{"label": 9, "seed": 1}', "between 0 and 4, found 9"),
        (f'{{"label": 1, "seed": {2**64}}}', f"line 1: seed .* found {2**64}"),
    ):
        (tmp_path / "in.jsonl").write_text(text)
        with pytest.raises(ValueError, match=message):
            build(classes=list("abcd")).process_file(tmp_path / "in.jsonl", tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()


def test_wrong_calls_are_named() -> None:
    diverging = build(guidance=Guidance(float("nan")), chunk=2)
    for call, message in (
        (lambda: build().sample(None, [1]), "labels are needed"),
        (lambda: build().sample([1, 2], [1]), "2 labels and 1 seeds"),
        (lambda: diverging.sample([1, 1, 1], [6, 7, 8]), "seed 6 is not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
