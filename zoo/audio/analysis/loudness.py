"""Loudness of speech after ITU-R BS.1770, measured block by block: pauses count neither for nor against a voice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import scipy

from zoo.common.checks import check_at_least

_STEP_SECONDS, _STEPS = 0.1, 4  # gating blocks of 400 ms that overlap by 75 %
_OFFSET = -0.691  # LUFS of a mean square of 1
_ABSOLUTE_GATE = -70.0  # LUFS
_RELATIVE_GATE = -10.0  # LU below the mean of what passes the absolute gate
# The analogue prototypes behind the tabulated 48 kHz filters: frequency in Hz, quality, gain in dB.
_SHELF = (1681.974450955533, 0.7071752369554196, 3.999843853973347)
_HIGH_PASS = (38.13547087602444, 0.5003270373238773)
_LEAST_RATE = 8000  # below it the shelf reaches the Nyquist frequency


class LoudnessMeter:
    """Measures each channel of a stream on its own.

    Args:
        sample_rate: Hz, >= 8000.

    Source: ITU-R BS.1770-4, annex 1 (K-weighting, two gates), without the weights of surround channels.
    """

    def __init__(self, sample_rate: int, channels: int) -> None:
        check_at_least(_LEAST_RATE, sample_rate=sample_rate)
        self._sections = k_weighting(sample_rate)
        self._state = np.zeros((len(self._sections), channels, 2))
        self._step = round(_STEP_SECONDS * sample_rate)
        self._rest = np.zeros((channels, 0))
        self._powers: list[np.ndarray] = []

    def measure_stream(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Measure the pieces (C, n) of a stream, and yield them."""
        for block in filter(np.size, blocks):
            weighted, self._state = scipy.signal.sosfilt(self._sections, block, axis=-1, zi=self._state)
            samples = np.concatenate([self._rest, weighted], axis=1)
            length = samples.shape[1] // self._step * self._step
            steps = samples[:, :length].reshape(len(samples), -1, self._step)
            self._powers += list(np.square(steps).mean(axis=2).T)
            self._rest = samples[:, length:]
            yield block

    def loudness(self) -> np.ndarray:
        """Loudness of the stream so far, (C,) LUFS; -inf for digital silence.

        Where all is quieter than the absolute gate, and in clips of less than 400 ms, the mean of everything.
        """
        powers = np.array(self._powers)
        if len(powers) < _STEPS:
            parts = [*self._powers] + ([np.square(self._rest).mean(axis=1)] if self._rest.shape[1] else [])
            blocks = np.mean(parts, axis=0)[None] if parts else np.zeros((1, len(self._rest)))
        else:
            blocks = np.lib.stride_tricks.sliding_window_view(powers, _STEPS, axis=0).mean(axis=-1)
        return np.array([_gated(channel) for channel in blocks.T])


def _gated(powers: np.ndarray) -> float:
    """LUFS of the blocks that pass both gates."""
    gated = powers[powers > 10 ** ((_ABSOLUTE_GATE - _OFFSET) / 10)]
    gated = gated if len(gated) else powers
    power = gated[gated >= gated.mean() * 10 ** (_RELATIVE_GATE / 10)].mean()
    return _OFFSET + 10 * math.log10(power) if power > 0 else -math.inf


def k_weighting(sample_rate: int) -> np.ndarray:
    """Compute the second-order sections (2, 6) of shelf and high-pass by the bilinear transform."""
    frequency, quality, gain_db = _SHELF
    k = math.tan(math.pi * frequency / sample_rate)
    high = 10 ** (gain_db / 20)
    band = high**0.4996667741545416
    a0 = 1 + k / quality + k * k
    zeros = [high + band * k / quality + k * k, 2 * (k * k - high), high - band * k / quality + k * k]
    shelf = [*(value / a0 for value in zeros), 1.0, 2 * (k * k - 1) / a0, (1 - k / quality + k * k) / a0]
    frequency, quality = _HIGH_PASS
    k = math.tan(math.pi * frequency / sample_rate)
    a0 = 1 + k / quality + k * k
    high_pass = [1.0, -2.0, 1.0, 1.0, 2 * (k * k - 1) / a0, (1 - k / quality + k * k) / a0]
    return np.array([shelf, high_pass])
