from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.audio.signals import noise
from tests.audiosr.task_parts import AUTOENCODER, RATE, VOCODER, denoiser, features
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.audiosr.data.simulate import lowpass
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.audiosr.evaluation.evaluate import low_band_si_sdr
from zoo.audiosr.inference.chunks import clip_mel
from zoo.audiosr.inference.restore import Restorer
from zoo.audiosr.nets.denoiser import UNCONDITIONAL
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.options import RestoreOptions
from zoo.audiosr.samplers import DDIM, DPMSolver

SHORT = {"chunk_seconds": 0.8, "overlap_seconds": 0.32}
FULL = {"chunk_seconds": 1000.0, "overlap_seconds": 0.32}


class LocalAutoencoder(nn.Module):
    """Means of 2 x 2; what it decodes knows nothing but its own latent."""

    factor, latent_channels = 2, 2

    def encode(self, mel: Tensor) -> Tensor:
        mean = nn.functional.avg_pool2d(mel, 2)
        return torch.cat([mean, -mean, 0 * mean, 0 * mean], dim=1)

    def decode(self, z: Tensor) -> Tensor:
        return nn.functional.interpolate(z[:, :1], scale_factor=2)


class LocalNet(nn.Module):
    """A net that sees one latent frame on each side."""

    global_encoder = None

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.unet = SimpleNamespace(factor=2)
        self.conv = nn.Conv2d(4, 2, 3, padding=1)
        self.register_buffer("latent_scale", torch.tensor(0.25))
        self.calls: list[tuple[int, ...]] = []

    def forward(self, x: Tensor, t: Tensor, context: Any = None) -> Tensor:
        self.calls.append(tuple(x.shape))
        return torch.tanh(self.conv(x)) + 0.1 * t[:, None, None, None] / 1000


def restorer(net: Any = None, autoencoder: Any = None, **options: Any) -> Restorer:
    options = {"sampler": DPMSolver(2), "batch_size": 2, "cutoff_hz": 3000.0, "pictures": False, **SHORT, **options}
    nets = (net or LocalNet(), autoencoder or LocalAutoencoder(), FrozenVocoder(config=VOCODER))
    return Restorer(*nets, features(), CosineDiffusion(), restore=RestoreOptions(**options)).eval()


@pytest.mark.parametrize(("samples", "sampler"), [(12_000, DPMSolver(2)), (66_001, DDIM(2, eta=1.0))])
def test_chunks_equal_the_whole(samples, sampler):
    audio = noise(2, samples)
    chunked, full = (restorer(**cut, sampler=sampler)(audio, RATE) for cut in (SHORT, FULL))
    assert np.abs(full).max() > 0.1
    np.testing.assert_allclose(chunked, full, atol=1e-5)


def test_the_low_band_and_the_level_stay():
    speech = SyntheticSpeech(sample_rate=RATE).utterance(0)
    for level in (1.0, 0.003):
        audio = level * np.stack([speech, 0.3 * speech[::-1]])
        audio = np.stack([lowpass(channel, RATE, 3000.0) for channel in audio])
        result = restorer()(audio, RATE)
        for results, required in zip(result, audio, strict=True):
            assert low_band_si_sdr(results, required, RATE, 3000) > 50
            low_level, wanted_level = (np.std(lowpass(each, RATE, 1500.0)) for each in (results, required))
            assert low_level == pytest.approx(wanted_level, rel=1e-3)
            assert np.abs(results - required).max() > 0.01 * level  # and something was generated


def test_channels_of_a_stereo_file_share_the_noise():
    audio = noise(20_000)
    result = restorer()(np.stack([audio, audio]), RATE)
    np.testing.assert_array_equal(result[0], result[1])
    np.testing.assert_allclose(result[0], restorer(batch_size=5)(audio, RATE), atol=1e-6)
    assert np.abs(restorer(seed=1)(audio, RATE) - result[0]).max() > 1e-4
    silent = restorer()(np.stack([audio, 0 * audio]), RATE)
    np.testing.assert_allclose(silent[0], result[0], atol=1e-6)
    assert np.abs(silent[1]).max() < 1e-6


