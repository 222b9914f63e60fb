import os
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zoo.audio.io import files

RATE = 22050
LOSSY = {"ogg": "VORBIS", "opus": "OPUS", "mp3": "MPEG_LAYER_III"}


def tone(samples=RATE, frequency=220.0, rate=RATE):
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(samples) / rate)).astype(np.float32)


def make(path, samples=RATE, **options):
    rate = 24000 if path.suffix == ".opus" else RATE
    files.write(path, tone(samples, rate=rate), rate, **options)
    return path


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "opus", "mp3"])
def test_every_format_returns_its_length_rate_and_sound(tmp_path, suffix):
    path = make(tmp_path / f"a.{suffix}")
    audio, rate = files.read(path)
    assert audio.shape == (1, RATE) and audio.dtype == np.float32
    assert files.info(path).samples == RATE and files.info(path).channels == 1
    inner = slice(1000, -1000)
    assert np.abs(audio[0] - tone(rate=rate))[inner].max() < (0.05 if suffix in LOSSY else 1e-4)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "opus", "mp3"])
def test_partial_reads_and_blocks_equal_the_whole(tmp_path, suffix):
    path = make(tmp_path / f"a.{suffix}")
    full, _ = files.read(path)
    part, _ = files.read(path, 5000, 1234)
    np.testing.assert_array_equal(part, full[:, 5000:6234])
    np.testing.assert_array_equal(files.read(path, RATE - 10, 100)[0], full[:, -10:])
    np.testing.assert_array_equal(np.concatenate(list(files.read_blocks(path, 777)), axis=1), full)
    assert [block.shape[1] for block in files.read_blocks(path, 10000)] == [10000, 10000, 2050]


def test_stereo_and_8_bit(tmp_path):
    stereo = np.stack([tone(), -tone()])
    files.write(tmp_path / "s.wav", stereo, RATE)
    assert files.read(tmp_path / "s.wav")[0].shape == (2, RATE)
    assert np.abs(files.read_mono(tmp_path / "s.wav")).max() <= 1 / 32768
    make(tmp_path / "b.wav", subtype="PCM_U8")
    assert files.info(tmp_path / "b.wav").subtype == "PCM_U8"
    assert np.abs(files.read_mono(tmp_path / "b.wav") - tone()).max() <= 0.5 / 128 + 1e-6


def test_read_mono_resamples(tmp_path):
    path = make(tmp_path / "a.wav")
    mono = files.read_mono(path, 16000)
    assert mono.shape == (16000,)
    assert np.abs(mono - tone(16000, rate=16000))[500:-500].max() < 1e-3


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(-32768, 32767), min_size=1, max_size=50), suffix=st.sampled_from(["wav", "flac"]))
def test_16_bit_round_trip_is_exact(tmp_path, steps, suffix):
    audio = np.array(steps, dtype=np.float32) / 32768
    files.write(tmp_path / f"r.{suffix}", audio, RATE)
    np.testing.assert_array_equal(files.read(tmp_path / f"r.{suffix}")[0][0], audio)


@pytest.mark.parametrize(("subtype", "step"), [("PCM_U8", 2**-7), ("PCM_16", 2**-15), ("PCM_24", 2**-23)])
def test_integers_are_rounded_and_clipped(tmp_path, subtype, step):
    audio = np.array([0.3001, -0.3001, 2.0, -2.0], dtype=np.float32)
    files.write(tmp_path / "q.wav", audio, RATE, subtype)
    result = files.read(tmp_path / "q.wav")[0][0]
    assert np.abs(result[:2] - audio[:2]).max() <= step / 2 + 1e-7
    np.testing.assert_allclose(result[2:], [1 - step, -1])


def test_float_wav_keeps_peaks(tmp_path):
    files.write(tmp_path / "f.wav", np.array([40.0, -3.0]), RATE, "FLOAT")
    np.testing.assert_array_equal(files.read(tmp_path / "f.wav")[0], [[40.0, -3.0]])


def refused(path, *words):
    with pytest.raises(files.AudioFileError) as error:
        files.read(path)
    text = str(error.value)
    assert str(path) in text and "\n" not in text
    assert all(word in text for word in words), text


def test_bad_files_are_named_with_their_cause(tmp_path):
    bad = {"empty": b"", "page": b"<!DOCTYPE html><html>404</html>", "noise": bytes(range(256)) * 20}
    for name, content in bad.items():
        for suffix in ("wav", "mp3"):
            path = tmp_path / f"{name}.{suffix}"
            path.write_bytes(content)
            refused(path, {"empty": "empty", "page": "web page", "noise": "not an audio file"}[name])
    raw = tmp_path / "x.raw"
    raw.write_bytes(bytes(100))
    refused(raw, "not an audio file")
    with pytest.raises(FileNotFoundError, match="missing"):
        files.read(tmp_path / "missing.wav")


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "opus", "mp3"])
@pytest.mark.parametrize("keep", [20, 0.5, 0.9, -3])
def test_cut_files_are_detected(tmp_path, suffix, keep):
    content = make(tmp_path / f"a.{suffix}", 3 * RATE).read_bytes()
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    refused(path)
    with pytest.raises(files.AudioFileError):
        list(files.read_blocks(path, 5000))


