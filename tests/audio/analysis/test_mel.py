import math

import pytest
import torch

from tests.conftest import reference_folder
from tests.numeric import assert_agrees
from zoo.audio.analysis.griffin_lim import griffin_lim
from zoo.audio.analysis.mel import LogMel
from zoo.audio.corpora.synthetic import SyntheticSpeech


@pytest.mark.shared
def test_parity_with_the_original_front_end():
    golden = torch.load(reference_folder("hifigan") / "mel_frontend.pt", weights_only=True)
    raw = golden["wav_int16"].float()[None] / 32768
    waves = {"raw": raw, "norm095": golden["norm095_wav"], "silence": torch.zeros(1, 4096)}
    for key, expected in golden["mels"].items():
        wave, band = key.split("_")
        mel = LogMel(f_max=None if band == "fmaxNone" else 8000.0)
        error = (assert_agrees(LogMel.__call__, mel, waves[wave]) - expected).abs()
        # The golden file itself lies up to 2.8e-4 from the float64 result, in two or three of 6,880 near-silent cells
        # where the float32 rounding of its processor's FFT shows; such cells get the wider limit.
        assert error[expected > -9].numel() == 0 or error[expected > -9].max() <= 1e-4, key
        assert error.mean() <= 1e-5 and error.max() <= 5e-4 and (error > 1e-4).float().mean() <= 1e-3, key
        assert (mel.mel_basis - golden["mel_basis"][band]).abs().max() <= 1e-6, key


@pytest.mark.parametrize(("samples", "frames"), [(8192, 32), (22050, 86), (256 * 7, 7), (385, 1)])
def test_frames_are_whole_hops(samples, frames):
    assert LogMel()(torch.randn(2, samples)).shape == (2, 80, frames)


@pytest.mark.parametrize("samples", [441 * 3, 441 * 100, 441 * 100 + 440])
def test_frames_of_an_odd_hop_are_whole_hops(samples):
    mel = LogMel(hop_length=441)
    assert mel(torch.randn(1, samples)).shape[-1] == mel.frames(samples) == samples // 441


def test_silence_and_a_tone_in_its_band():
    mel = LogMel(f_max=None)
    assert torch.allclose(mel(torch.zeros(1, 8192)), torch.tensor(math.log(1e-5)), atol=1e-3)
    bin_hz = 22050 / 1024
    tone = torch.sin(2 * torch.pi * 100 * bin_hz * torch.arange(8192) / 22050)
    middle = mel(tone[None])[0, :, 16]
    # A tone on a bin has a Hann-windowed magnitude of n_fft / 4 there and half of it in the two neighbours.
    expected = 256 * (mel.mel_basis[:, 100] + 0.5 * mel.mel_basis[:, 99] + 0.5 * mel.mel_basis[:, 101])
    strong = expected > 0.1
    assert strong.any() and torch.allclose(middle.exp()[strong], expected[strong], rtol=1e-3)


def test_float32_under_autocast_and_no_state():
    mel, wave = LogMel(), torch.randn(1, 8192)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mel(wave), mel.float()(wave))
        assert mel(wave.bfloat16()).dtype == torch.float32
    assert mel.state_dict() == {}
    wave.requires_grad_()
    mel(wave).sum().backward()
    assert wave.grad.isfinite().all()


def test_griffin_lim_restores_features_and_is_seeded():
    mel = LogMel(f_max=None)
    speech = torch.from_numpy(SyntheticSpeech(seconds=(1.0, 1.0)).utterance(1))[None]
    target = mel(speech)
    audio = griffin_lim(target, mel, iterations=30, seed=3)
    assert audio.shape == (1, target.shape[-1] * 256) and audio.isfinite().all()
    assert (mel(audio) - target).abs().mean() < 0.35
    assert torch.equal(audio, griffin_lim(target, mel, iterations=30, seed=3))
    with pytest.raises(ValueError, match="expected log-mels"):
        griffin_lim(target[0], mel)
