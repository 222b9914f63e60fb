"""What follows the vocoder: the known band is put back, by a smooth cross-over in the STFT domain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from zoo.audio.chunking import Chunker, cut, fit
from zoo.audiosr.cutoff import spectrum

N_FFT = 2048
HOP_LENGTH = 512  # samples
TRANSITION = 1 / 16  # of the cut-off: width of the cross-over
LEAST_BINS = 4  # of the cross-over: the window blurs over as many
MOST_MATCH = 2.0  # 6 dB, by which the generated band is raised or lowered; more is no error of level

_WINDOW, _OVERLAP = 256, 16  # units of one hop; the context of 6 of them is longer than a frame


def crossover(cutoff_hz: float, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Gains of the known band and of the generated one, over frequency.

    All below the cut-off stays; above it the input fades out like a cosine and the generated signal fades in like a
    sine. The two have unrelated phases there, so the energy is kept.

    Args:
        cutoff_hz: Hz, >= 0.
        sample_rate: Hz.

    Returns:
        Two arrays (1025,) float32 whose squares sum to one.
    """
    spacing = sample_rate / N_FFT
    width = max(TRANSITION * cutoff_hz, LEAST_BINS * spacing)
    place = np.clip((np.arange(N_FFT // 2 + 1) * spacing - cutoff_hz) / width, 0.0, 1.0) * (math.pi / 2)
    high = np.where(place == math.pi / 2, 1.0, np.sin(place))
    low = np.where(place == math.pi / 2, 0.0, np.cos(place))
    return low.astype(np.float32), high.astype(np.float32)


def lowpass_gains(cutoff_hz: float, sample_rate: int) -> np.ndarray:
    """Gains (1025,) float32 of a low-pass that has faded to nothing at the cut-off, in Hz."""
    spacing = sample_rate / N_FFT
    width = max(TRANSITION * cutoff_hz, LEAST_BINS * spacing)
    return crossover(max(cutoff_hz - width, 0.0), sample_rate)[0]


def combined(
    streams: Sequence[Iterable[np.ndarray]], gains: Sequence[np.ndarray], samples: int
) -> Iterator[np.ndarray]:
    """Filter equally long streams with gains over frequency and add them up, in constant memory.

    Args:
        streams: of pieces (C, n) float32; the pieces of each may be of any length.
        gains: (1025,) of each stream.
        samples: length of the streams.

    Yields:
        Pieces (C, n) float32, `samples` in total; without delay.
    """
    count = len(streams)
    units = -(-samples // HOP_LENGTH)
    spans = [(start, min(start + _WINDOW, units)) for start in range(0, units, _WINDOW)]
    factors = torch.from_numpy(np.stack(gains))[:, :, None]
    window = torch.hann_window(N_FFT)

    def interleaved() -> Iterator[np.ndarray]:
        for pieces in zip(*(cut(stream, spans, HOP_LENGTH) for stream in streams), strict=True):
            hops = np.stack([piece.reshape(len(piece), -1, HOP_LENGTH) for piece in pieces], axis=2)
            yield hops.reshape(len(hops), -1)

    def compute(chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        hops = torch.from_numpy(np.ascontiguousarray(chunks)).unflatten(1, (-1, count, HOP_LENGTH))
        signals = hops.permute(0, 2, 1, 3).flatten(2)
        length = signals.shape[-1]
        images = torch.stft(
            signals.flatten(0, 1), N_FFT, HOP_LENGTH, window=window, pad_mode="constant", return_complex=True
        )
        mixed = (images.unflatten(0, signals.shape[:2]) * factors).sum(dim=1)
        return torch.istft(mixed, N_FFT, HOP_LENGTH, window=window, length=length).numpy()

    chunker = Chunker(_WINDOW, _OVERLAP, count * HOP_LENGTH)
    yield from fit(chunker.run(interleaved(), units * count * HOP_LENGTH, compute), samples)


def summed_spectrum(audio: np.ndarray) -> np.ndarray:
    """Magnitude per frequency (1025,), summed over time and channels of a piece (C, n); sums of pieces add up."""
    return np.sum([spectrum(channel) for channel in audio], axis=0)


def match(known: np.ndarray, generated: np.ndarray, cutoff_hz: float, sample_rate: int) -> float:
    """The factor that brings the generated signal to the level of the input, in the octave below the cut-off.

    Args:
        known: summed magnitudes (1025,) of the input.
        generated: those of the generated signal.
        cutoff_hz: Hz.
        sample_rate: Hz.

    Returns:
        A factor between 1/2 and 2; 1 where the octave holds nothing.
    """
    last = round(cutoff_hz / sample_rate * 2 * (len(known) - 1))
    band = slice(last // 2, last)
    wanted, found = float(known[band].sum()), float(generated[band].sum())
    if wanted <= 0 or found <= 0:
        return 1.0
    return min(max(wanted / found, 1 / MOST_MATCH), MOST_MATCH)
