"""The cross-over of the input's band and the generated one, and spectra of streams for cut-off and level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from zoo.audio.io.chunking import Chunker, match_length, split_windows
from zoo.audiosr.data.cutoff import N_FFT, frame_magnitudes

HOP_LENGTH = 512  # samples
SPECTRUM_HOP = 1024  # samples, of `StreamSpectrum`
TRANSITION = 1 / 16  # of the cut-off: width of the cross-over
MIN_BINS = 4  # of the cross-over: the window blurs over as many
MAX_MATCH = 2.0  # 6 dB, by which the generated band is raised or lowered; more is no error of level

_WINDOW, _OVERLAP = 256, 16  # units of one hop; the context of 6 of them is longer than a frame


def crossover_gains(cutoff_hz: float, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return gains (1025,) of the input and of the generated signal over frequency; their squares sum to one.

    Above the cut-off the input fades out like a cosine and the generated signal fades in like a sine: the two have
    unrelated phases there, so the energy stays.
    """
    spacing = sample_rate / N_FFT
    above_hz = np.arange(N_FFT // 2 + 1) * spacing - cutoff_hz
    phase = np.clip(above_hz / _width(cutoff_hz, spacing), 0.0, 1.0) * (math.pi / 2)
    low = np.where(phase == math.pi / 2, 0.0, np.cos(phase))  # which is not exactly 0 there
    return low.astype(np.float32), np.sin(phase).astype(np.float32)


def lowpass_gains(cutoff_hz: float, sample_rate: int) -> np.ndarray:
    """Return gains (1025,) float32 of a low-pass that is 0 from the cut-off on, in Hz."""
    return crossover_gains(max(cutoff_hz - _width(cutoff_hz, sample_rate / N_FFT), 0.0), sample_rate)[0]


def _width(cutoff_hz: float, spacing: float) -> float:
    return max(TRANSITION * cutoff_hz, MIN_BINS * spacing)


def filter_and_sum(
    streams: Sequence[Iterable[np.ndarray]], gains: Sequence[np.ndarray], samples: int
) -> Iterator[np.ndarray]:
    """Filter streams of equal length in the STFT domain and add them up, in constant memory and without delay.

    Args:
        streams: of pieces (C, n) float32; the pieces of each may have any length.
        gains: (1025,) over frequency of each stream.
        samples: length of the streams.
    """
    count = len(streams)
    units = -(-samples // HOP_LENGTH)
    spans = [(start, min(start + _WINDOW, units)) for start in range(0, units, _WINDOW)]
    factors = torch.from_numpy(np.stack(gains))[:, :, None]  # (streams, 1025, 1)

    def interleave() -> Iterator[np.ndarray]:
        for pieces in zip(*(split_windows(stream, spans, HOP_LENGTH) for stream in streams), strict=True):
            hops = [piece.reshape(len(piece), -1, HOP_LENGTH) for piece in pieces]
            yield np.concatenate(hops, axis=2).reshape(len(hops[0]), -1)

    def compute(chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        hops = torch.from_numpy(np.ascontiguousarray(chunks)).unflatten(1, (-1, count, HOP_LENGTH))
        signals = hops.transpose(1, 2).flatten(2)  # (N, streams, T)
        mixed = (stft(signals.flatten(0, 1)).unflatten(0, signals.shape[:2]) * factors).sum(dim=1)
        return istft(mixed, signals.shape[-1]).numpy()

    chunker = Chunker(_WINDOW, _OVERLAP, count * HOP_LENGTH)
    yield from match_length(chunker.process(interleave(), units * count * HOP_LENGTH, compute), samples)


def stft(audio: Tensor) -> Tensor:
    """Compute the spectra (..., 1025, F) of audio (..., T), on the CPU; `istft` inverts them."""
    window = torch.hann_window(N_FFT)
    return torch.stft(audio, N_FFT, HOP_LENGTH, window=window, pad_mode="constant", return_complex=True)


def istft(image: Tensor, samples: int) -> Tensor:
    """Compute the audio (..., samples) of spectra (..., 1025, F)."""
    return torch.istft(image, N_FFT, HOP_LENGTH, window=torch.hann_window(N_FFT), length=samples)


def match_level(reference: np.ndarray, generated: np.ndarray, cutoff_hz: float, sample_rate: int) -> float:
    """Return the factor, 1/2 to 2, that brings a generated signal to a reference's level in the octave below a cut-off.

    Magnitudes are (1025,), means over time. The factor is 1 where the octave holds nothing.
    """
    last = round(cutoff_hz / sample_rate * 2 * (len(reference) - 1))
    levels = [float(magnitudes[last // 2 : last].sum()) for magnitudes in (reference, generated)]
    if min(levels) <= 0:
        return 1.0
    return min(max(levels[0] / levels[1], 1 / MAX_MATCH), MAX_MATCH)


class StreamSpectrum:
    """Sums the magnitudes of a stream over time in constant memory, means over its channels.

    Attributes:
        total: (1025,) float64; a frame that the end cuts off counts only where it is the first.
    """

    def __init__(self) -> None:
        self.total = np.zeros(N_FFT // 2 + 1)
        self._frames = 0
        self._rest = np.zeros((1, 0), np.float32)  # of each channel, what the frames have not passed yet

    def observe(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Pass a stream of pieces (C, n) on."""
        for piece in pieces:
            yield piece
            self._add(piece.astype(np.float32, copy=False))
        if not self._frames:
            self._add(np.zeros((len(self._rest), N_FFT - self._rest.shape[1]), np.float32))

    def _add(self, piece: np.ndarray) -> None:
        audio = np.concatenate([np.broadcast_to(self._rest, (len(piece), self._rest.shape[1])), piece], axis=1)
        count = max(0, (audio.shape[1] - N_FFT) // SPECTRUM_HOP + 1)
        self._rest = audio[:, count * SPECTRUM_HOP :]
        self._frames += count
        if count:
            for blocks in zip(*(frame_magnitudes(channel, SPECTRUM_HOP) for channel in audio), strict=True):
                self.total += np.mean(blocks, axis=0).sum(axis=0)