def test_wav_with_a_rate_of_zero_is_refused(tmp_path):
    content = bytearray(make(tmp_path / "a.wav").read_bytes())
    struct.pack_into("<I", content, 24, 0)
    (tmp_path / "rate.wav").write_bytes(content)
    refused(tmp_path / "rate.wav")


def test_nan_and_zero_length_are_refused(tmp_path):
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        soundfile.write(tmp_path / f"{name}.wav", np.array([0.0, value]), RATE, subtype="FLOAT")
        refused(tmp_path / f"{name}.wav", "NaN")
    soundfile.write(tmp_path / "zero.wav", np.zeros(0), RATE)
    refused(tmp_path / "zero.wav", "no samples")


def test_read_outside_the_file(tmp_path):
    path = make(tmp_path / "a.wav")
    for start, samples in ((RATE, 1), (-1, 5), (0, -2)):
        with pytest.raises(ValueError, match="cannot read"):
            files.read(path, start, samples)
    with pytest.raises(ValueError, match="positive"):
        list(files.read_blocks(path, 0))


def test_writer_streams_and_leaves_nothing_on_error(tmp_path):
    with files.AudioWriter(tmp_path / "deep" / "w.flac", RATE, 1) as writer:
        for block in np.split(tone(), 9):
            writer.write(block)
        assert not (tmp_path / "deep" / "w.flac").exists()
    assert files.info(tmp_path / "deep" / "w.flac").samples == RATE
    before = (tmp_path / "deep" / "w.flac").read_bytes()
    with pytest.raises(KeyError), files.AudioWriter(tmp_path / "deep" / "w.flac", RATE, 1) as writer:
        writer.write(tone())
        raise KeyError
    for audio in (np.array([0.0, np.nan]), np.zeros((2, 5)), np.zeros(0)):
        with pytest.raises(ValueError), files.AudioWriter(tmp_path / "deep" / "w.flac", RATE, 1) as writer:
            writer.write(audio)
    assert os.listdir(tmp_path / "deep") == ["w.flac"]
    assert (tmp_path / "deep" / "w.flac").read_bytes() == before


def test_wrong_targets_are_refused_without_a_trace(tmp_path):
    for name, rate in (("a.xyz", RATE), ("a.opus", RATE), ("a.wav", 0)):
        with pytest.raises(ValueError):
            files.write(tmp_path / name, tone(), rate)
    with pytest.raises(ValueError):
        files.write(tmp_path / "a.flac", tone(), RATE, "FLOAT")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_full_disk_leaves_nothing(tmp_path, suffix):
    resource = pytest.importorskip("resource")
    child = os.fork()
    if child == 0:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        try:
            files.write(tmp_path / f"a.{suffix}", np.random.default_rng(0).uniform(-1, 1, 200000), RATE)
        except OSError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.listdir(tmp_path) == []


def test_find_audio_files_sorts_and_ignores_hidden_and_other_files(tmp_path):
    for name in ("b.wav", "a.FLAC", "deep/c.mp3", ".hidden.wav", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    result = [path.relative_to(tmp_path).as_posix() for path in files.find_audio_files(tmp_path)]
    assert result == ["a.FLAC", "b.wav", "deep/c.mp3"]
    assert files.find_audio_files(tmp_path / "b.wav") == [tmp_path / "b.wav"]
    with pytest.raises(ValueError, match="expected a file ending"):
        files.find_audio_files(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError):
        files.find_audio_files(tmp_path / "nowhere")


def test_find_audio_files_names_skipped_files(tmp_path, caplog):
    root = tmp_path / "root"
    for name in ("root/a.wav", "root/b.m4a", "root/c.m4a", "root/d.aiff", "root/notes.txt", "other/e.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (root / "linked").symlink_to(tmp_path / "other")
    (root / "link.wav").symlink_to(tmp_path / "other" / "e.wav")
    (root / "broken.wav").symlink_to(tmp_path / "gone.wav")
    try:
        open(os.fsencode(root) + b"/\xe9t\xe9.wav", "w").close()
    except OSError:
        pytest.skip("the file system refuses names that are not UTF-8")
    for _ in range(2):
        assert [path.name for path in files.find_audio_files(root)] == ["a.wav", "link.wav"]
    (message,) = caplog.messages
    assert message.startswith(f"{root}: left out ") and "\n" not in message
    for part in ("2 .m4a", "1 .aiff", f"1 linked folder ({root / 'linked'})", "1 broken link", "\\xe9t\\xe9.wav"):
        assert part in message
    message.encode()
