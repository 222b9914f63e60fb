import errno
import io
import os
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zoo.audio.io import files

RATE = 22050


def tone(samples=RATE, frequency=220.0, rate=RATE):
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(samples) / rate)).astype(np.float32)


def make(path, samples=RATE, **options):
    rate = 24000 if path.suffix == ".opus" else RATE
    files.write(path, tone(samples, rate=rate), rate, **options)
    return path


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "opus", "mp3"])
def test_blocks_are_those_of_the_file(tmp_path, suffix):
    path = make(tmp_path / f"a.{suffix}")
    full, _ = files.read(path)
    np.testing.assert_array_equal(np.concatenate(list(files.read_blocks(path, 777)), axis=1), full)
    assert [block.shape[1] for block in files.read_blocks(path, 10000)] == [10000, 10000, 2050]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(-32768, 32767), min_size=1, max_size=50), suffix=st.sampled_from(["wav", "flac"]))
def test_16_bit_round_trip_is_exact(tmp_path, steps, suffix):
    audio = np.array(steps, dtype=np.float32) / 32768
    files.write(tmp_path / f"r.{suffix}", audio, RATE)
    np.testing.assert_array_equal(files.read(tmp_path / f"r.{suffix}")[0][0], audio)


def refused(path, *words):
    with pytest.raises(files.AudioFileError) as error:
        files.read(path)
    text = str(error.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    assert all(word in text for word in words), text
    with pytest.raises(files.AudioFileError):
        list(files.read_blocks(path, 5000))


@pytest.mark.parametrize("container", ["RF64", "W64", "AIFF"])
def test_cut_files_of_other_containers_are_detected(tmp_path, container):
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(3 * RATE), RATE, format=container)
    assert files.read(path)[0].shape[1] == 3 * RATE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(path, "header promises")


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "opus", "mp3"])
@pytest.mark.parametrize("keep", [20, 0.5, 0.9, -3])
def test_cut_files_are_detected(tmp_path, suffix, keep):
    content = make(tmp_path / f"a.{suffix}", 3 * RATE).read_bytes()
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    refused(path)


SECONDS = 4
OPTIONS = {
    "wav": {"format": "WAV"},
    "flac": {"format": "FLAC"},
    "ogg": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "cbr": {"format": "MP3", "bitrate_mode": "CONSTANT", "compression_level": 0.5},
    "vbr": {"format": "MP3", "bitrate_mode": "VARIABLE", "compression_level": 0.5},
}
TAGS = b"ID3\4\0\0\0\0\0\x14" + bytes(20), b"APETAGEX" + struct.pack("<4I8x", 2000, 32, 0, 0), b"TAG" + bytes(125)


def record(kind):
    """Encode noise and then silence, whose frames are small: a length estimated from the first frames is wrong."""
    half = SECONDS * (24000 if kind == "opus" else RATE) // 2
    audio = np.concatenate([np.random.default_rng(0).normal(0, 0.2, half), np.zeros(half)])
    buffer = io.BytesIO()
    soundfile.write(buffer, audio, 24000 if kind == "opus" else RATE, **OPTIONS[kind])
    return buffer.getvalue()


def set_wav_sizes(content, riff, data):
    return content[:4] + struct.pack("<I", riff) + content[8:40] + struct.pack("<I", data) + content[44:]


def set_flac_length(content, samples):
    fields = int.from_bytes(content[18:26], "big") >> 36 << 36 | samples
    return content[:18] + fields.to_bytes(8, "big") + content[26:]


def skip_first_frame(content):  # of an mp3, the Xing header
    return content[content.find(content[:2], 4) :]


READABLE = {  # damage -> (kinds, change)
    "endless header": ("wav", lambda content: set_wav_sizes(content, 2**32 - 1, 2**32 - 1)),
    "endless header of sox": ("wav", lambda content: set_wav_sizes(content, 0x7FFFF024, 0x7FFFF000)),
    "data size too large": ("wav", lambda content: set_wav_sizes(content, len(content) - 8, 2 * len(content))),
    "no Xing header": ("cbr vbr", skip_first_frame),
    "tags around it": ("cbr vbr", lambda content: TAGS[0] + content + TAGS[1] + TAGS[2]),
    "tags, no Xing header": ("cbr vbr", lambda content: TAGS[0] + skip_first_frame(content) + TAGS[2]),
}
UNREADABLE = {
    "no header": ("wav flac ogg opus", lambda content: content[60:]),
    "header counts too many samples": ("flac", lambda content: set_flac_length(content, 10 * RATE)),
    "header counts none": ("flac", lambda content: set_flac_length(content, 0)),
    "rate of zero": ("wav", lambda content: content[:24] + bytes(4) + content[28:]),
}


def damaged(tmp_path, table, damage, kind):
    path = tmp_path / f"a.{'mp3' if kind in ('cbr', 'vbr') else kind}"
    path.write_bytes(table[damage][1](record(kind)))
    return path


@pytest.mark.parametrize(("damage", "kind"), [(name, kind) for name in READABLE for kind in READABLE[name][0].split()])
def test_odd_files_give_all_their_samples(tmp_path, damage, kind):
    path = damaged(tmp_path, READABLE, damage, kind)
    samples = SECONDS * RATE
    audio, rate = files.read(path)
    # an mp3 without a Xing header keeps the delay and the padding of its encoder
    assert rate == RATE and samples <= audio.shape[1] <= samples * (1.02 if "no Xing" in damage else 1)
    assert files.info(path).samples == audio.shape[1]
    np.testing.assert_array_equal(np.concatenate(list(files.read_blocks(path, 5000)), axis=1), audio)


@pytest.mark.parametrize(
    ("damage", "kind"), [(name, kind) for name in UNREADABLE for kind in UNREADABLE[name][0].split()]
)
def test_damaged_files_are_refused(tmp_path, damage, kind):
    path = damaged(tmp_path, UNREADABLE, damage, kind)
    refused(path)
    if damage == "header counts none":
        with pytest.raises(files.AudioFileError, match="does not say how long it is"):
            files.info(path)


def test_a_wav_file_ends_before_its_header_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_WAV_BYTES", 3 * 2 * 100)
    with (
        pytest.raises(ValueError, match="100 samples"),
        files.AudioWriter(tmp_path / "w.wav", RATE, 2, "PCM_24") as out,
    ):
        out.write(np.zeros((2, 100)))
        out.write(np.zeros((2, 1)))
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("suffix", ["wav", "mp3"])
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


def test_what_is_left_out_is_counted_and_named_once(tmp_path, caplog, monkeypatch):
    """Links and names that are not UTF-8 are in tests/faults/test_bad_audio.py."""
    for name in ("a.wav", "deep/b.WAV", ".hidden.wav"):
        make(tmp_path / name, 100)
    for name in ("e.m4a", "notes.txt"):
        (tmp_path / name).touch()
    closed, scandir = tmp_path / "closed", os.scandir
    closed.mkdir()

    def refuse(path):  # root may read every folder
        if os.fspath(path) == str(closed):
            raise PermissionError(errno.EACCES, "denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for _ in range(2):
        assert files.find_audio_files(tmp_path) == [tmp_path / "a.wav", tmp_path / "deep" / "b.WAV"]
    (line,) = caplog.messages
    assert "1 .m4a" in line and f"1 unreadable folder ({closed})" in line
