"""Audio files of every kind of damage, and sound files that only look odd."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE // 2) / RATE)).astype(np.float32)


def sound(folder: Path, suffix: str = "wav", values: np.ndarray = TONE, subtype: str | None = None) -> bytes:
    path = folder / f"source.{suffix}"
    soundfile.write(path, values, RATE, subtype=subtype)
    content = path.read_bytes()
    path.unlink()
    return content


def cut(folder: Path, suffix: str) -> bytes:
    content = sound(folder, suffix)
    return content[: len(content) // 2]


def header(folder: Path, offset: int, value: int) -> bytes:
    content = bytearray(sound(folder, "wav"))
    struct.pack_into("<I", content, offset, value)
    return bytes(content)


def flipped_bit(folder: Path) -> bytes:
    content = bytearray(sound(folder, "flac"))
    content[len(content) // 2] ^= 16
    return bytes(content)


BAD: dict[str, Callable[[Path], bytes]] = {
    "empty.wav": lambda folder: b"",
    "html.wav": lambda folder: b"<!DOCTYPE html><html>404</html>",
    "html.mp3": lambda folder: b"<!DOCTYPE html><html>404</html>",
    "noise.mp3": lambda folder: bytes(range(256)) * 20,
    "cut_header.wav": lambda folder: sound(folder, "wav")[:30],
    "rate_0.wav": lambda folder: header(folder, 24, 0),
    "cut.wav": lambda folder: cut(folder, "wav"),
    "cut.flac": lambda folder: cut(folder, "flac"),
    "flipped_bit.flac": flipped_bit,
    "cut.ogg": lambda folder: cut(folder, "ogg"),
    "cut.mp3": lambda folder: cut(folder, "mp3"),
    "no_samples.wav": lambda folder: sound(folder, "wav", np.zeros(0), "FLOAT"),
    "nan.wav": lambda folder: sound(folder, "wav", np.where(TONE > 0.4, np.nan, TONE), "FLOAT"),
    "inf.wav": lambda folder: sound(folder, "wav", np.where(TONE > 0.4, np.inf, TONE), "FLOAT"),
}
ODD: dict[str, Callable[[Path], bytes]] = {
    "peak_40.wav": lambda folder: sound(folder, "wav", 80 * TONE, "FLOAT"),
    "six_channels.wav": lambda folder: sound(folder, "wav", np.stack([TONE] * 6, axis=1)),
    "silence.wav": lambda folder: sound(folder, "wav", np.zeros(RATE)),
    "one_sample.wav": lambda folder: sound(folder, "wav", TONE[:1]),
    "8_bit.wav": lambda folder: sound(folder, subtype="PCM_U8"),
    "claims_2_gib.wav": lambda folder: header(folder, 40, 2**31),
    "streamed.wav": lambda folder: header(folder, 40, 2**32 - 1),
    "lossy.mp3": lambda folder: sound(folder, "mp3"),
}


def corpus(folder: Path, good: int, *names: str) -> Path:
    """A folder with `good` sound files `000.wav`, ... and those named in BAD or ODD."""
    folder.mkdir(parents=True)
    for number in range(good):
        (folder / f"{number:03d}.wav").write_bytes(sound(folder))
    for name in names:
        (folder / name).write_bytes((BAD | ODD)[name](folder))
    return folder
