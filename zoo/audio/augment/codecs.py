"""Real lossy codecs as degradations: encoded and decoded in memory, aligned with the input and of its length.

MP3, Vorbis, Opus, A-law, mu-law and GSM go through libsndfile; AMR, AAC and G.722 through `ffmpeg` where there is one.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
import soundfile

from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io.files import BLOCK_SAMPLES
from zoo.audio.io.resample import match_array_length, resample_array
from zoo.common.checks import check_one_of

_PAD_SECONDS = 0.05  # of silence behind the signal, so that no codec cuts its end
_FFMPEG_SECONDS = 120  # after which a hanging ffmpeg is given up

# LAME's bit rates in kb/s by sample rate: MPEG-1, MPEG-2 and MPEG-2.5 layer III (ISO 11172-3, 13818-3).
_MP3_BANDS = (
    ((32000, 44100, 48000), (32.0, 320.0)),
    ((16000, 22050, 24000), (8.0, 160.0)),
    ((8000, 11025, 12000), (8.0, 64.0)),
)


@dataclass(frozen=True)
class Codec:
    """How a codec is reached and what its setting means."""

    container: str  # libsndfile's or ffmpeg's name of the file format
    encoder: str  # its subtype, or ffmpeg's encoder
    unit: str = ""  # of the setting; empty when there is none
    span: tuple[float, float] = (0.0, 0.0)  # lowest and highest setting
    default: float | None = None  # setting; None leaves it to the codec (A-law: the signal's own rate)
    rates: tuple[int, ...] = ()  # sample rates in Hz that it can code; empty for any
    ffmpeg: bool = False
    exact: bool = True  # whether the decoder removes the codec's delay by itself

    @property
    def is_available(self) -> bool:
        """Whether this machine has it."""
        if self.ffmpeg:
            return self.encoder in list_ffmpeg_encoders()
        return soundfile.check_format(self.container, self.encoder)


CODECS: dict[str, Codec] = {
    "mp3": Codec("MP3", "MPEG_LAYER_III", "kb/s", (8.0, 320.0), 64.0, exact=False),
    "vorbis": Codec("OGG", "VORBIS", "quality", (0.0, 10.0), 3.0),
    "opus": Codec("OGG", "OPUS", "kb/s", (6.0, 256.0), 24.0, (8000, 12000, 16000, 24000, 48000)),
    "alaw": Codec("WAV", "ALAW", "Hz", (4000.0, 48000.0)),
    "mulaw": Codec("WAV", "ULAW", "Hz", (4000.0, 48000.0)),
    "gsm": Codec("WAV", "GSM610", rates=(8000,)),
    "amr_nb": Codec("amr", "libopencore_amrnb", "kb/s", (4.75, 12.2), 12.2, (8000,), True, False),
    "amr_wb": Codec("amr", "libvo_amrwbenc", "kb/s", (6.6, 23.85), 12.65, (16000,), True, False),
    "aac": Codec("adts", "aac", "kb/s", (16.0, 256.0), 64.0, (16000, 22050, 24000, 32000, 44100, 48000), True, False),
    "g722": Codec("g722", "g722", rates=(16000,), ffmpeg=True, exact=False),
}


@lru_cache(maxsize=1)
def list_ffmpeg_encoders() -> frozenset[str]:
    """List the encoders of the ffmpeg on the path, once a process; none without one."""
    program = shutil.which("ffmpeg")
    if program is None:
        return frozenset()
    listing = _run([program, "-hide_banner", "-encoders"], b"").decode(errors="replace")
    return frozenset(line.split()[1] for line in listing.splitlines() if len(line.split()) > 1)


def available_codecs() -> tuple[str, ...]:
    """Codecs of this machine for `encode_decode`: libsndfile's, then, where it is on the path, ffmpeg's."""
    return tuple(name for name, codec in CODECS.items() if codec.is_available)


def validate_codec(codec: str, setting: float | None = None) -> None:
    """Refuse a codec or setting that `encode_decode` could not carry out here."""
    check_one_of(CODECS, codec=codec)
    entry = CODECS[codec]
    low, high = entry.span
    if setting is not None and not (entry.unit and low <= setting <= high):
        expected = f"{entry.unit} from {low:g} to {high:g}" if entry.unit else "none"
        raise ValueError(f"codec {codec}: expected as setting {expected}, got {setting:g}")
    if not entry.is_available:
        owner = f"an ffmpeg with the encoder {entry.encoder} on PATH" if entry.ffmpeg else "a newer libsndfile"
        raise ValueError(f"codec {codec} needs {owner}; available here: {', '.join(available_codecs())}")


def encode_decode(audio: np.ndarray, sample_rate: int, codec: str, setting: float | None = None) -> np.ndarray:
    """Encode and decode audio (T,) float32, T >= 1; the result is aligned with it and of its length.

    It is resampled to a rate that the codec knows and back where needed, and scaled around the codec where its peak
    exceeds 1. The delay of a codec is measured once on a probe, so that it does not depend on what is coded.
    Settings are those of `CODECS`, None the usual one; alaw and mulaw take the line's rate in Hz, 8000 for a telephone.

    Raises:
        ValueError: unknown or missing codec, a setting outside its range, or audio that is not (T,) and finite.
    """
    validate_codec(codec, setting)
    audio = np.asarray(audio, dtype=np.float32)
    if audio.ndim != 1 or len(audio) == 0 or not np.isfinite(audio).all():
        raise ValueError(f"expected finite audio (T,) with T >= 1, got shape {audio.shape}")
    setting = CODECS[codec].default if setting is None else setting
    rate = _coding_rate(codec, setting, sample_rate)
    padded = np.pad(audio, (0, round(_PAD_SECONDS * sample_rate)))
    line = resample_array(padded, sample_rate, rate)
    scale = max(1.0, float(np.abs(line).max()))
    delay = 0 if CODECS[codec].exact else measure_delay(codec, setting, rate)
    decoded = _run_codec(line / np.float32(scale), rate, codec, setting)[delay:]
    back = resample_array(match_array_length(decoded, len(line)), rate, sample_rate)
    return match_array_length(back, len(audio)) * np.float32(scale)


def _coding_rate(codec: str, setting: float | None, sample_rate: int) -> int:
    entry = CODECS[codec]
    rates: Sequence[int] = entry.rates
    if codec == "mp3" and setting is not None:
        rates = sorted(rate for band, (low, high) in _MP3_BANDS if low <= setting <= high for rate in band)
    elif entry.unit == "Hz":
        return sample_rate if setting is None else min(sample_rate, round(setting))
    elif codec == "vorbis":
        return min(max(sample_rate, 8000), 48000)
    return next((rate for rate in rates if rate >= sample_rate), rates[-1])


@lru_cache(maxsize=256)
def measure_delay(codec: str, setting: float | None, rate: int) -> int:
    """Measure by how many samples decoded audio is late: small MP3 frames without LAME's tag, ffmpeg's raw streams."""
    probe = SyntheticSpeech(sample_rate=rate).utterance(0)  # speech codecs shift the phases of noise at will
    decoded = _run_codec(np.pad(probe, (0, round(_PAD_SECONDS * rate))), rate, codec, setting)
    return max(0, int(np.argmax(scipy.signal.correlate(decoded, probe, mode="full", method="fft"))) - (len(probe) - 1))


def _run_codec(line: np.ndarray, rate: int, codec: str, setting: float | None) -> np.ndarray:
    return (_run_ffmpeg if CODECS[codec].ffmpeg else _run_soundfile)(line, rate, codec, setting)


def _run_soundfile(line: np.ndarray, rate: int, codec: str, setting: float | None) -> np.ndarray:
    """Encode at a level from 0, best, to 1, smallest: libsndfile's own scales, inverted."""
    entry, memory = CODECS[codec], io.BytesIO()
    options: dict[str, float | str] = {}
    if setting is not None and codec in ("vorbis", "opus", "mp3"):
        low, high = next(span for band, span in _MP3_BANDS if rate in band) if codec == "mp3" else entry.span
        options["compression_level"] = min((high - setting) / (high - low), 0.999 if codec == "mp3" else 1.0)
        if codec == "mp3":  # it refuses a level of 1.0, and the rate is rounded anyway
            options["bitrate_mode"] = "CONSTANT"
    with soundfile.SoundFile(memory, "w", rate, 1, entry.encoder, format=entry.container, **options) as handle:
        for first in range(0, len(line), BLOCK_SAMPLES):  # libsndfile's vorbis encoder overflows on long arrays
            handle.write(line[first : first + BLOCK_SAMPLES])
    memory.seek(0)
    return soundfile.read(memory, dtype="float32")[0]


def _run_ffmpeg(line: np.ndarray, rate: int, codec: str, setting: float | None) -> np.ndarray:
    entry = CODECS[codec]
    quiet = [shutil.which("ffmpeg") or "ffmpeg", "-hide_banner", "-nostdin", "-loglevel", "error", "-threads", "1"]
    samples = ["-f", "f32le", "-ar", str(rate), "-ac", "1"]
    bits = [] if setting is None else ["-b:a", str(round(setting * 1000))]
    encode = [*quiet, *samples, "-i", "pipe:0", "-c:a", entry.encoder, *bits, "-f", entry.container, "pipe:1"]
    coded = _run(encode, line.astype("<f4").tobytes())
    demuxer = "aac" if entry.container == "adts" else entry.container
    return np.frombuffer(_run([*quiet, "-f", demuxer, "-i", "pipe:0", *samples, "pipe:1"], coded), "<f4")


def _run(command: list[str], data: bytes) -> bytes:
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_FFMPEG_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{' '.join(command)} gave no result in {_FFMPEG_SECONDS} s") from error
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)} failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout
