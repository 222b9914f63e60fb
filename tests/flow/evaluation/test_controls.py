from __future__ import annotations

import pytest
import torch

from zoo.flow.evaluation.controls import control_sets, gaussian, matching_labels


def images(count=40, size=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 1, size, size, generator=generator)


LABELS = [1, 2, 2, 2] * 10


def test_matching_labels_keep_the_shares():
    assert matching_labels([1, 2, 2, 2], 8) == [1, 1, 2, 2, 2, 2, 2, 2]
    assert matching_labels([3, 1], 3) in ([1, 1, 3], [1, 3, 3])
    assert len(matching_labels([1, 1, 1, 2, 2, 3], 1000)) == 1000
    with pytest.raises(ValueError, match="found 0 and 1 labels"):
        matching_labels([1], 0)


def test_the_gaussian_has_mean_and_covariance_of_the_images():
    source = images(30)
    sampled = gaussian(source, 200_000, torch.Generator().manual_seed(1)).flatten(1).double()
    flat = source.flatten(1).double()
    assert torch.allclose(sampled.mean(dim=0), flat.mean(dim=0), atol=0.02)
    assert torch.allclose(torch.cov(sampled.T), torch.cov(flat.T), atol=0.03)
    with pytest.raises(ValueError, match="at least 2 images of a class, found 1"):
        gaussian(source[:1], 3, torch.Generator())


def test_every_control_has_the_wanted_labels_and_follows_the_seed():
    source, expected = images(), [2, 1, 2]
    made = control_sets(source, LABELS, expected, seed=3)
    assert list(made) == ["train", "copier", "gaussian", "class means"]
    assert torch.equal(made["train"][0], source) and made["train"][1] == LABELS
    for name in ("copier", "gaussian", "class means"):
        assert made[name][0].shape == (3, 1, 2, 2) and made[name][1] == [1, 2, 2]
    means = made["class means"][0]
    assert torch.allclose(means[0], source[[label == 1 for label in LABELS]].mean(dim=0))
    assert torch.equal(means[1], means[2])
    again, other = (control_sets(source, LABELS, expected, seed)["gaussian"][0] for seed in (3, 4))
    assert torch.equal(again, made["gaussian"][0]) and not torch.equal(other, again)
