import torch

from zoo.flow.data import points
from zoo.flow.evaluation.references import build_quality


def test_points_are_judged_by_their_set() -> None:
    quality = build_quality((2,), "swiss_roll")
    real = points.draw("swiss_roll", 400, 5)
    assert quality(real, None)["chamfer"] < 5 < quality(torch.randn(400, 2), None)["chamfer"]


def test_images_are_judged_by_held_out_digits() -> None:
    quality = build_quality((1, 8, 8), extractor="pixels", val_every=20, cache=None)
    figures = quality(torch.zeros(20, 1, 8, 8), [1] * 20)
    assert figures["frechet"] > 0
