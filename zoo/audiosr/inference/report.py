"""The picture of a restored file: its spectrogram before and after, of any length in constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from zoo.audiosr.data.cutoff import N_FFT, frame_magnitudes
from zoo.common.reports import new_figure, write_figure

HOP_LENGTH = 1024  # samples
COLUMNS = 1000  # most of a picture; of the frames that fall into one the loudest counts, bin by bin
RANGE_DB = 100.0

_LEAST = 1e-10


class Spectrogram:
    """Magnitudes of a stream of so many samples, pooled over time."""

    def __init__(self, samples: int) -> None:
        self.frames = max(0, math.ceil((samples - N_FFT) / HOP_LENGTH)) + 1
        self._image = np.zeros((min(self.frames, COLUMNS), N_FFT // 2 + 1), np.float32)
        self._rest = np.zeros(0, np.float32)
        self._done = 0

    def observe(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Pass a stream of pieces (C, n) on; channels are mixed."""
        for piece in pieces:
            self._push(piece.mean(axis=0, dtype=np.float32))
            yield piece

    def image(self) -> np.ndarray:
        """Level (1025, columns) in dB of what has passed; 0 is a full-scale tone."""
        if self._done < self.frames:
            self._push(np.zeros(N_FFT + (self.frames - 1 - self._done) * HOP_LENGTH - len(self._rest), np.float32))
        return 20 * np.log10(np.maximum(self._image.T / (N_FFT / 4), _LEAST))

    def _push(self, audio: np.ndarray) -> None:
        audio = np.concatenate([self._rest, audio])
        count = max(0, (len(audio) - N_FFT) // HOP_LENGTH + 1)
        self._rest = audio[count * HOP_LENGTH :]
        for block in frame_magnitudes(audio, HOP_LENGTH) if count else ():
            places = (self._done + np.arange(len(block))) * len(self._image) // self.frames
            np.maximum.at(self._image, np.minimum(places, len(self._image) - 1), block)
            self._done += len(block)


def write_picture(
    path: Path,
    before: Spectrogram,
    after: Spectrogram,
    sample_rate: int,
    samples: int,
    cutoffs: Sequence[tuple[float, float]],
    title: str,
) -> None:
    """Write the picture of a file.

    Args:
        cutoffs: start in seconds of each part and where its known band ends, in Hz; drawn as a line, NaN as none.
    """
    images = {"before": before.image(), "after": after.image()}
    most = max(float(image.max()) for image in images.values())
    figure = new_figure(10.0, 7.0)
    figure.suptitle(title)
    extent = (0.0, samples / sample_rate, 0.0, sample_rate / 2000)
    ends = [*(start for start, _ in cutoffs), samples / sample_rate]
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, (name, image) in zip(panels, images.items(), strict=True):
        drawn = axes.imshow(
            image, origin="lower", aspect="auto", cmap="magma", vmin=most - RANGE_DB, vmax=most, extent=extent
        )
        axes.stairs([hz / 1000 for _, hz in cutoffs], ends, baseline=None, color="white", linewidth=0.7, linestyle="--")
        axes.set(title=name, ylabel="kHz")
        figure.colorbar(drawn, ax=axes, label="dB")
    axes.set_xlabel("seconds")
    write_figure(path, figure)
