import pytest
import torch

from zoo.hifigan.nets.conditioners import ConformerConditioner, PrenetConditioner
from zoo.hifigan.nets.generator import Generator

V3 = {
    "initial_channels": 256, "upsample_rates": (8, 8, 4), "upsample_kernel_sizes": (16, 16, 8), "resblock": "2",
    "resblock_kernel_sizes": (3, 5, 7), "resblock_dilation_sizes": ((1, 2), (2, 6), (3, 12)),
}  # fmt: skip
BLOCKS = {"resblock_kernel_sizes": (3,), "resblock_dilation_sizes": ((1, 3),)}
SMALL = {"in_channels": 4, "initial_channels": 8, "upsample_rates": (4, 2), "upsample_kernel_sizes": (8, 4), **BLOCKS}
ODD = {**SMALL, "upsample_rates": (2, 5, 3), "upsample_kernel_sizes": (4, 10, 4)}


@pytest.mark.parametrize(
    ("arguments", "hop", "receptive_frames", "parameters", "tensors"),
    [
        ({}, 256, 13, 13_936_130, 234),
        ({"initial_channels": 128}, 256, 13, 928_514, 234),
        (V3, 256, 11, 1_464_322, 69),
        ({"upsample_rates": (8, 5, 4, 3, 2), "upsample_kernel_sizes": (16, 11, 8, 7, 4)}, 960, 14, None, 291),
    ],
)
def test_published_sizes(arguments, hop, receptive_frames, parameters, tensors):
    with torch.device("meta"):
        generator = Generator(**arguments)
        assert generator(torch.zeros(2, 80, 5)).shape == (2, 1, 5 * hop)
    assert generator.hop_length == hop
    assert generator.receptive_frames == receptive_frames
    assert len(generator.state_dict()) == tensors
    if parameters is not None:
        assert sum(p.numel() for p in generator.parameters()) == parameters


@pytest.mark.parametrize(
    "arguments",
    [{**SMALL, "resblock": kind} for kind in "12"] + [{**ODD, "output_padding": padding} for padding in (0, 1)],
)
def test_whole_frames_and_exact_receptive_field(arguments):
    torch.manual_seed(0)
    generator = Generator(**arguments).double()
    hop = generator.hop_length
    x = torch.randn(1, 4, 41, dtype=torch.float64, requires_grad=True)
    wave = generator(x)
    assert wave.shape == (1, 1, 41 * hop)
    wave[0, 0, 20 * hop : 21 * hop].abs().sum().backward()
    touched = x.grad[0].abs().sum(0).nonzero().flatten()
    assert max(20 - int(touched[0]), int(touched[-1]) - 20) == generator.receptive_frames


@pytest.mark.parametrize(("frames", "expected"), [(9, 15), (50, 86), (100, 172)])
def test_prenet_changes_the_frame_rate(frames, expected):
    prenet = PrenetConditioner(8, 5, layers=1, heads=2, kernel_size=3).eval()
    assert prenet(torch.zeros(1, 8, frames)).shape == (1, 5, expected)


def test_conditioner_has_no_weight_norm_and_must_fit():
    conformer = ConformerConditioner(6, 4, dim=8, heads=2, ffn_dim=8, kernel_size=3)
    Generator(**(SMALL | {"in_channels": 6}), conditioner=conformer)
    assert not any("parametrizations" in name for name in conformer.state_dict())
    with pytest.raises(ValueError, match="conditioner takes 6"):
        Generator(**SMALL, conditioner=conformer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"upsample_rates": (5, 2), "upsample_kernel_sizes": (8, 4)}, "kernel 8 with rate 5"),
        ({"upsample_rates": (4, 2, 2)}, "same length, not 3 and 2"),
        ({"resblock_kernel_sizes": (4,)}, "must be odd"),
        ({"initial_channels": 3}, "2 halvings"),
        (ODD, r"kernel 10 with rate 5.*set output_padding"),
    ],
)
def test_wrong_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Generator(**(SMALL | changes))
