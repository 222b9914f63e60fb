from __future__ import annotations

import pytest
import torch

from zoo.training.adversarial import Discriminator, adversarial_loss, discriminator_loss, feature_matching_loss


def verdict(score: float, *maps: float):
    return torch.full((2, 3), score), [torch.full((2, 1, 4), value) for value in maps]


def test_losses_are_means_inside_and_sums_outside():
    real = [verdict(1.0, 1.0, 2.0), verdict(0.5, 3.0)]
    fake = [verdict(0.0, 1.5, 2.0), verdict(0.5, 1.0)]
    assert discriminator_loss(real, fake).item() == pytest.approx(0.0 + 0.0 + 0.25 + 0.25)
    assert adversarial_loss(fake).item() == pytest.approx(1.0 + 0.25)
    assert feature_matching_loss(real, fake).item() == pytest.approx(0.5 + 0.0 + 2.0)


def test_no_gradient_reaches_real_feature_maps():
    real_map = torch.ones(2, 1, 4, requires_grad=True)
    fake_map = torch.zeros(2, 1, 4, requires_grad=True)
    feature_matching_loss([(real_map[..., 0], [real_map])], [(fake_map[..., 0], [fake_map])]).backward()
    assert real_map.grad is None
    torch.testing.assert_close(fake_map.grad, torch.full((2, 1, 4), -1 / 8))


def test_half_precision_scores_are_judged_in_float32():
    scores = torch.full((1, 4096), 300.0, dtype=torch.float16)
    loss = adversarial_loss([(scores, [scores])])
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(299.0**2)


def test_different_numbers_of_verdicts_are_refused():
    with pytest.raises(ValueError, match="zip"):
        discriminator_loss([verdict(1.0)], [])
    with pytest.raises(ValueError, match="zip"):
        feature_matching_loss([verdict(1.0, 1.0)], [verdict(1.0)])


def test_base_class_names_what_is_missing():
    with pytest.raises(NotImplementedError, match="Discriminator defines no forward"):
        Discriminator()(torch.zeros(1, 1, 8))
