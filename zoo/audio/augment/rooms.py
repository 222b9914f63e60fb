"""What surrounds a voice: room impulse responses and noise, from files or made in code."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import scipy

from zoo.audio.corpora.cache import CorpusCache
from zoo.audio.corpora.corpus import Corpus, MemoryCorpus, TrimmedCorpus, cache_dir
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.common.checks import check_at_least

SYNTHETIC_NOISES = 6
SYNTHETIC_RIRS = 32
TRAINING_SHARE = 0.8  # of every noise file, from its beginning; validation takes the rest
_SOUND_SPEED = 343.0  # m/s, air at 20 degrees Celsius
_WALL_METRES = 0.5  # least distance of source and microphone from a wall
_MIN_METRES = 0.3  # between source and microphone: nearer than a headset the direct sound hides the room
_IMAGES = 3  # image rooms per direction and axis
_MIXING_SECONDS = 0.03  # from here on reflections are dense enough to be drawn as noise
_TAPS = 16  # of the windowed sinc on each side of a reflection
_KINDS = ("white", "pink", "brown", "hum", "gusts", "babble")
_VOICES = 5  # of babble
_NOISE_PEAK = 0.9
_HIGHPASS_HZ = 20.0  # images all add with one sign, which no loudspeaker or microphone would pass on as an offset


def load_rirs(folder: Path | None, sample_rate: int, count: int = SYNTHETIC_RIRS) -> list[np.ndarray]:
    """Read the room impulse responses (N,) below a folder, sorted and resampled; None makes `count` of them in code.

    A folder without audio is a FileNotFoundError, a broken or silent file a ValueError.
    """
    if folder is None:
        return synthesize_rirs(count, sample_rate)
    paths = files.find_audio_files(folder)
    if not paths:
        raise FileNotFoundError(f"{folder}: no room impulse responses ({', '.join(files.AUDIO_SUFFIXES)}) in it")
    rirs = [files.read_mono(path, sample_rate) for path in paths]
    for path, rir in zip(paths, rirs, strict=True):
        if not rir.any():
            raise ValueError(f"{path}: silent, no room impulse response; remove it")
    return rirs


def synthesize_rirs(count: int, sample_rate: int, seed: int = 0) -> list[np.ndarray]:
    """Make room impulse responses: direct sound and early reflections by image sources, an exponential tail behind.

    RT60 is uniform in 0.2 to 0.5 s; walls are 2 to 10 m long, 2 to 5 m high. Responses (N,) float32 have peak 1 and the
    delay of their direct path; response i does not depend on `count`.

    Source: Allen and Berkley, "Image method for efficiently simulating small-room acoustics" (1979); ranges of
        Open-Miipher-2.
    """
    check_at_least(0, count=count)
    check_at_least(1000, sample_rate=sample_rate)
    return [_shoebox(sample_rate, np.random.default_rng([seed, index])) for index in range(count)]


def _shoebox(sample_rate: int, rng: np.random.Generator) -> np.ndarray:
    room = rng.uniform([2.0, 2.0, 2.0], [10.0, 10.0, 5.0])
    rt60 = rng.uniform(0.2, 0.5)
    while True:
        source, microphone = rng.uniform(_WALL_METRES, room - _WALL_METRES, (2, 3))
        if np.linalg.norm(source - microphone) >= _MIN_METRES:
            break
    metres, reflections = _images(room, source, microphone)
    arrivals = metres / _SOUND_SPEED
    mixing = arrivals.min() + _MIXING_SECONDS
    early = arrivals < mixing
    gains = _wall_reflection(room, rt60) ** reflections[early] / metres[early]
    response = np.zeros(math.ceil((mixing + rt60) * sample_rate) + 2 * _TAPS)
    _add_impulses(response, arrivals[early] * sample_rate, gains)
    response += _tail(response, rt60, mixing, sample_rate, rng)
    response = scipy.signal.sosfilt(
        scipy.signal.butter(2, _HIGHPASS_HZ, "highpass", fs=sample_rate, output="sos"), response
    )
    return (response / np.abs(response).max()).astype(np.float32)


def _images(room: np.ndarray, source: np.ndarray, microphone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances in metres and numbers of wall reflections of all image sources (I,)."""
    n = np.arange(-_IMAGES, _IMAGES + 1)
    axes, counts = [], []
    for length, x, receiver in zip(room, source, microphone, strict=True):
        axes.append(np.concatenate([2 * n * length + x, 2 * n * length - x]) - receiver)
        counts.append(np.concatenate([np.abs(2 * n), np.abs(2 * n - 1)]))
    squares = [np.square(axis) for axis in axes]
    metres = np.sqrt(squares[0][:, None, None] + squares[1][:, None] + squares[2]).ravel()
    return metres, (counts[0][:, None, None] + counts[1][:, None] + counts[2]).ravel()


def _wall_reflection(room: np.ndarray, rt60: float) -> float:
    """Pressure reflection factor of the walls for a reverberation time, by Eyring's formula."""
    x, y, z = room
    mean_log_absorption = 0.161 * x * y * z / (2 * (x * y + y * z + z * x) * rt60)
    return math.exp(-mean_log_absorption / 2)


