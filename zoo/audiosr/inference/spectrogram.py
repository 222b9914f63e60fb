"""The spectrogram of a stream of any length in constant memory: for pictures, the cut-off and the level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from zoo.audiosr.data.cutoff import N_FFT, frame_magnitudes
from zoo.common.reports import new_figure, write_figure

HOP_LENGTH = 1024  # samples
COLUMNS = 1000  # most of a picture; the loudest frame of a column counts, bin by bin
RANGE_DB = 100.0

_FLOOR = 1e-10


class Spectrogram:
    """Magnitudes of a stream of so many samples, means over its channels.

    Attributes:
        total: sums over all frames (1025,); a frame that the end cuts off counts only where it is the first.
    """

    def __init__(self, samples: int) -> None:
        self.frames = max(0, math.ceil((samples - N_FFT) / HOP_LENGTH)) + 1
        self.total = np.zeros(N_FFT // 2 + 1)
        self._columns = np.zeros((min(self.frames, COLUMNS), N_FFT // 2 + 1), np.float32)
        self._rest = np.zeros((1, 0), np.float32)  # of each channel, what the frames have not passed yet
        self._done = 0

    def observe(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Pass a stream of pieces (C, n) on."""
        for piece in pieces:
            yield piece
            self._add(piece.astype(np.float32, copy=False))
        if self._done < self.frames:
            missing = N_FFT + (self.frames - 1 - self._done) * HOP_LENGTH - self._rest.shape[1]
            self._add(np.zeros((len(self._rest), missing), np.float32), is_cut=self._done > 0)

    def levels(self) -> np.ndarray:
        """Return levels (1025, columns) in dB of the stream; 0 is a full-scale tone."""
        return 20 * np.log10(np.maximum(self._columns.T / (N_FFT / 4), _FLOOR))

    def _add(self, piece: np.ndarray, is_cut: bool = False) -> None:
        audio = np.concatenate([np.broadcast_to(self._rest, (len(piece), self._rest.shape[1])), piece], axis=1)
        count = max(0, (audio.shape[1] - N_FFT) // HOP_LENGTH + 1)
        self._rest = audio[:, count * HOP_LENGTH :]
        if not count:
            return
        for blocks in zip(*(frame_magnitudes(channel, HOP_LENGTH) for channel in audio), strict=True):
            magnitudes = np.mean(blocks, axis=0)
            if not is_cut:
                self.total += magnitudes.sum(axis=0)
            columns = (self._done + np.arange(len(magnitudes))) * len(self._columns) // self.frames
            np.maximum.at(self._columns, np.minimum(columns, len(self._columns) - 1), magnitudes)
            self._done += len(magnitudes)


def write_picture(
    path: Path,
    before: Spectrogram,
    after: Spectrogram,
    sample_rate: int,
    seconds: float,
    cutoff_hz: float | None,
    title: str,
) -> None:
    """Draw two spectrograms, one below the other, with a line at the cut-off."""
    images = {"before": before.levels(), "after": after.levels()}
    loudest = max(float(image.max()) for image in images.values())
    figure = new_figure(10.0, 7.0)
    figure.suptitle(title)
    extent = (0.0, seconds, 0.0, sample_rate / 2000)
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, (name, image) in zip(panels, images.items(), strict=True):
        picture = axes.imshow(
            image, origin="lower", aspect="auto", cmap="magma", vmin=loudest - RANGE_DB, vmax=loudest, extent=extent
        )
        if cutoff_hz is not None:
            axes.axhline(cutoff_hz / 1000, color="white", linewidth=0.7, linestyle="--")
        axes.set(title=name, ylabel="kHz")
        figure.colorbar(picture, ax=axes, label="dB")
    axes.set_xlabel("seconds")
    write_figure(path, figure)
