"""A speech-like corpus made in code: voiced and unvoiced sounds, pitch contours, formants, several speakers, pauses."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy

from zoo.audio.corpora.corpus import MemoryCorpus
from zoo.audio.io import files
from zoo.common.checks import check_at_least, check_within

# First three formants in Hz of an adult male voice: Peterson and Barney (1952), table II, rounded.
_FIRST = (270, 390, 530, 660, 730, 570, 440, 300, 640, 490)
_SECOND = (2290, 1990, 1840, 1720, 1090, 840, 1020, 870, 1190, 1350)
_THIRD = (3010, 2550, 2480, 2410, 2440, 2410, 2240, 2240, 2390, 1690)
_VOWELS = np.array([_FIRST, _SECOND, _THIRD], dtype=float).T
_UPPER_FORMANTS = np.array([3500.0, 4500.0])  # Hz, nearly constant over vowels
_BANDWIDTHS = np.array([80.0, 100.0, 140.0, 220.0, 300.0])  # Hz
# Centre and bandwidth in Hz, level relative to a vowel: s, sh, f, th, h.
_FRICATIVES = np.array(
    [[6500, 2200, 0.22], [3300, 1500, 0.25], [5000, 6000, 0.07], [4200, 5000, 0.06], [1500, 2500, 0.08]]
)
_FRAME_SECONDS = 0.005
_PEAK_RANGE = (0.4, 0.9)
_FLOOR_LEVEL = 1e-4  # -80 dB of room noise, so that pauses are not digital silence


@dataclass(frozen=True)
class _Speaker:
    f0: float  # Hz
    tract: float  # factor on all formants: shorter vocal tracts lie higher
    breath: float  # share of noise in the voice
    rate: float  # factor on the speed of speech


@dataclass
class _Plan:
    """Controls of one utterance, one value per 5 ms frame."""

    f0: np.ndarray
    voicing: np.ndarray
    formants: np.ndarray
    friction: np.ndarray
    breath: float

    @classmethod
    def silent(cls, frames: int, breath: float) -> _Plan:
        formants = np.tile(np.concatenate([[500.0, 1500.0, 2500.0], _UPPER_FORMANTS]), (frames, 1))
        return cls(np.zeros(frames), np.zeros(frames), formants, np.zeros((len(_FRICATIVES), frames)), breath)

    def add_consonant(self, rng: np.random.Generator, kind: str, position: int, rate: float) -> int:
        envelope = self.friction[rng.integers(len(_FRICATIVES))]
        if kind == "pause":
            return position + round(rng.uniform(20, 60) / rate)
        if kind == "plosive":
            burst = position + round(rng.uniform(8, 16) / rate)
            envelope[burst : burst + 3] = [1.5, 1.0, 0.4][: max(0, len(envelope) - burst)]
            return burst + int(rng.integers(2, 6))
        if kind == "fricative":
            length = round(rng.uniform(12, 28) / rate)
            rise = np.hanning(length + 2)[1:-1]
            envelope[position : position + length] = rise[: max(0, len(envelope) - position)]
            return position + length
        return position

    def add_vowel(
        self, rng: np.random.Generator, position: int, start: np.ndarray, end: np.ndarray, rate: float
    ) -> int:
        length = min(len(self.f0) - position, round(rng.uniform(14, 40) / rate))
        stretch = slice(position, position + length)
        glide = 1 / (1 + np.exp(-8 * (np.linspace(0, 1, length) - 0.4)))[:, None]
        self.formants[position:, :3] = end
        self.formants[stretch, :3] = start * (1 - glide) + end * glide
        attack = np.minimum(1, np.minimum(np.arange(1, length + 1), np.arange(length, 0, -1)) / 5)
        self.voicing[stretch] = attack * rng.uniform(0.6, 1.0)
        return position + length

    def add_intonation(self, rng: np.random.Generator, base: float) -> None:
        """Declination over the utterance, slow accents, and a little jitter, in semitones."""
        frames = len(self.f0)
        seconds = np.arange(frames) * _FRAME_SECONDS
        knots = np.arange(0, seconds[-1] + 0.6, 0.3)
        accents = np.interp(seconds, knots, rng.normal(0, 2.0, len(knots)))
        declination = 2.0 - 4.0 * seconds / max(seconds[-1], 1.0)
        jitter = np.convolve(rng.normal(0, 0.15, frames), np.ones(3) / 3, mode="same")
        self.f0[:] = base * 2 ** ((accents + declination + jitter) / 12)


@dataclass(frozen=True)
class SyntheticSpeech:
    """Utterances that exercise speech models without any file: equal arguments give equal samples.

    Args:
        sample_rate: Hz, >= 8000.
        speakers: number of voices; utterance i belongs to voice i % speakers.
        seconds: shortest and longest utterance.
    """

    sample_rate: int = 22050
    speakers: int = 4
    seed: int = 0
    seconds: tuple[float, float] = (1.5, 4.0)

    def __post_init__(self) -> None:
        check_at_least(8000, sample_rate=self.sample_rate)
        check_at_least(1, speakers=self.speakers)
        check_within(0.1, self.seconds[1], shortest_seconds=self.seconds[0])

    def utterance(self, index: int) -> np.ndarray:
        """Render one utterance: (T,) float32 with a peak between 0.4 and 0.9; the last 64 of a process are kept."""
        return _render(self, index).copy()

    def _render(self, index: int) -> np.ndarray:
        rng, plan = self._plan(index)
        samples = round(len(plan.f0) * _FRAME_SECONDS * self.sample_rate)
        grid = np.arange(samples) / (self.sample_rate * _FRAME_SECONDS)
        frames = np.arange(len(plan.f0))
        f0 = np.interp(grid, frames, plan.f0)
        voice = self._glottis(f0, rng, plan.breath) * np.interp(grid, frames, plan.voicing)
        audio = self._tract(voice, plan.formants)
        audio += self._friction(rng, plan, grid, frames)
        fade = min(len(audio) // 4, round(0.01 * self.sample_rate))
        audio[:fade] *= np.linspace(0, 1, fade)
        audio[-fade:] *= np.linspace(1, 0, fade)
        audio *= rng.uniform(*_PEAK_RANGE) / np.abs(audio).max()
        return (audio + _FLOOR_LEVEL * rng.uniform(-1, 1, samples)).clip(-1, 1).astype(np.float32)

    def pitch(self, index: int) -> np.ndarray:
        """True F0 of an utterance in Hz (F,) float32, frame i at 10 * i ms; 0 where the voice is off."""
        _, plan = self._plan(index)
        return np.where(plan.voicing > 0.1, plan.f0, 0.0)[:: round(0.01 / _FRAME_SECONDS)].astype(np.float32)

    def _voice(self, index: int) -> _Speaker:
        number = index % self.speakers
        rng = np.random.default_rng([self.seed, 1, number])
        height = (number / self.speakers + rng.uniform(0, 0.5 / self.speakers)) % 1
        return _Speaker(90 * 2.5**height, 1 + 0.2 * height, rng.uniform(0.02, 0.08), rng.uniform(0.85, 1.15))

    def _plan(self, index: int) -> tuple[np.random.Generator, _Plan]:
        """Lay out syllables and pauses frame by frame; the generator then drives the noise sources."""
        voice = self._voice(index)
        rng = np.random.default_rng([self.seed, 0, index])
        frames = round(rng.uniform(*self.seconds) / _FRAME_SECONDS)
        plan = _Plan.silent(frames, voice.breath)
        position = int(rng.integers(2, 12))
        vowel = _VOWELS[rng.integers(len(_VOWELS))]
        while position < frames:
            following = _VOWELS[rng.integers(len(_VOWELS))]
            position = plan.add_vowel(rng, position, vowel * voice.tract, following * voice.tract, voice.rate)
            consonant = str(rng.choice(["none", "fricative", "plosive", "pause"], p=[0.3, 0.36, 0.26, 0.08]))
            position = plan.add_consonant(rng, consonant, position, voice.rate)
            vowel = following
        plan.add_intonation(rng, voice.f0)
        plan.formants[:, 3:] = _UPPER_FORMANTS * voice.tract
        return rng, plan

    def _glottis(self, f0: np.ndarray, rng: np.random.Generator, breath: float) -> np.ndarray:
        """Derivative of a polynomial glottal pulse (Klatt and Klatt, 1990, eq. 1), plus noise while it is open."""
        phase = np.cumsum(f0 / self.sample_rate) % 1.0
        opening = phase / 0.6
        pulse = np.where(opening < 1, 2 * opening - 3 * opening**2, 0.0)
        return pulse + breath * rng.standard_normal(len(f0)) * (opening < 1)

    def _tract(self, source: np.ndarray, formants: np.ndarray) -> np.ndarray:
        """Cascade of second-order resonators of unit gain at 0 Hz, retuned every 5 ms with their state kept."""
        usable = formants.max(axis=0) < 0.45 * self.sample_rate
        radius = np.exp(-np.pi * _BANDWIDTHS[usable] / self.sample_rate)
        angle = 2 * np.pi * formants[:, usable] / self.sample_rate
        sections = np.zeros((len(formants), int(usable.sum()), 6))
        sections[:, :, 3] = 1
        sections[:, :, 4] = -2 * radius * np.cos(angle)
        sections[:, :, 5] = radius**2
        sections[:, :, 0] = sections[:, :, 3:].sum(axis=-1)
        state = np.zeros((sections.shape[1], 2))
        output = np.empty_like(source)
        edges = np.round(np.arange(len(formants) + 1) * _FRAME_SECONDS * self.sample_rate).astype(int)
        edges[-1] = len(source)
        for frame, (first, last) in enumerate(pairwise(edges)):
            output[first:last], state = scipy.signal.sosfilt(sections[frame], source[first:last], zi=state)
        return output

    def _friction(self, rng: np.random.Generator, plan: _Plan, grid: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """One band of noise per kind of fricative, switched by its envelope."""
        total = np.zeros(len(grid))
        for kind, (centre, bandwidth, level) in enumerate(_FRICATIVES):
            if not plan.friction[kind].any():
                continue
            radius = np.exp(-np.pi * min(bandwidth, 0.2 * self.sample_rate) / self.sample_rate)
            angle = 2 * np.pi * min(centre, 0.42 * self.sample_rate) / self.sample_rate
            # Zeros at 0 Hz and at half the rate; the gain makes the output's variance about that of the input.
            section = [[1, 0, -1, 1, -2 * radius * np.cos(angle), radius**2]]
            noise = scipy.signal.sosfilt(section, rng.standard_normal(len(grid))) * np.sqrt((1 - radius**2) / 2)
            total += level * noise * np.interp(grid, frames, plan.friction[kind])
        return total


@functools.lru_cache(maxsize=64)
def _render(speech: SyntheticSpeech, index: int) -> np.ndarray:
    return speech._render(index)


class EmbeddedCorpus(MemoryCorpus):
    """The speech-like corpus made in code, in memory.

    Args:
        utterances: how many there are, >= 1.
        sample_rate: in Hz.
        seed: equal arguments give equal clips.
    """

    def __init__(self, utterances: int, sample_rate: int, seed: int = 0) -> None:
        speech = SyntheticSpeech(sample_rate=sample_rate, seed=seed)
        clips = [speech.utterance(index) for index in range(utterances)]
        super().__init__([f"embedded{index:04d}" for index in range(utterances)], clips)


def write_synthetic_corpus(
    folder: str | os.PathLike[str],
    utterances: int,
    sample_rate: int = 22050,
    seconds: tuple[float, float] = (1.5, 4.0),
) -> list[Path]:
    """Write utterances in the layout of LJSpeech: `wavs/<id>.wav` (16 bit) and `metadata.csv` (`id|text|text`)."""
    corpus = SyntheticSpeech(sample_rate, seconds=seconds)
    paths, lines, folder = [], [], Path(folder)
    for index in range(utterances):
        speaker = index % corpus.speakers + 1
        name = f"SP{speaker:03d}-{index + 1:04d}"
        text = f"Utterance {index + 1} of speaker {speaker}."
        paths.append(folder / "wavs" / f"{name}.wav")
        lines.append(f"{name}|{text}|{text}\n")
        files.write(paths[-1], corpus.utterance(index), sample_rate)
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return paths
