import pytest
import torch

from zoo.flow.data import points
from zoo.flow.evaluation.references import build_quality
from zoo.flow.inference.sampler import Sampler
from zoo.flow.nets.mlp import ToyNet
from zoo.flow.nets.unet import UNet
from zoo.flow.process.paths import ConditionalOT


def test_points_are_judged_by_their_set() -> None:
    quality = build_quality(Sampler(ToyNet(widths=(4,)), ConditionalOT()), "swiss_roll")
    real = points.draw("swiss_roll", 400, 5)
    assert quality(real, None)["chamfer"] < 5 < quality(torch.randn(400, 2), None)["chamfer"]


def test_images_are_judged_by_held_out_digits() -> None:
    net = UNet(image_resolution=8, in_channels=1, channels=8, channel_mult=[1], attention_levels=[], res_blocks=1)
    quality = build_quality(Sampler(net, ConditionalOT()), extractor="pixels", val_every=20, cache=None)
    figures = quality(torch.zeros(20, 1, 8, 8), [1] * 20)
    assert figures["frechet"] > 0


def test_what_does_not_fit_is_named() -> None:
    toy = Sampler(ToyNet(dim=3, widths=(4,)), ConditionalOT())
    with pytest.raises(ValueError, match="no points of moons"):
        build_quality(toy, "moons")
    with pytest.raises(ValueError, match="name the set"):
        build_quality(toy)
