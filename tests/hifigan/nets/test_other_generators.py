"""HiFi-GAN, BigVGAN and Vocos behind the vocoder's interface: context, streaming, export, precision, refusals."""

import numpy as np
import pytest
import torch

from zoo.audio.analysis.mel import LogMel
from zoo.hifigan.inference import Vocoder
from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.constant_q import ConstantQ
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.magnitude_vocoders import MagnitudeVocos
from zoo.hifigan.nets.spectral_discriminators import MultiBandDiscriminator
from zoo.hifigan.nets.stochastic import StochasticVocos
from zoo.hifigan.nets.vocos import Vocos
from zoo.runs.onnx_export import write_onnx

GENERATORS = {
    "hifigan": lambda: Generator(6, 8, (4, 2), (8, 4), "1", (3,), ((1, 3),)),
    "bigvgan": lambda: BigVGAN(6, 12, (4, 3), (8, 7), "1", (3, 5), ((1, 3), (2,))),
    "bigvgan_2": lambda: BigVGAN(
        6, 9, (5,), (10,), "2", (7,), ((1, 2, 4),), activation="snake", tanh=True, output_padding=1
    ),
    "vocos": lambda: Vocos(6, 10, 14, 2, 24, 6, "same"),
    "vocos_center": lambda: Vocos(6, 10, 14, 3, 20, 6, "center"),
    "stochastic": lambda: StochasticVocos(LogMel(8000, 64, 16, 64, 6, 0.0, None), 10, 14, 2),
}


@pytest.fixture(params=GENERATORS)
def generator(request):
    torch.manual_seed(int(np.random.default_rng().integers(2**31)))
    print(f"seed {torch.initial_seed()}")
    return GENERATORS[request.param]().eval()


def test_a_frame_depends_on_its_context_and_on_nothing_more(generator):
    hop, reach = generator.hop_length, generator.receptive_frames
    x = torch.randn(1, 6, 2 * reach + 21)
    middle = x.shape[-1] // 2
    changed = x.clone()
    changed[..., middle] += 3.0
    with torch.no_grad():
        moved = (generator(x) - generator(changed)).abs()[0, 0].reshape(-1, hop).amax(1)
    assert moved[: middle - reach].max() <= 1e-6 and moved[middle + reach + 1 :].max() <= 1e-6
    assert moved[middle] > 1e-6


def test_streamed_is_the_whole(generator):
    x = torch.randn(1, 6, 700)
    with torch.inference_mode():
        full = generator(x)[0, 0].numpy()
    steps = np.random.default_rng(0).integers(1, 60, 30).cumsum()
    pieces = np.concatenate(list(Vocoder(generator, None, 8000).stream(np.split(x[0].numpy(), steps[steps < 700], 1))))
    np.testing.assert_allclose(pieces, full, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "bound"),
    [("hifigan", 1e-6), pytest.param("bigvgan", 1e-5, marks=pytest.mark.slow), ("bigvgan_2", 1e-5), ("vocos", 1e-5)],
)
def test_exported_at_three_batches_and_lengths(name, bound, tmp_path):
    net = GENERATORS[name]().eval()
    keys = list(net.state_dict())
    assert write_onnx(Vocoder(net, None, 8000).onnx_graph(), tmp_path / "net.onnx") <= bound
    assert list(net.state_dict()) == keys
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_fused_and_in_half_precision(generator):
    x = torch.randn(2, 6, 30)
    with torch.no_grad():
        expected = generator(x)
        with torch.autocast("cpu", torch.bfloat16):
            results = generator(x).float()
        fused = generator.remove_weight_norm_()(x)
    torch.testing.assert_close(fused, expected, rtol=0, atol=1e-5)
    assert (results - expected).abs().max() <= 0.1 * expected.abs().max()


@pytest.mark.parametrize(
    "net",
    [GENERATORS["vocos"](), GENERATORS["stochastic"](), MagnitudeVocos(6, 32, 2, 64, 10, 14, 1, iterations=1)],
    ids=lambda net: type(net).__name__,
)
def test_a_magnitude_that_overflows_gives_no_nan(net):
    """Its gradient is that of a constant, as behind any clipping; exp() before it would make it 0 * inf."""
    with torch.no_grad():
        next(each for name, each in net.named_parameters() if name.endswith("out.bias"))[::2] = 200.0
    net.train()(torch.randn(2, 6, 20)).square().mean().backward()
    gradients = [each.grad for each in net.parameters() if each.grad is not None]
    assert all(each.isfinite().all() for each in gradients) and any(each.any() for each in gradients)


def test_what_cannot_be_is_refused():
    for make, message in (
        (lambda: ConstantQ(16000, 100, 6, 8), "halved"),
        (lambda: ConstantQ(4000, 256, 8, 8), "above half"),
        (lambda: MultiBandDiscriminator((16,)), "without bins"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_an_untrained_stochastic_vocos_gives_noise_back_as_noise_of_its_level():
    mel = LogMel(16000, 512, 128, 512, 40, 0.0, None)
    net = StochasticVocos(mel, 8, 8, 1).eval()
    with torch.no_grad():
        net.out.bias[: mel.n_fft // 2 + 1] = -20.0  # no deterministic part
        audio = 0.1 * torch.randn(1, 32000, generator=torch.Generator().manual_seed(1))
        results = net(mel(audio))[:, 0]
    levels = [mel(each).mean((0, 2)) for each in (results, audio)]
    assert (levels[0] - levels[1]).std() < 0.2  # the shape of the spectrum; the level is learned
    window = torch.hann_window(2048)
    spectra = [torch.stft(each, 2048, return_complex=True, window=window).abs() for each in (results, audio)]
    spreads = [each[0, 100:900].log().std(1).mean() for each in spectra]  # over time, in each bin
    assert 0.8 < spreads[0] / spreads[1] < 1.2
