"""A file gives all samples that it holds, or is refused by name, whatever its header says."""

import io
import struct

import numpy as np
import pytest
import soundfile

from zoo.audio.io import files

SECONDS = 4
OPTIONS = {
    "wav": {"format": "WAV"},
    "flac": {"format": "FLAC"},
    "ogg": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "cbr": {"format": "MP3", "bitrate_mode": "CONSTANT", "compression_level": 0.5},
    "vbr": {"format": "MP3", "bitrate_mode": "VARIABLE", "compression_level": 0.5},
}
MPEG_RATES = (44100, 22050)
CONTAINERS = [(kind, rate) for kind in OPTIONS for rate in ((24000,) if kind == "opus" else MPEG_RATES)]
SHORTER, LONGER = 0.4, 2.5  # of the true length
# (container, damage) that can be read: samples in units of the recording; all others are refused
READABLE = {
    **{(kind, "valid"): 1 for kind in OPTIONS},
    **{("wav", damage): 1 for damage in ("streamed", "streamed_sox", "streamed_zero", "length_too_large")},
    ("flac", "streamed"): 1,
    **{(kind, damage): 1 for kind in ("cbr", "vbr") for damage in ("header_missing", "streamed", "padded", "tagged")},
    **{(kind, damage): 2 for kind in ("cbr", "vbr") for damage in ("joined_without_header", "joined_with_tags")},
}
DAMAGES = {
    "wav": ("valid", "cut", "joined", "header_missing", "length_too_small", "length_too_large", "streamed",
            "streamed_sox", "streamed_zero"),
    "flac": ("valid", "cut", "joined", "header_missing", "length_too_small", "length_too_large", "streamed",
             "streamed_cut"),
    "ogg": ("valid", "cut", "joined", "header_missing"),
    "opus": ("valid", "cut", "joined", "header_missing"),
    "cbr": ("valid", "cut", "joined", "header_missing", "length_too_small", "length_too_large", "streamed", "padded",
            "tagged", "cut_without_header", "joined_without_header", "joined_with_tags"),
}  # fmt: skip
DAMAGES["vbr"] = DAMAGES["cbr"]
CASES = [(*container, damage) for container in CONTAINERS for damage in DAMAGES[container[0]]]
WORDS = {"cut": ("cut", "damaged"), "joined": ("joined",), "streamed_cut": ("cut", "damaged")}


def record(kind: str, rate: int) -> bytes:
    """Encode noise and then silence, whose frames are small: a length estimated from the first frames is wrong."""
    half = SECONDS * rate // 2
    audio = np.concatenate([np.random.default_rng(0).normal(0, 0.2, half), np.zeros(half)])
    buffer = io.BytesIO()
    soundfile.write(buffer, audio, rate, **OPTIONS[kind])
    return buffer.getvalue()


def skip_first_frame(content: bytes) -> bytes:
    return content[content.find(content[:2], 4) :]


def set_length(kind: str, content: bytes, factor: float, samples: int) -> bytes:
    changed = bytearray(content)
    if kind == "wav":
        struct.pack_into("<I", changed, 40, int(2 * samples * factor))
    elif kind == "flac":
        fields = int.from_bytes(content[18:26], "big") >> 36 << 36 | int(samples * factor)
        changed[18:26] = fields.to_bytes(8, "big")
    else:
        place = content.find(b"Xing") if b"Xing" in content else content.find(b"Info")
        (frames,) = struct.unpack_from(">I", content, place + 8)
        struct.pack_into(">I", changed, place + 8, int(frames * factor))
    return bytes(changed)


def wav_sizes(content: bytes, riff: int, data: int) -> bytes:
    changed = bytearray(content)
    struct.pack_into("<I", changed, 4, riff)
    struct.pack_into("<I", changed, 40, data)
    return bytes(changed)


