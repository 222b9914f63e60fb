"""What follows the vocoder: the known band is put back, by a smooth cross-over in the STFT domain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from zoo.audio.io.chunking import Chunker, match_length, split_windows
from zoo.audiosr.data.cutoff import HOP_LENGTH as SPECTRUM_HOP
from zoo.audiosr.data.cutoff import N_FFT, spectrum

HOP_LENGTH = 512  # samples
TRANSITION = 1 / 16  # of the cut-off: width of the cross-over
MIN_BINS = 4  # of the cross-over: the window blurs over as many
MAX_MATCH = 2.0  # 6 dB, by which the generated band is raised or lowered; more is no error of level

_WINDOW, _OVERLAP = 256, 16  # units of one hop; the context of 6 of them is longer than a frame


def crossover(cutoff_hz: float, sample_rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Gains (1025,) of the known band and of the generated one, over frequency; their squares sum to one.

    All below the cut-off stays; above it the input fades out like a cosine and the generated signal fades in like a
    sine. The two have unrelated phases there, so the energy is kept.
    """
    spacing = sample_rate / N_FFT
    above_hz = np.arange(N_FFT // 2 + 1) * spacing - cutoff_hz
    place = np.clip(above_hz / _width(cutoff_hz, spacing), 0.0, 1.0) * (math.pi / 2)
    high = np.where(place == math.pi / 2, 1.0, np.sin(place))
    low = np.where(place == math.pi / 2, 0.0, np.cos(place))
    return low.astype(np.float32), high.astype(np.float32)


def lowpass_gains(cutoff_hz: float, sample_rate: int) -> np.ndarray:
    """Gains (1025,) float32 of a low-pass that has faded to nothing at the cut-off, in Hz."""
    return crossover(max(cutoff_hz - _width(cutoff_hz, sample_rate / N_FFT), 0.0), sample_rate)[0]


def _width(cutoff_hz: float, spacing: float) -> float:
    return max(TRANSITION * cutoff_hz, MIN_BINS * spacing)


def combined(
    streams: Sequence[Iterable[np.ndarray]],
    gains: Sequence[np.ndarray],
    samples: int,
    choice: np.ndarray | None = None,
    segment_samples: int = 1,
) -> Iterator[np.ndarray]:
    """Filter equally long streams with gains over frequency and add them up, in constant memory and without delay.

    Args:
        streams: of pieces (C, n) float32; the pieces of each may be of any length.
        gains: (1025,) of each stream, or (K, 1025) to choose from.
        samples: length of the streams.
        choice: (S,) which of the K gains each segment takes, the last one to the end; all the first when None.
    """
    count = len(streams)
    units = -(-samples // HOP_LENGTH)
    spans = [(start, min(start + _WINDOW, units)) for start in range(0, units, _WINDOW)]
    factors = torch.from_numpy(np.stack([np.atleast_2d(each) for each in gains]))  # (streams, K, 1025)
    chosen = torch.zeros(1, dtype=torch.long) if choice is None else torch.from_numpy(choice)
    window = torch.hann_window(N_FFT)

    def interleaved() -> Iterator[np.ndarray]:
        for span, *pieces in zip(spans, *(split_windows(stream, spans, HOP_LENGTH) for stream in streams), strict=True):
            hops = [piece.reshape(len(piece), -1, HOP_LENGTH) for piece in pieces]
            numbers = np.broadcast_to(np.arange(*span, dtype=np.float32)[:, None], (*hops[0].shape[:2], 1))
            yield np.concatenate([*hops, numbers], axis=2).reshape(len(numbers), -1)

    def compute(chunks: np.ndarray, valid: Sequence[int]) -> np.ndarray:
        units = torch.from_numpy(np.ascontiguousarray(chunks)).unflatten(1, (-1, count * HOP_LENGTH + 1))
        signals = units[..., :-1].unflatten(2, (count, HOP_LENGTH)).permute(0, 2, 1, 3).flatten(2)
        length = signals.shape[-1]
        images = torch.stft(
            signals.flatten(0, 1), N_FFT, HOP_LENGTH, window=window, pad_mode="constant", return_complex=True
        )
        frames = units[:, :1, -1].long() + torch.arange(images.shape[-1])  # (N, F)
        segments = (frames * HOP_LENGTH // segment_samples).clamp(max=len(chosen) - 1)
        weights = factors[:, chosen[segments]].permute(1, 0, 3, 2)  # (N, streams, 1025, F)
        mixed = (images.unflatten(0, signals.shape[:2]) * weights).sum(dim=1)
        return torch.istft(mixed, N_FFT, HOP_LENGTH, window=window, length=length).numpy()

    chunker = Chunker(_WINDOW, _OVERLAP, count * HOP_LENGTH + 1)
    yield from match_length(chunker.process(interleaved(), units * (count * HOP_LENGTH + 1), compute), samples)


def summed_spectrum(audio: np.ndarray) -> np.ndarray:
    """Magnitude per frequency (1025,), summed over time and channels of a piece (C, n); sums of pieces add up."""
    return np.sum([spectrum(channel) for channel in audio], axis=0)


class Segments:
    """Spectra of a stream's segments, of which the last is half as long to half as long again."""

    def __init__(self, samples: int, segment_samples: int) -> None:
        count = max(round(samples / segment_samples), 1)
        self._ends = [*(segment_samples * np.arange(1, count)), samples]
        self.spectra = np.zeros((count, N_FFT // 2 + 1), np.float32)  # (S, 1025), summed over time and channels
        self.frames = np.ones(count)  # over how many frames (S,)

    def observe(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Pass a stream of pieces (C, n) on."""
        held: list[np.ndarray] = []
        number = start = 0
        for piece in pieces:
            yield piece
            while start + (length := sum(part.shape[1] for part in held) + piece.shape[1]) >= self._ends[number]:
                rest = start + length - self._ends[number]
                held.append(piece[:, : piece.shape[1] - rest])
                self._take(number, np.concatenate(held, axis=1))
                start, held, piece = self._ends[number], [], piece[:, piece.shape[1] - rest :]
                number += 1
                if number == len(self._ends):
                    return
            held.append(piece)

    def _take(self, number: int, audio: np.ndarray) -> None:
        """Whole frames only: a signal that breaks off has a spectrum of its own."""
        count = max((audio.shape[1] - N_FFT) // SPECTRUM_HOP, 0)
        self.spectra[number] = summed_spectrum(audio[:, : N_FFT + count * SPECTRUM_HOP])
        self.frames[number] = count + 1


def match(known: np.ndarray, generated: np.ndarray, cutoff_hz: float | np.ndarray, sample_rate: int) -> float:
    """The factor, 1/2 to 2, that brings the generated signal to the input's level in the octave below the cut-off.

    Magnitudes are (1025,) or, of segments, (S, 1025) with cut-offs (S,); segments where that is NaN do not count. It is
    1 where the octave holds nothing.
    """
    last = np.round(np.nan_to_num(np.atleast_1d(cutoff_hz)) / sample_rate * 2 * (known.shape[-1] - 1))[:, None]
    bins = np.arange(known.shape[-1])
    band = (bins >= last // 2) & (bins < last)
    wanted, found = (float((spectra * band).sum(dtype=np.float64)) for spectra in (known, generated))
    if wanted <= 0 or found <= 0:
        return 1.0
    return min(max(wanted / found, 1 / MAX_MATCH), MAX_MATCH)