def test_silence_and_full_bands_pass():
    net = LocalNet()
    assert not restorer(net)(np.zeros(5000, np.float32), RATE).any()
    audio = noise(9000)
    for cutoff_hz in (8000.0, None):
        np.testing.assert_allclose(restorer(net, cutoff_hz=cutoff_hz)(audio, RATE), audio, atol=1e-7)
    assert not net.calls


def test_guidance_is_one_call_with_the_scaled_empty_condition():
    net = LocalNet()
    observed: list[Tensor] = []
    net.register_forward_pre_hook(lambda module, inputs: observed.append(inputs[0]))
    audio = noise(5000)
    guided = restorer(net, guidance_scale=3.0, guidance_rescale=0.7)(audio, RATE)
    assert all(shape[0] == 2 for shape in net.calls) and len(net.calls) == 2
    assert torch.unique(observed[0][1, 2:]).tolist() == pytest.approx([0.25 * UNCONDITIONAL])
    plain = restorer(net, guidance_scale=1.0)(audio, RATE)
    assert net.calls[-1][0] == 1 and np.abs(guided - plain).max() > 1e-4


def test_the_cutoff_is_found_and_mp3_residue_ignored(tmp_path):
    speech = np.concatenate([SyntheticSpeech(sample_rate=RATE).utterance(index) for index in range(2)])
    audio = lowpass(speech, RATE, 4000.0)
    files.write(tmp_path / "in.wav", audio, RATE)
    results = restorer(cutoff_hz=None).process_file(tmp_path / "in.wav", tmp_path / "out.wav")
    assert 2000 < results["cutoff_hz"] < 4100 and (results["cutoff"], results["restored"]) == ("estimated", True)
    residue = audio + (noise(len(audio), level=0.01) - lowpass(noise(len(audio), level=0.01), RATE, 5000.0))
    files.write(tmp_path / "mp3.wav", residue, RATE)
    model = restorer(cutoff_hz=None, lowpass_hz=4500.0)
    limited = model.process_file(tmp_path / "mp3.wav", tmp_path / "out.wav")
    assert limited["cutoff_hz"] == pytest.approx(results["cutoff_hz"], rel=0.05)


def test_the_rate_of_the_input_shows_where_its_band_ends():
    model = restorer(cutoff_hz=None)
    result = model(noise(6 * RATE // 2), RATE // 2)
    assert np.abs(np.fft.rfft(result))[len(result) * 5 // 16 :].max() > 1  # above 5 kHz
    net = LocalNet()
    restorer(net, cutoff_hz=None)(noise(6 * RATE), round(0.92 * RATE))
    assert not net.calls
    high = restorer(cutoff_hz=6000.0)(noise(6 * RATE // 2), RATE // 2)  # given, above what the file can hold
    np.testing.assert_array_equal(high, restorer(cutoff_hz=RATE / 4)(noise(6 * RATE // 2), RATE // 2))


def test_the_whole_clip_is_pooled_evenly():
    front = features()
    audio = noise(1, 100_000)
    (exact,) = clip_mel(front, [audio], 100_000, torch.device("cpu"))
    full = front(torch.from_numpy(audio)[:, None])[0]
    torch.testing.assert_close(exact, full, atol=1e-4, rtol=0)
    (pooled,) = clip_mel(front, [audio[:, :60_000], audio[:, 60_000:]], 100_000, torch.device("cpu"), most=100)
    torch.testing.assert_close(pooled[:, :89], full[:, :623].unflatten(1, (89, 7)).mean(2), atol=1e-4, rtol=0)


def test_every_chunk_has_the_context_of_the_clip():
    net = denoiser("residual")
    shapes: list[tuple[int, ...]] = []
    net.global_encoder.register_forward_hook(lambda module, inputs, outputs: shapes.append(tuple(inputs[0].shape)))
    result = restorer(net, FrozenAutoencoder(config=AUTOENCODER))(noise(2, 24_000), RATE)
    assert result.shape == (2, 24_000) and shapes == [(2, 1, 32, 150)]


@pytest.mark.parametrize("seconds", [0.01, 0.6])
def test_an_overlap_that_joins_no_chunks_is_refused(seconds):
    with pytest.raises(ValueError, match=r"overlap_seconds|half of the chunk"):
        restorer(overlap_seconds=seconds)
