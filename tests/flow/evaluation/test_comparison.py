import math

import pytest
import torch
from torch import nn

from zoo.flow.evaluation.comparison import Comparison, nearest_distances, spread, spread_ratio
from zoo.flow.evaluation.features import ClassifierFeatures, PixelFeatures
from zoo.flow.evaluation.metrics import frechet_distance
from zoo.flow.evaluation.samples import quantise_samples


class Bright(ClassifierFeatures):
    """Label 2 where the mean is above 0."""

    def __init__(self):
        super().__init__()
        self.dims, self.num_classes = 1, 2
        self.sign = nn.Parameter(torch.tensor([[-1.0, 1.0]]))

    def forward(self, images):
        return images.flatten(1).mean(dim=1, keepdim=True)

    def logits(self, features):
        return features @ self.sign


LABELS = [1, 2] * 30


def images(seed, labels=LABELS, contrast=0.2):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor(labels).reshape(-1, 1, 1, 1) - 1.5
    return centres + contrast * torch.randn(len(labels), 1, 2, 2, generator=generator)


def test_frechet_is_that_of_the_rounded_images():
    fake, real = images(1), images(0)
    result = Comparison(quantise_samples(real), PixelFeatures(4))(fake, None)
    rounded = [((x.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1 for x in (real, fake)]
    assert result["frechet"] == pytest.approx(frechet_distance(*(x.flatten(1) for x in rounded)), rel=1e-5)
    white = torch.ones(4, 1, 2, 2)
    assert Comparison(quantise_samples(white), PixelFeatures(4))(3 * white, None)["frechet"] == 0


def test_real_images_are_near_and_copies_collapse_and_wrong_labels_show():
    comparison = Comparison(quantise_samples(images(0), LABELS), Bright(), quantise_samples(images(2)))
    real = comparison(images(1), LABELS)
    assert real["frechet"] < 0.01 and real["accuracy"] == 1
    assert real["std_ratio"] == pytest.approx(1, abs=0.3) and real["nearest_ratio"] == pytest.approx(1, abs=0.3)
    copied = comparison(images(2), LABELS)
    assert copied["nearest"] == 0 and copied["nearest_ratio"] == 0
    means = comparison(images(1, contrast=0.0), LABELS)
    assert means["std_ratio"] == pytest.approx(0, abs=1e-6) and means["accuracy"] == 1
    assert comparison(images(1), [3 - label for label in LABELS])["accuracy"] == 0


def test_spread_ratio_of_scaled_and_collapsed_samples():
    by_hand = spread(torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]]), [1, 1, 2])
    assert by_hand == {1: pytest.approx(math.sqrt(2))}
    torch.manual_seed(0)
    real, labels = torch.randn(40, 3), [1, 2] * 20
    shifted = 0.5 * real + 10 * torch.tensor(labels)[:, None]
    assert spread_ratio(real, labels, shifted, labels) == pytest.approx(0.5, rel=1e-5)
    assert spread_ratio(real, labels, torch.ones(4, 3), [1, 1, 2, 2]) == 0
    assert math.isnan(spread_ratio(real, labels, real, [3] * 40))


def test_nearest_distances_are_exact_for_copies_and_any_chunk(monkeypatch):
    torch.manual_seed(0)
    others = torch.randn(30, 5) + 1000
    points = torch.cat([others[[7, 3]], others[[4]] + torch.tensor([0.3, 0.4, 0, 0, 0])])
    expected = [0.0, 0.0, pytest.approx(0.5, rel=1e-3)]
    assert nearest_distances(points, others).tolist() == expected
    monkeypatch.setattr("zoo.flow.evaluation.comparison._PAIRS", 30)
    assert nearest_distances(points, others).tolist() == expected
