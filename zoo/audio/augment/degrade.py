"""Clean speech in, degraded speech of equal length and alignment out, with the details of what was done to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from zoo.audio.augment import codecs as coding
from zoo.audio.augment import effects
from zoo.audio.augment.rooms import crop_noise
from zoo.audio.corpora.corpus import Corpus
from zoo.common.checks import check_at_least, check_one_of, check_within

Step = Literal["noise", "reverb", "clipping", "lowpass", "packet_loss", "codec"]
Range = tuple[float, float]
Details = dict[str, Any]
_Outcome = tuple[np.ndarray, Details]  # a signal, and what was done to it: nothing where the details are empty

_HALF = 0.5  # of the items: clipped softly, limited in band by resampling, with lost packets repeated
_BURST_PACKETS = 2.0  # mean length of a run of lost packets
_NOISE_TRIES = 4  # crops drawn before noise that is silent everywhere is given up
_NYQUIST_SHARE = 0.95  # of half the sample rate: a cutoff above it would change nothing

# A2's `preprocess` recipe; its Vorbis quality -1 lies outside libsndfile's range.
_MIIPHER2_CODECS: dict[str, list[float]] = {"mp3": [16, 32, 64, 128], "vorbis": [0, 1], "alaw": []}
_LINE_CODECS: dict[str, list[float]] = {"opus": [8, 16, 24, 64], "alaw": [8000], "mulaw": [8000]}


def _check_span(name: str, span: Range, least: float, most: float) -> None:
    if len(span) != 2 or not least <= span[0] <= span[1] <= most:
        raise ValueError(f"{name} must be lowest, highest within {least:g}..{most:g}, got {tuple(span)}")


@dataclass(frozen=True)
class DegradationRanges:
    """Strength of each step of a `Degrader`.

    Args:
        snr_db: lowest and highest signal-to-noise ratio in dB.
        drive: lowest and highest peak over the clipping limit, >= 1.
        cutoff_hz: lowest and highest limit of the band; what lies above half the sample rate is not drawn.
        packet_loss: lowest and highest share of 20 ms packets lost, 0..0.99.
        codecs: settings by codec, drawn evenly among codecs and then among settings (see `encode_decode`); an empty
            list means the codec's usual one. None: MP3, Vorbis, Opus, A-law, mu-law.
    """

    snr_db: Range = (-5.0, 30.0)
    drive: Range = (1.2, 2.0)
    cutoff_hz: Range = (2000.0, 7000.0)
    packet_loss: Range = (0.02, 0.15)
    codecs: Mapping[str, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        _check_span("snr_db", self.snr_db, -100, 100)  # more decibels exceed float32
        _check_span("drive", self.drive, 1, 1e3)  # a limit above the peak clips nothing
        _check_span("cutoff_hz", self.cutoff_hz, 1, 1e6)
        _check_span("packet_loss", self.packet_loss, 0, 0.99)

    @property
    def codec_settings(self) -> Mapping[str, Sequence[float]]:
        """The codecs, those by default included."""
        return {**_MIIPHER2_CODECS, **_LINE_CODECS} if self.codecs is None else self.codecs


@dataclass(frozen=True)
class Degraded:
    """A degraded signal and what was done to it.

    Details are plain values: `steps` in the order done, `skipped` ones without effect, `gain`, `polarity` and
    `peak_scale`, and those of each step (`snr_db`, `noise`, `rir`, `drive`, `cutoff_hz`, `lost`, `codec`).
    """

    audio: np.ndarray  # (T,) float32 in [-1, 1], as long as the clean signal and aligned with it
    details: Details


_DEFAULT_RANGES = DegradationRanges()


class Degrader:
    """Degrades speech at random; equal arguments and an equal generator state give equal samples.

    Two published recipes are available: `Degrader.miipher2_offline()` and `Degrader.open_miipher()`.

    Args:
        steps: what may be done, each at most once, in this order: `[noise, reverb]` puts the noise into the room,
            `[reverb, noise]` behind it.
        probabilities: share of the items that get a step, 0..1; 1 for steps not named.
        order: `as_listed`, or `random` for a new order per item.
        max_steps: most steps per item: of those drawn by `probabilities` a uniform number from 1 to this is kept.
        untouched: share of the items that pass unchanged, 0..1.
        gain: lowest and highest linear gain ahead of all steps; None leaves the level.
        polarity: probability of a flipped sign.
        ranges: strength of each step.
    """

    def __init__(
        self,
        steps: Sequence[Step] = ("noise", "reverb", "codec"),
        probabilities: Mapping[str, float] | None = None,
        order: Literal["as_listed", "random"] = "as_listed",
        max_steps: int | None = None,
        untouched: float = 0.0,
        gain: Range | None = None,
        polarity: float = 0.0,
        ranges: DegradationRanges = _DEFAULT_RANGES,
    ) -> None:
        self.steps: tuple[str, ...] = tuple(steps)
        self.probabilities = dict(probabilities or {})
        self.order = order
        self.max_steps = max_steps
        self.untouched = untouched
        self.gain = gain
        self.polarity = polarity
        self.ranges = ranges
        unknown = sorted({*self.steps, *self.probabilities} - set(get_args(Step)))
        if unknown or len(set(self.steps)) < len(self.steps):
            raise ValueError(f"steps and probabilities: expected each of {', '.join(get_args(Step))} once, got {steps}")
        if idle := sorted(set(self.probabilities) - set(self.steps)):
            raise ValueError(f"probabilities name {', '.join(idle)}, which `steps` does not list; add or remove it")
        check_one_of(("as_listed", "random"), order=order)
        check_at_least(1, max_steps=1 if max_steps is None else max_steps)
        shares = {f"probabilities.{step}": share for step, share in self.probabilities.items()}
        check_within(0, 1, untouched=untouched, polarity=polarity, **shares)
        if gain is not None:
            _check_span("gain", gain, 1e-3, 1e3)
        if "codec" in self.steps:
            check_at_least(1, codecs=len(ranges.codec_settings))
            for codec, settings in ranges.codec_settings.items():
                coding.validate_codec(codec)
                for setting in settings:
                    coding.validate_codec(codec, setting)

    @classmethod
    def miipher2_offline(cls) -> Degrader:
        """The offline recipe of Atotti's Miipher-2: noise, then reverb for half of the items, then always a codec."""
        ranges = DegradationRanges(snr_db=(5.0, 30.0), codecs=_MIIPHER2_CODECS)
        return cls(("noise", "reverb", "codec"), {"reverb": 0.5}, ranges=ranges)

    @classmethod
    def open_miipher(cls) -> Degrader:
        """The on-line recipe of Open-Miipher-2: up to 3 of 4 steps in random order, 5 % of the items untouched."""
        return cls(
            ("clipping", "noise", "reverb", "lowpass"), None, "random", 3, 0.05, (0.25, 1.0), 0.5,
            DegradationRanges(snr_db=(5.0, 30.0)),
        )  # fmt: skip

    def degrade(
        self,
        clean: np.ndarray,
        sample_rate: int,
        rng: np.random.Generator,
        noises: Corpus | None = None,
        rirs: Sequence[np.ndarray] | None = None,
    ) -> Degraded:
        """Degrade one signal; a silent one gets no noise.

        Args:
            clean: (T,) float32, T >= 1, finite.
            sample_rate: of the speech, the noises and the responses, in Hz.
            noises: noise clips, for the step `noise`. Silent crops are passed over.
            rirs: room impulse responses (N,) float32 with their delay, for the step `reverb`.
        """
        audio = np.array(clean, dtype=np.float32)
        if audio.ndim != 1 or len(audio) == 0 or not np.isfinite(audio).all():
            raise ValueError(f"expected finite audio (T,) with T >= 1, got shape {audio.shape}")
        self._require("noise", "noises", noises is not None and len(noises.names) > 0)
        self._require("reverb", "rirs", rirs is not None and len(rirs) > 0)
        details: Details = {"steps": [], "skipped": [], "gain": 1.0, "polarity": 1, "peak_scale": 1.0}
        if rng.random() >= self.untouched:
            if self.gain is not None:
                details["gain"] = float(rng.uniform(*self.gain))
            if rng.random() < self.polarity:
                details["polarity"] = -1
            audio = audio * np.float32(details["gain"] * details["polarity"])
            for step in self._sample_steps(rng):
                audio, done = self._apply_step(step, audio, sample_rate, rng, noises, rirs)
                details["steps" if done else "skipped"].append(step)
                details.update(done)
        peak = float(np.abs(audio).max())
        if peak > 1:
            details["peak_scale"] = 1 / peak
            audio = np.clip(audio / np.float32(peak), -1, 1)
        return Degraded(audio, details)

    def _sample_steps(self, rng: np.random.Generator) -> list[str]:
        steps = [step for step in self.steps if rng.random() < self.probabilities.get(step, 1.0)]
        indices = rng.permutation(len(steps))
        if self.max_steps is not None:
            indices = indices[: rng.integers(1, self.max_steps + 1)]
        return [steps[index] for index in (indices if self.order == "random" else sorted(indices))]

    def _apply_step(
        self,
        step: str,
        audio: np.ndarray,
        sample_rate: int,
        rng: np.random.Generator,
        noises: Corpus | None,
        rirs: Sequence[np.ndarray] | None,
    ) -> _Outcome:
        ranges = self.ranges
        if step == "noise" and noises is not None:
            return self._add_noise(audio, rng, noises)
        if step == "reverb" and rirs is not None:
            rir = int(rng.integers(len(rirs)))
            return effects.reverberate(audio, rirs[rir], sample_rate), {"rir": rir}
        if step == "clipping":
            drive, soft = float(rng.uniform(*ranges.drive)), bool(rng.random() < _HALF)
            return effects.clip(audio, drive, soft), {"drive": drive, "clipping": "soft" if soft else "hard"}
        if step == "lowpass":
            return self._limit_band(audio, sample_rate, rng)
        if step == "packet_loss":
            return self._drop_packets(audio, sample_rate, rng)
        codec, settings = list(ranges.codec_settings.items())[int(rng.integers(len(ranges.codec_settings)))]
        setting = float(settings[int(rng.integers(len(settings)))]) if settings else None
        return coding.encode_decode(audio, sample_rate, codec, setting), {"codec": codec, "codec_setting": setting}

    def _add_noise(self, audio: np.ndarray, rng: np.random.Generator, noises: Corpus) -> _Outcome:
        snr_db = float(rng.uniform(*self.ranges.snr_db))
        for _ in range(_NOISE_TRIES if audio.any() else 0):
            index = int(rng.integers(len(noises.names)))
            noise, start = crop_noise(noises, index, len(audio), rng)
            if np.isfinite(noise).all() and np.abs(noise).max() > effects.SILENCE:
                details = {"snr_db": snr_db, "noise": str(noises.names[index]), "noise_start": start}
                return effects.add_noise(audio, noise, snr_db), details
        return audio, {}

    def _limit_band(self, audio: np.ndarray, sample_rate: int, rng: np.random.Generator) -> _Outcome:
        low, high = self.ranges.cutoff_hz[0], min(self.ranges.cutoff_hz[1], _NYQUIST_SHARE * sample_rate / 2)
        if low > high:
            return audio, {}
        cutoff_hz = float(rng.uniform(low, high))
        how: effects.Band = "resample" if rng.random() < _HALF else "filter"
        return effects.lowpass(audio, sample_rate, cutoff_hz, how), {"cutoff_hz": cutoff_hz, "lowpass": how}

    def _drop_packets(self, audio: np.ndarray, sample_rate: int, rng: np.random.Generator) -> _Outcome:
        packets = -(-len(audio) // effects.packet_samples(sample_rate))
        lost = effects.sample_packet_losses(packets, float(rng.uniform(*self.ranges.packet_loss)), _BURST_PACKETS, rng)
        fill: effects.Fill = "repeat" if rng.random() < _HALF else "zero"
        if not lost.any():
            return audio, {}
        return effects.drop_packets(audio, sample_rate, lost, fill), {"lost": float(lost.mean()), "fill": fill}

    def _require(self, step: str, argument: str, is_present: bool) -> None:
        if not is_present and step in self.steps and self.probabilities.get(step, 1.0) > 0:
            raise ValueError(f"the step {step!r} needs {argument}, got none; pass some or take it from `steps`")