def damage_file(kind: str, content: bytes, damage: str, samples: int) -> bytes:
    if damage == "valid":
        return content
    if damage == "cut":
        return content[: len(content) * 6 // 10]
    if damage == "joined":
        return content + content
    if damage == "length_too_small":
        return set_length(kind, content, SHORTER, samples)
    if damage == "length_too_large":
        return set_length(kind, content, LONGER, samples)
    if kind == "wav":
        sizes = {"streamed": (2**32 - 1,) * 2, "streamed_sox": (0x7FFFF024, 0x7FFFF000), "streamed_zero": (0, 0)}
        return content[44:] if damage == "header_missing" else wav_sizes(content, *sizes[damage])
    if kind == "flac":
        if damage == "header_missing":
            return content[42:]
        streamed = set_length(kind, content, 0, samples)
        return streamed if damage == "streamed" else streamed[: len(content) // 3]
    if kind in ("ogg", "opus"):
        return content[content.find(b"OggS", 4) :]
    plain = skip_first_frame(content)
    tags = b"ID3\4\0\0\0\0\0\x14" + bytes(20), b"APETAGEX" + struct.pack("<4I8x", 2000, 32, 0, 0), b"TAG" + bytes(125)
    return {
        "header_missing": plain,
        "streamed": tags[0] + plain,
        "padded": tags[0] + bytes(3000) + plain + bytes(3000),
        "tagged": tags[0] + content + tags[1] + tags[2],
        "cut_without_header": plain[: len(plain) // 3 + 7],
        "joined_without_header": plain + plain,
        "joined_with_tags": 2 * (tags[0] + plain + tags[2]),
    }[damage]


@pytest.mark.parametrize(("kind", "rate", "damage"), CASES)
def test_all_samples_are_read_or_the_file_is_refused(tmp_path, kind, rate, damage):
    samples = SECONDS * rate
    path = tmp_path / f"a.{kind if kind in ('wav', 'flac', 'ogg', 'opus') else 'mp3'}"
    path.write_bytes(damage_file(kind, record(kind, rate), damage, samples))
    if (kind, damage) not in READABLE:
        with pytest.raises(files.AudioFileError) as error:
            files.read(path)
        message = str(error.value)
        assert message.startswith(f"{path}: ") and "\n" not in message
        assert kind == "flac" or "flac" not in message.removeprefix(str(path)).lower()
        assert any(word in message for word in WORDS.get(damage, ("",)))
        with pytest.raises(files.AudioFileError):
            list(files.read_blocks(path, 5000))
        return
    expected = READABLE[kind, damage] * samples
    audio, found_rate = files.read(path)
    assert found_rate == rate
    # an mp3 without a Xing header keeps the delay and the padding of its encoder
    is_plain_mp3 = kind in ("cbr", "vbr") and damage not in ("valid", "tagged")
    assert expected <= audio.shape[1] <= expected * (1.02 if is_plain_mp3 else 1)
    assert files.info(path).samples == audio.shape[1]
    assert len(files.read_mono(path)) == audio.shape[1]
    np.testing.assert_array_equal(np.concatenate(list(files.read_blocks(path, 5000)), axis=1), audio)
    np.testing.assert_array_equal(files.read(path, 3000, 500)[0], audio[:, 3000:3500])
    np.testing.assert_array_equal(files.read(path, samples - 100)[0], audio[:, samples - 100 :])


@pytest.mark.parametrize("kind", OPTIONS)
def test_altered_bytes_are_read_or_refused(tmp_path, kind):
    """Whatever stands in a file, reading it gives its samples or one AudioFileError."""
    rng = np.random.default_rng(0)
    content = record(kind, 24000 if kind == "opus" else 22050)
    path = tmp_path / f"a.{kind if kind in ('wav', 'flac', 'ogg', 'opus') else 'mp3'}"
    ends = [*range(0, 64), *rng.integers(64, len(content), 20).tolist()]
    altered = [content[:end] for end in ends]
    for _ in range(150):
        changed = bytearray(content)
        near_an_end = rng.random() < 0.8
        for place in rng.integers(0, 96 if near_an_end else len(content), rng.integers(1, 4)):
            changed[-place if rng.random() < 0.2 else place] = rng.integers(256)
        altered.append(bytes(changed))
    for each in altered:
        path.write_bytes(each)
        try:
            audio, _ = files.read(path)
        except files.AudioFileError:
            continue
        assert files.info(path).samples == audio.shape[1]
        assert sum(block.shape[1] for block in files.read_blocks(path, 50000)) == audio.shape[1]
