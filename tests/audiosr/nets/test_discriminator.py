"""Patch discriminator of mel images."""

import pytest
import torch

from zoo.audiosr.nets.discriminator import PatchDiscriminator


def test_scores_see_patches_of_the_published_size() -> None:
    net = PatchDiscriminator(channels=2, layers=3)
    mel = torch.randn(1, 1, 160, 96, requires_grad=True)
    ((scores, maps),) = net(mel)
    assert scores.shape == (1, 18 * 10) and len(maps) == 5 and maps[-1].shape == (1, 1, 18, 10)
    maps[-1][0, 0, 9, 5].backward()
    assert mel.grad is not None
    seen = mel.grad[0, 0].abs() > 0
    assert int(seen.any(1).sum()) == int(seen.any(0).sum()) == 70


def test_scores_do_not_depend_on_the_batch() -> None:
    net = PatchDiscriminator(channels=2, layers=2)
    mel = torch.randn(3, 1, 32, 32)
    torch.testing.assert_close(net(mel)[0][0][:1], net(mel[:1])[0][0])


def test_range() -> None:
    with pytest.raises(ValueError, match="layers is at least 1, not 0"):
        PatchDiscriminator(4, 0)
