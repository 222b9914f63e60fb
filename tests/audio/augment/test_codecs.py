import stat
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.audio.augment import codecs
from zoo.audio.corpora.synthetic import SyntheticSpeech

IN_LIBSNDFILE = ("mp3", "vorbis", "opus", "alaw", "mulaw", "gsm")
LOWEST = {"mp3": 8, "vorbis": 0, "opus": 8, "alaw": 8000, "mulaw": 8000, "gsm": None}


def lag_and_likeness(signal, reference):
    size = len(signal) + len(reference)
    correlation = np.fft.irfft(np.fft.rfft(signal, size) * np.conj(np.fft.rfft(reference, size)), size)
    best = int(np.argmax(correlation))
    lag = best if best < size // 2 else best - size
    return lag, correlation[best] / np.linalg.norm(signal) / np.linalg.norm(reference)


@pytest.mark.parametrize("rate", [16000, 22050])
@pytest.mark.parametrize("codec", IN_LIBSNDFILE)
@pytest.mark.parametrize("lowest", [True, False])
def test_aligned_of_equal_length_and_deterministic(codec, rate, lowest):
    original = SyntheticSpeech(sample_rate=rate).utterance(1)[: rate // 2]
    setting = LOWEST[codec] if lowest else None
    coded = codecs.encode_decode(original, rate, codec, setting)
    lag, likeness = lag_and_likeness(coded, original)
    assert coded.shape == original.shape and coded.dtype == np.float32
    assert abs(lag) <= (rate // 8000 if codec in ("opus", "gsm") else 0)  # speech codecs bend phases by a fraction
    assert likeness > 0.75
    assert not np.array_equal(coded, original)
    np.testing.assert_array_equal(coded, codecs.encode_decode(original, rate, codec, setting))


@settings(max_examples=30, deadline=None)
@given(
    samples=st.integers(1, 700),
    rate=st.sampled_from([7000, 8000, 16000, 22050, 37801, 44100, 96000]),
    codec=st.sampled_from(IN_LIBSNDFILE),
    level=st.sampled_from([0.0, 1e-6, 0.5, 30.0]),
)
def test_any_length_rate_and_level(samples, rate, codec, level):
    audio = level * np.random.default_rng(samples).uniform(-1, 1, samples).astype(np.float32)
    coded = codecs.encode_decode(audio, rate, codec)
    assert coded.shape == audio.shape and coded.dtype == np.float32 and np.isfinite(coded).all()
    assert np.abs(coded).max() <= 3 * level + 2e-3


@pytest.fixture
def ffmpeg(tmp_path, monkeypatch):
    """A stand-in on PATH: lists one encoder and answers every conversion 40 samples late."""
    program = tmp_path / "ffmpeg"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "arguments = sys.argv[1:]\n"
        "if '-encoders' in arguments:\n    print(' A..... libopencore_amrnb  AMR-NB')\n    sys.exit()\n"
        "data = sys.stdin.buffer.read()\n"
        "if (tmp := arguments[arguments.index('-f') + 1]) == 'f32le': data = bytes(160) + data\n"
        "if '-b:a' in arguments and arguments[arguments.index('-b:a') + 1] == '6000': sys.exit('no such mode')\n"
        "sys.stdout.buffer.write(data)\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    codecs.list_ffmpeg_encoders.cache_clear()
    yield
    codecs.list_ffmpeg_encoders.cache_clear()
    codecs.measure_delay.cache_clear()


def test_codecs_of_ffmpeg_are_used_where_it_is_and_their_delay_is_removed(ffmpeg):
    speech = SyntheticSpeech(sample_rate=16000).utterance(1)[:24000]
    assert "amr_nb" in codecs.available_codecs() and "amr_wb" not in codecs.available_codecs()
    low = codecs.encode_decode(speech, 16000, "mulaw", 8000)  # what a line of 8 kHz can carry
    signal = codecs.encode_decode(low, 16000, "amr_nb")
    assert lag_and_likeness(signal, low) == (0, pytest.approx(1, abs=1e-3))
    with pytest.raises(OSError, match="no such mode"):
        codecs.encode_decode(speech, 16000, "amr_nb", 6.0)
