"""What rooms, microphones and lines do to a signal (T,) float32: functions whose output is aligned with the input."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import scipy

from zoo.audio.io.resample import match_array_length, resample_array

PACKET_SECONDS = 0.02  # one RTP packet of the usual speech codecs
SILENCE = 1e-4  # -80 dBFS: a crop whose peak lies below is three steps of 16 bits, no noise to be amplified
_ORDER = 8  # Butterworth: 48 dB per octave, about the anti-alias filter of a narrow-band line
_ONSET = 0.5  # share of the peak from which on a RIR's direct path is looked for
_ONSET_SECONDS = 0.001  # the direct impulse peaks within this time of its onset
_BEFORE_SECONDS = 0.002  # kept before the direct path: the rise of a band-limited impulse
_TAIL_DB = -60.0  # energy of the part of the tail that is cut off, below that of the whole response

Fill = Literal["zero", "repeat"]
Band = Literal["filter", "resample"]


def power(audio: np.ndarray) -> float:
    """Mean square of a signal, computed in float64."""
    return float(np.mean(np.square(audio, dtype=np.float64)))


def add_noise(speech: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """Add noise at a signal-to-noise ratio of mean powers; noise of another length, silent or not finite is refused."""
    if speech.shape != noise.shape:
        raise ValueError(f"speech {speech.shape} and noise {noise.shape} must have equal shapes")
    loudness = power(noise)
    if not 0 < loudness < math.inf:
        raise ValueError(f"noise of power {loudness} cannot be set to an SNR; choose a crop that is not silent")
    gain = math.sqrt(power(speech) / loudness * 10 ** (-snr_db / 10))
    return (speech + gain * noise).astype(np.float32)


def find_direct_path(rir: np.ndarray, sample_rate: int) -> int:
    """Find the first local peak of a room response that reaches half of the largest: reflections may be louder."""
    magnitude = np.abs(rir)
    onset = int(np.argmax(magnitude >= _ONSET * magnitude.max()))
    return onset + int(np.argmax(magnitude[onset : onset + 1 + round(_ONSET_SECONDS * sample_rate)]))


def reverberate(speech: np.ndarray, rir: np.ndarray, sample_rate: int) -> np.ndarray:
    """Convolve with a room impulse response (N,) so that the direct sound stays where the speech was.

    The direct-path delay is removed, the sign of the direct sound is made positive, the end of the tail is cut, and the
    result has the RMS of the input. A response that is not (N,), silent or not finite is a ValueError.
    """
    rir = np.asarray(rir, dtype=np.float32)
    if rir.ndim != 1 or not np.isfinite(rir).all() or not rir.any():
        raise ValueError(f"a room impulse response must be (N,), finite and not silent; got shape {rir.shape}")
    rir = rir / np.abs(rir).max()
    arrival = find_direct_path(rir, sample_rate)
    before = min(arrival, round(_BEFORE_SECONDS * sample_rate))
    response = np.copysign(1, rir[arrival]) * rir[arrival - before :]
    remaining = np.cumsum(np.square(response[::-1], dtype=np.float64))[::-1]
    response = response[: int(np.count_nonzero(remaining > remaining[0] * 10 ** (_TAIL_DB / 10)))]
    wet = match_array_length(scipy.signal.oaconvolve(speech, response)[before:], len(speech))
    loudness = power(wet)
    return (wet * math.sqrt(power(speech) / loudness)).astype(np.float32) if loudness > 0 else np.zeros_like(speech)


def clip(speech: np.ndarray, drive: float, soft: bool) -> np.ndarray:
    """Overdrive a signal: its peak exceeds the limit, hard or by tanh, by the factor `drive` >= 1."""
    limit = float(np.abs(speech).max()) / drive
    if limit == 0:
        return speech
    return (limit * np.tanh(speech / limit)).astype(np.float32) if soft else np.clip(speech, -limit, limit)


def lowpass(speech: np.ndarray, sample_rate: int, cutoff_hz: float, how: Band) -> np.ndarray:
    """Limit the band without a delay to a cutoff below sample_rate / 2.

    Args:
        how: `filter`, the magnitude of a Butterworth filter of order 8 at zero phase; or `resample`, down to
            2 * cutoff_hz and back.
    """
    if how == "resample":
        narrow = round(2 * cutoff_hz)
        padded = np.pad(speech, (0, sample_rate // 100))  # so that one sample has a counterpart at the lower rate
        return match_array_length(
            resample_array(resample_array(padded, sample_rate, narrow), narrow, sample_rate), len(speech)
        )
    size = scipy.fft.next_fast_len(len(speech) + sample_rate // 50, real=True)  # the response has died away by then
    frequencies = np.arange(size // 2 + 1) * (sample_rate / size)
    gain = 1 / np.sqrt(1 + (frequencies / cutoff_hz) ** (2 * _ORDER))
    return scipy.fft.irfft(scipy.fft.rfft(speech, size) * gain.astype(np.float32), size)[: len(speech)]


def sample_packet_losses(packets: int, rate: float, burst_packets: float, rng: np.random.Generator) -> np.ndarray:
    """Sample which packets of a line get lost, (packets,) bool, by a two-state Markov chain.

    Args:
        rate: share of packets lost in the long run, 0 <= rate < 1.
        burst_packets: mean length of a run of lost packets, >= 1.

    Source: Gilbert, "Capacity of a burst-noise channel" (1960), with certain loss in the bad state.
    """
    end = 1 / burst_packets
    begin = min(1.0, end * rate / (1 - rate))
    lost = np.empty(packets, dtype=bool)
    state = False
    for index, draw in enumerate(rng.random(packets)):
        state = bool(draw < (rate if index == 0 else 1 - end if state else begin))
        lost[index] = state
    return lost


def drop_packets(speech: np.ndarray, sample_rate: int, lost: np.ndarray, fill: Fill) -> np.ndarray:
    """Replace packets of 20 ms where `lost` (ceil(T / packet),) is true, by zeros or the last packet that arrived."""
    size = packet_samples(sample_rate)
    packets = match_array_length(speech, len(lost) * size).reshape(len(lost), size)
    if fill == "zero":
        return np.where(lost[:, None], np.float32(0), packets).reshape(-1)[: len(speech)]
    latest = np.maximum.accumulate(np.where(lost, -1, np.arange(len(lost))))
    return np.where(latest[:, None] < 0, np.float32(0), packets[latest]).reshape(-1)[: len(speech)]


def packet_samples(sample_rate: int) -> int:
    """Samples of one packet of 20 ms, at least 1."""
    return max(1, round(PACKET_SECONDS * sample_rate))