def _add_impulses(response: np.ndarray, places: np.ndarray, gains: np.ndarray) -> None:
    """Add band-limited impulses at fractional samples, in place."""
    nearest = np.rint(places).astype(int)
    taps = np.arange(-_TAPS, _TAPS + 1)
    offsets = taps - (places - nearest)[:, None]
    values = gains[:, None] * np.sinc(offsets) * (0.5 + 0.5 * np.cos(np.pi * offsets / (_TAPS + 1)))
    index = nearest[:, None] + taps
    inside = (index >= 0) & (index < len(response))
    np.add.at(response, index[inside], values[inside])


def _tail(response: np.ndarray, rt60: float, mixing: float, sample_rate: int, rng: np.random.Generator) -> np.ndarray:
    """Noise that decays by 60 dB in `rt60` from the mixing time on, at the level that the reflections have by then."""
    seconds = np.arange(len(response)) / sample_rate
    decay = np.exp(-3 * math.log(10) * seconds / rt60)
    noise = rng.standard_normal(len(response)) * decay
    late = (seconds >= mixing - _MIXING_SECONDS / 2) & (seconds < mixing)
    level = math.sqrt(np.sum(response[late] ** 2) / np.sum(noise[late] ** 2))
    return np.where(seconds >= mixing, level * noise, 0.0)


class SyntheticNoise(MemoryCorpus):
    """Noises made in code, in memory: white, pink, brown, hum, gusts, babble in turn.

    Args:
        sample_rate: Hz, >= 8000.
        seed: equal arguments give equal samples.
        seconds: length of a clip, >= 0.1.
    """

    def __init__(self, clips: int, sample_rate: int, seed: int = 0, seconds: float = 5.0) -> None:
        check_at_least(1, clips=clips)
        check_at_least(0.1, seconds=seconds)
        samples = round(seconds * sample_rate)
        kinds = [_KINDS[index % len(_KINDS)] for index in range(clips)]
        generators = [np.random.default_rng([seed, index]) for index in range(clips)]
        super().__init__(
            [f"{kind}{index:04d}" for index, kind in enumerate(kinds)],
            [_noise(kind, samples, sample_rate, rng) for kind, rng in zip(kinds, generators, strict=True)],
        )


def load_noises(folder: Path | None, cache: Path, sample_rate: int, training: bool) -> Corpus:
    """Load noise for training or for validation, which share no sample, from a folder's cache or made in code."""
    if folder is None:
        return SyntheticNoise(SYNTHETIC_NOISES, sample_rate, seed=int(not training))
    full = CorpusCache(cache_dir(cache, folder, sample_rate))
    return TrimmedCorpus(full, 0.0, TRAINING_SHARE) if training else TrimmedCorpus(full, TRAINING_SHARE, 1.0)


def crop_noise(noises: Corpus, index: int, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Take a random stretch of a noise, and where it begins; one that is too short goes round from a random sample."""
    length = int(noises.lengths[index])
    if length >= samples:
        start = int(rng.integers(length - samples + 1))
        return noises.read(index, start, samples), start
    start = int(rng.integers(length))
    return np.resize(np.roll(noises.read(index), -start), samples), start


def _noise(kind: str, samples: int, sample_rate: int, rng: np.random.Generator) -> np.ndarray:
    seconds = np.arange(samples) / sample_rate
    if kind == "babble":
        noise = _babble(samples, sample_rate, rng)
    elif kind == "hum":
        orders = np.arange(1, 20)
        phases, levels = rng.uniform(0, 2 * np.pi, len(orders)), rng.uniform(0.2, 1.0, len(orders)) / orders
        mains = rng.choice([50.0, 60.0]) * orders
        noise = levels @ np.sin(2 * np.pi * mains[:, None] * seconds + phases[:, None])
        noise += 0.05 * _coloured(samples, sample_rate, -0.5, rng)
    else:
        noise = _coloured(samples, sample_rate, {"white": 0.0, "pink": -0.5}.get(kind, -1.0), rng)
    if kind == "gusts":
        knots = np.arange(0, seconds[-1] + 0.6, 0.3)
        noise *= np.interp(seconds, knots, rng.uniform(0.05, 1.0, len(knots)) ** 2)
    return (_NOISE_PEAK / np.abs(noise).max() * noise).astype(np.float32)


def _coloured(samples: int, sample_rate: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise whose amplitude spectrum follows frequency to an exponent above 20 Hz, of RMS 1."""
    size = scipy.fft.next_fast_len(samples, real=True)
    frequencies = np.maximum(scipy.fft.rfftfreq(size, 1 / sample_rate), _HIGHPASS_HZ)
    noise = scipy.fft.irfft(scipy.fft.rfft(rng.standard_normal(size)) * frequencies**exponent, size)[:samples]
    return noise / np.sqrt(np.mean(noise**2))


def _babble(samples: int, sample_rate: int, rng: np.random.Generator) -> np.ndarray:
    speech = SyntheticSpeech(sample_rate, speakers=_VOICES, seed=int(rng.integers(1 << 31)))
    voices = [speech.utterance(index) for index in range(_VOICES)]
    return sum((np.resize(np.roll(voice, rng.integers(len(voice))), samples) for voice in voices), np.zeros(samples))
