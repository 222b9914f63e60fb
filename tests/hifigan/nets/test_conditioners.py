import pytest
import torch

from zoo.hifigan.nets.conditioners import ConformerConditioner, PrenetConditioner


def test_conformer_keeps_the_frames_and_sees_them_all():
    conditioner = ConformerConditioner(6, 4, dim=8, heads=2, ffn_dim=8, kernel_size=3).eval()
    assert conditioner.receptive_frames is None
    x = torch.randn(2, 6, 11, requires_grad=True)
    y = conditioner(x)
    assert y.shape == (2, 4, 11)
    y[0, :, 0].sum().backward()
    assert x.grad[0, :, -1].abs().sum() > 0
    assert x.grad[1].abs().sum() == 0


@pytest.mark.parametrize(("frames", "expected"), [(9, 15), (50, 86), (100, 172)])
def test_prenet_changes_the_frame_rate(frames, expected):
    prenet = PrenetConditioner(8, 5, layers=1, heads=2, kernel_size=3).eval()
    assert prenet(torch.zeros(1, 8, frames)).shape == (1, 5, expected)
