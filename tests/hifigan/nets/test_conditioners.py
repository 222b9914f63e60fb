import pytest
import torch

from zoo.hifigan.nets.conditioners import PrenetConditioner


@pytest.mark.parametrize(("frames", "expected"), [(9, 15), (50, 86), (100, 172)])
def test_prenet_changes_the_frame_rate(frames, expected):
    prenet = PrenetConditioner(8, 5, layers=1, heads=2, kernel_size=3).eval()
    assert prenet(torch.zeros(1, 8, frames)).shape == (1, 5, expected)
