import numpy as np
import pytest
import torch

from zoo.audio.analysis.mel import LogMel
from zoo.audio.io import files
from zoo.hifigan import inference
from zoo.hifigan.inference import Vocoder
from zoo.hifigan.nets.conditioners import ConformerConditioner, PrenetConditioner
from zoo.hifigan.nets.generator import Generator

SIZES = {
    "in_channels": 8, "initial_channels": 8, "upsample_rates": (4, 4), "upsample_kernel_sizes": (8, 8),
    "resblock_kernel_sizes": (3, 5), "resblock_dilation_sizes": ((1, 3), (1, 3)),
}  # fmt: skip


def build(**changes) -> Vocoder:
    torch.manual_seed(0)
    mel = LogMel(sample_rate=8000, n_fft=64, hop_length=16, win_length=64, n_mels=8, f_min=0.0, f_max=4000.0)
    return Vocoder(Generator(**(SIZES | changes)), mel).eval()


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(inference, "CHUNK_FRAMES", 5)


def noise(*shape) -> np.ndarray:
    return np.random.default_rng(0).uniform(-0.5, 0.5, shape).astype(np.float32)


@pytest.mark.parametrize("frames", [1, 20, 31, 32, 33, 200])
@pytest.mark.parametrize("padding_mode", ["zeros", "replicate"])
def test_chunks_equal_the_whole(small_chunks, frames, padding_mode):
    vocoder = build(padding_mode=padding_mode)
    mel = noise(8, frames)
    with torch.no_grad():
        expected = vocoder.generator(torch.from_numpy(mel)[None])[0, 0].numpy()
    np.testing.assert_allclose(vocoder.from_mel(mel), expected, atol=1e-6)
    streamed = np.concatenate(list(vocoder.stream(np.array_split(mel, 7, axis=1))))
    np.testing.assert_allclose(streamed, expected, atol=1e-6)


@pytest.mark.parametrize("frames", [6, 40, 200])
def test_audio_chunks_equal_the_whole(small_chunks, frames):
    vocoder = build()
    audio = noise(2, 16 * frames)
    with torch.no_grad():
        expected = vocoder.generator(vocoder.mel(torch.from_numpy(audio)))[:, 0].numpy()
    np.testing.assert_allclose(vocoder(audio, 8000), expected, atol=1e-6)


def test_a_conditioner_without_whole_samples_per_frame_loses_none(small_chunks):
    mel = noise(8, 1000)
    vocoder = build(conditioner=PrenetConditioner(8, 8, layers=1, heads=2, kernel_size=3))
    with torch.no_grad():
        expected = vocoder.generator(torch.from_numpy(mel)[None])[0, 0].numpy()
    np.testing.assert_allclose(vocoder.from_mel(mel), expected, atol=1e-6)


def test_global_conditioner_refuses_to_stream(small_chunks):
    mel = noise(8, 80)
    attention = build(conditioner=ConformerConditioner(8, 8, dim=8, heads=2, ffn_dim=8, kernel_size=3))
    with torch.no_grad():
        expected = attention.generator(torch.from_numpy(mel)[None])[0, 0].numpy()
    np.testing.assert_allclose(attention.from_mel(mel), expected, atol=1e-6)
    with pytest.raises(ValueError, match="ConformerConditioner"):
        list(attention.stream([mel]))


def test_features_alone_need_no_front_end(tmp_path, small_chunks):
    vocoder = Vocoder(build().generator, sample_rate=8000)
    mels = noise(2, 8, 30)
    result = vocoder.from_mel(mels)
    np.testing.assert_allclose(result, build().from_mel(mels), atol=1e-6)
    np.save(tmp_path / "mel.npy", mels[1])
    facts = vocoder.process_file(tmp_path / "mel.npy", tmp_path / "out.wav")
    assert facts["audio_seconds"] == 30 * 16 / 8000
    np.testing.assert_allclose(files.read(tmp_path / "out.wav")[0][0], result[1], atol=1 / 32768)
    np.save(tmp_path / "wide.npy", noise(9, 20))
    for match, refuse in (
        ("takes features, not audio", lambda: vocoder(noise(100), 8000)),
        ("'n_mels': 4", lambda: build(in_channels=4)),
        (
            r"expected a mel \(8, F\), found \(9, 20\)",
            lambda: build().process_file(tmp_path / "wide.npy", tmp_path / "wide.wav"),
        ),
    ):
        with pytest.raises(ValueError, match=match):
            refuse()
    assert not (tmp_path / "wide.wav").exists()
