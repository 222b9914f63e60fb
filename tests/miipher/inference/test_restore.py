from __future__ import annotations

import numpy as np
import pytest

from tests.audio.analysis.test_loudness import loudness
from tests.audio.signals import noise
from tests.miipher.parts import backbone, cleaner
from tests.miipher.stand_ins import LocalEncoder, restorer, vocoder
from zoo.audio.io import files
from zoo.miipher.inference.features import FeatureExtractor
from zoo.miipher.inference.restorer import Restorer
from zoo.miipher.options import RestoreOptions

SHORT = {"chunk_seconds": 1.0, "overlap_seconds": 0.4}
FULL = {"chunk_seconds": 1000.0, "overlap_seconds": 0.4}


@pytest.mark.parametrize("samples", [5000, 16000, 16001, 99999])
@pytest.mark.parametrize("loudness", ["keep", "input"])
def test_chunks_equal_the_whole(samples, loudness):
    audio = noise(2, samples)
    chunked, complete = (restorer(**cut, loudness=loudness)(audio, 16000) for cut in (SHORT, FULL))
    assert np.abs(complete).max() > 0.01
    np.testing.assert_allclose(chunked, complete, atol=1e-5)


def test_each_channel_is_restored_alone_or_all_are_mixed():
    audio = noise(2, 30000)
    model = restorer(**SHORT)
    np.testing.assert_allclose(model(audio, 16000)[1], model(audio[1], 16000), atol=1e-6)
    mixing = restorer(**SHORT, stereo="mix")
    result = mixing(audio, 16000)
    assert result.shape[0] == 1
    np.testing.assert_allclose(result[0], mixing(audio.mean(axis=0), 16000), atol=1e-6)


def test_loudness_follows_the_input_or_is_kept():
    audio = noise(48000, level=0.02)
    assert loudness(restorer()(audio, 16000), 8000) == pytest.approx(loudness(audio, 16000), abs=0.1)
    remaining = restorer(loudness="keep")(audio, 16000)
    gain = restorer()(audio, 16000)[1000] / remaining[1000]
    assert abs(gain - 1) > 0.1
    np.testing.assert_allclose(restorer()(audio, 16000), gain * remaining, atol=1e-5)


def test_the_level_of_the_input_does_not_matter(tmp_path):
    audio = noise(48000, level=0.5)
    expected = restorer(loudness="keep")(audio, 16000)
    np.testing.assert_allclose(restorer(loudness="keep")(audio / 512, 16000), expected, atol=1e-5)
    files.write(tmp_path / "a.wav", audio / 512, 16000, "FLOAT")
    facts = restorer(loudness="keep").process_file(tmp_path / "a.wav", tmp_path / "b.wav")
    assert facts["peak"] == pytest.approx(np.abs(expected).max()) and facts["gain"] == [1.0]
    np.testing.assert_allclose(files.read(tmp_path / "b.wav")[0][0], expected, atol=1e-5)


def test_levels_stay_sane():
    silent = np.stack([noise(48000), np.zeros(48000, np.float32)])
    result = restorer()(silent, 16000)
    assert np.abs(result[0]).max() > 0.05 and not result[1].any()
    loud, peaks = restorer(), []
    loud.encoder.register_forward_pre_hook(lambda net, inputs: peaks.append(float(inputs[0].abs().max())))
    result = np.abs(loud(noise(48000, level=0.9), 16000))
    assert result.max() == pytest.approx(1.0) and np.mean(result > 0.999) < 1e-3  # scaled, not clipped
    assert max(peaks) == pytest.approx(0.95)  # of what the encoder gets
    peaks.clear()
    times = 2 * np.pi * np.arange(48000, dtype=np.float32) / 48000
    loud(0.05 * np.sin(440 * times) + 0.5 * np.sin(15700 * times), 48000)  # above what the encoder gets
    assert max(peaks) == pytest.approx(0.95)
    faint = restorer()
    for parameter in faint.generator.conv_post.parameters():
        parameter.data.mul_(1e-3)
    audio = noise(48000, level=0.2)
    assert loudness(faint(audio, 16000), 8000) < loudness(audio, 16000) - 10  # at most 20 dB are added


def test_real_encoders_are_taken():
    for encoder in (cleaner(), backbone("hubert_preln", normalize=True)):
        model = Restorer(encoder, vocoder(encoder.dim), 8000, RestoreOptions(**SHORT)).eval()
        for samples in (1, 40001):
            result = model(noise(samples), 16000)
            assert result.shape == (max(round(samples / 2), 1),)
            assert np.isfinite(result).all()


def test_what_does_not_fit_is_refused():
    for match, make in (
        ("22050 Hz need 441", lambda: Restorer(LocalEncoder(), vocoder(), 22050)),
        ("at least", lambda: restorer(overlap_seconds=0.1)),
        ("pad: true", lambda: Restorer(backbone(pad=False), vocoder(32), 8000)),
        ("half of the chunk", lambda: restorer(chunk_seconds=3.0)),
    ):
        with pytest.raises(ValueError, match=match):
            make()


def test_features_of_files_are_mapped_frame_after_frame(tmp_path):
    model = FeatureExtractor(LocalEncoder().eval(), **SHORT)
    audio = noise(2, 90001, level=1.0)
    files.write(tmp_path / "in.wav", audio, 22050, "FLOAT")
    facts = model.process_file(tmp_path / "in.wav", tmp_path / "out.npy")
    features = np.load(tmp_path / "out.npy", mmap_mode="r")
    frames = -(-int(np.ceil(90001 * 16000 / 22050)) // 320)
    assert features.dtype == np.float16 and features.shape == (8, frames) and features.flags.f_contiguous
    assert (facts["frames"], facts["dim"], facts["chunks"]) == (frames, 8, 7)
    complete = FeatureExtractor(model.encoder, **FULL)(audio, 22050)
    np.testing.assert_allclose(model(audio, 22050), complete, atol=1e-5)
    np.testing.assert_allclose(features, complete, atol=1e-3)
    assert model(noise(1), 16000).shape == (8, 1)
