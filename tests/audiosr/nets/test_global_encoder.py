from __future__ import annotations

import pytest
import torch

from tests.audiosr.nets.sizes import GLOBAL_ENCODERS
from zoo.audiosr.nets.global_encoder import GlobalEncoder

TINY = {"n_mels": 32, "channels": 8, "heads": 2, "layers": 1, "context_channels": 6, "positions": 5}


def count(net: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(("version", "rest", "projection"), [("v1", 569_888, 262_272), ("v2", 2_708_768, 1_048_832)])
def test_parameters_of_the_originals(version, rest, projection):
    with torch.device("meta"):
        net = GlobalEncoder(**GLOBAL_ENCODERS[version])
    assert count(net._adaptive_proj) == projection
    assert count(net) == rest + projection


def test_a_clip_longer_than_the_positions_stretches_them():
    net = GlobalEncoder(**TINY).eval()
    context, sequence = net(torch.randn(2, 1, 32, 9))
    assert (context.shape, sequence.shape) == ((2, 6), (2, 9, 6))
    ramp = torch.arange(5.0)[None, :, None].expand(1, 5, 8)
    net.pos_encoding.data = ramp.clone()
    torch.testing.assert_close(net._positions(3), ramp[:, :3])
    stretched = net._positions(10)[0, :, 0]
    torch.testing.assert_close(stretched, ((torch.arange(10) + 0.5) / 2 - 0.5).clamp(0, 4))


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="24"):
        GlobalEncoder(n_mels=24)
    with pytest.raises(ValueError, match="9 bins"):
        GlobalEncoder(**TINY)(torch.randn(1, 1, 9, 32))
