from __future__ import annotations

import pytest
import torch

from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.generator import Generator

ODD = {
    "in_channels": 4,
    "initial_channels": 8,
    "upsample_rates": (2, 5, 3),
    "upsample_kernel_sizes": (4, 10, 4),
    "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1, 3),),
}
HOP = 30


@pytest.mark.parametrize("output_padding", [0, 1])
def test_whole_frames_and_exact_receptive_field(output_padding):
    torch.manual_seed(0)
    generator = Generator(**ODD, output_padding=output_padding).double()
    x = torch.randn(1, 4, 41, dtype=torch.float64, requires_grad=True)
    wave = generator(x)
    assert wave.shape == (1, 1, 41 * HOP)
    wave[0, 0, 20 * HOP : 21 * HOP].abs().sum().backward()
    touched = x.grad[0].abs().sum(0).nonzero().flatten()
    assert max(20 - int(touched[0]), int(touched[-1]) - 20) == generator.receptive_frames


@pytest.mark.parametrize("net", [Generator, BigVGAN])
@pytest.mark.parametrize("output_padding", [0, 1])
def test_windows_with_context_join_without_seams(net, output_padding):
    torch.manual_seed(0)
    generator = net(**ODD, output_padding=output_padding).double()
    context = generator.receptive_frames
    x = torch.randn(1, 4, 100, dtype=torch.float64)
    with torch.no_grad():
        whole = generator(x)
        middle = generator(x[..., 50 - context : 55 + context])[..., context * HOP : (context + 5) * HOP]
        end = generator(x[..., 55 - context :])[..., context * HOP :]
    torch.testing.assert_close(middle, whole[..., 50 * HOP : 55 * HOP], atol=1e-12, rtol=0)
    torch.testing.assert_close(end, whole[..., 55 * HOP :], atol=1e-12, rtol=0)


def test_variants_share_weights_and_differ_in_samples():
    torch.manual_seed(0)
    plain = Generator(**ODD, output_padding=0)
    others = [Generator(**ODD, output_padding=1), Generator(**ODD, output_padding=0, last_slope=0.1)]
    x = torch.randn(2, 4, 9)
    for other in others:
        other.load_state_dict(plain.state_dict())
        assert not torch.allclose(plain(x), other(x), atol=1e-5)


def test_even_stages_do_not_change():
    even = ODD | {"upsample_kernel_sizes": (4, 9, 5)}
    torch.manual_seed(0)
    usual, allowed = Generator(**even), Generator(**even, output_padding=1)
    allowed.load_state_dict(usual.state_dict())
    x = torch.randn(1, 4, 6)
    assert torch.equal(usual(x), allowed(x))
    assert usual.receptive_frames == allowed.receptive_frames


def test_odd_stages_are_refused_unless_asked_for():
    with pytest.raises(ValueError, match=r"kernel 10 with rate 5.*set output_padding"):
        Generator(**ODD)
    with pytest.raises(ValueError, match="output_padding is one of None, 0, 1, not 2"):
        Generator(**ODD, output_padding=2)
