"""One recording on its way through a restorer, pass by pass, in memory that does not grow with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from zoo.audio.chunking import fit, resampled
from zoo.audio.corpus import PEAK
from zoo.audiosr.chunks import TAGS, Chunks, clip_mel, copied_bands, tagged, vocoded
from zoo.audiosr.cutoff import FULL_BAND, cutoff, edges
from zoo.audiosr.postprocess import Segments, combined, crossover, lowpass_gains, match
from zoo.audiosr.report import Spectrogram
from zoo.audiosr.simulate import top

if TYPE_CHECKING:
    from zoo.audiosr.restore import Restorer

SILENCE = 2.0**-16  # half a step of 16 bits; nothing louder in it, and a recording is silent
MOST_GAIN = 1000.0  # 60 dB, by which a quiet input is raised for the nets
BLOCK_SECONDS = 4  # read and written at once
SEGMENT_SECONDS = 5  # of each the cut-off is looked for: long enough that speech has a sibilant in it

Blocks = Callable[[], Iterable[np.ndarray]]


class Recording:
    """A file or an array: `survey` it, then `restore` it, then take the `result`.

    Args:
        restorer: what computes.
        blocks: opens the input: pieces (C, n) float32.
        source_rate: of the input in Hz.
        channels: of the input.
        samples: of the input.
        shift: of the grid of chunks, see `Chunker.spans`.
        cutoff_hz: in the place of the restorer's, in Hz.

    Attributes:
        target: opens what is resynthesised, where nothing is to be generated.
        samples: of the result.
        cutoffs_hz: where the band of each segment ends (S,), NaN where it is full; known after the survey, like the
            next three.
        confidence: of the edges that were found (S,), 0 to 1; 1 where they are given or follow from the input's rate.
        peaks: of the channels (C,).
        nothing_to_do: whether the input is only resampled.
        chunks: per channel.
        match: factor on the generated band.
        gain: factor on the result.
    """

    def __init__(
        self,
        restorer: Restorer,
        blocks: Blocks,
        source_rate: int,
        channels: int,
        samples: int,
        shift: int = 0,
        cutoff_hz: float | None = None,
    ) -> None:
        self.restorer = restorer
        self.blocks = blocks
        self.target: Blocks | None = None
        self.source_rate = source_rate
        self.channels = channels
        self.samples = max(math.ceil(samples * restorer.sample_rate / source_rate), 1)
        self.shift = shift
        self.segment_samples = SEGMENT_SECONDS * restorer.sample_rate
        self._known = Segments(self.samples, self.segment_samples)
        self.cutoffs_hz = np.full(len(self._known.frames), np.nan)
        self.confidence = np.zeros(len(self._known.frames))
        self._given = restorer.cutoff_hz if cutoff_hz is None else cutoff_hz
        self.peaks = np.zeros(channels)
        self.gain = 1.0
        self.match = 1.0
        self.nothing_to_do = True
        self.chunks = 0

    def survey(self, picture: Spectrogram | None = None) -> None:
        """Find peaks and cut-offs."""
        stream = self._known.listen(self._input())
        for piece in stream if picture is None else picture.listen(stream):
            self.peaks = np.maximum(self.peaks, np.abs(piece).max(axis=1))
        if self.peaks.max() >= SILENCE:
            self._find_cutoffs()
        self.nothing_to_do = bool(np.isnan(self.cutoffs_hz).all())

    @property
    def starts(self) -> np.ndarray:
        """Of the segments (S,), in seconds."""
        return np.arange(len(self.cutoffs_hz)) * SEGMENT_SECONDS

    @property
    def cutoff_hz(self) -> float:
        """The middle of the segments' cut-offs, in Hz; half the sample rate where the band is full."""
        if np.isnan(self.cutoffs_hz).all():
            return self.restorer.sample_rate / 2
        return float(np.nanmedian(self.cutoffs_hz))

    def _find_cutoffs(self) -> None:
        rate = self.restorer.sample_rate
        limit_hz = min(self.source_rate, rate) / 2
        if self._given is None and self.restorer.cutoff_rule == "edge":
            spectra = self._known.spectra / self._known.frames[:, None]
            for number, edge in enumerate(edges(spectra, rate, limit_hz, self.restorer.cutoff_confidence)):
                if edge is not None:
                    self.cutoffs_hz[number], self.confidence[number] = edge.hz, edge.confidence
                elif limit_hz < FULL_BAND * rate / 2:  # nothing can lie above it
                    self.cutoffs_hz[number], self.confidence[number] = top(self.source_rate), 1.0
            return
        found = cutoff(self._known.spectra.sum(axis=0, dtype=np.float64), rate) if self._given is None else self._given
        if found < top(rate):
            self.cutoffs_hz[:] = found
            self.confidence[:] = 0.0 if self._given is None else 1.0

    def restore(self, first: IO[bytes], second: IO[bytes]) -> None:
        """Fill the second of two temporary files with the result, all but its gain."""
        pieces: Iterable[np.ndarray] = self._input()
        if not self.nothing_to_do:
            found = Segments(self.samples, self.segment_samples)
            for piece in found.listen(self._generated()):
                _store(first, piece)
            rate = self.restorer.sample_rate
            self.match = match(self._known.spectra, found.spectra, self.cutoffs_hz, rate)
            frequencies, choice = np.unique(np.nan_to_num(self.cutoffs_hz, nan=rate), return_inverse=True)
            low, high = (np.stack(gains) for gains in zip(*(crossover(hz, rate) for hz in frequencies), strict=True))
            streams = [pieces, self._stored(first)]
            pieces = combined(streams, [low, self.match * high], self.samples, choice, self.segment_samples)
        peak = 1.0
        for piece in pieces:
            peak = max(peak, float(np.abs(piece).max()))
            _store(second, piece)
        self.gain = 1 / peak

    def result(self, spool: IO[bytes]) -> Iterator[np.ndarray]:
        """The result (C, n)."""
        for piece in self._stored(spool):
            yield np.clip(piece * np.float32(self.gain), -1.0, 1.0)

    def _input(self, source: Blocks | None = None) -> Iterator[np.ndarray]:
        """The input (C, n) at the nets' rate."""
        restorer = self.restorer
        stream = fit(resampled((source or self.blocks)(), self.source_rate, restorer.sample_rate), self.samples)
        limit = restorer.input_lowpass_hz
        if source is not None or limit is None or limit >= restorer.sample_rate / 2:
            return stream
        return combined([stream], [lowpass_gains(limit, restorer.sample_rate)], self.samples)

    def _levelled(self, source: Blocks | None = None) -> Iterator[np.ndarray]:
        """The input as the nets take it."""
        factor = np.float32(self._level)
        return (piece * factor for piece in self._input(source))

    @property
    def _level(self) -> float:
        return min(PEAK / float(self.peaks.max()), MOST_GAIN)

    def _generated(self) -> Iterator[np.ndarray]:
        """What the nets make of the input (C, n), at the input's level; silent channels stay silent."""
        restorer, device = self.restorer, self.restorer.device
        unit = restorer.unit_samples
        units = -(-self.samples // unit)
        places = (np.arange(units) * unit + unit // 2) // self.segment_samples
        copied = copied_bands(restorer.features, self.cutoffs_hz[np.minimum(places, len(self.cutoffs_hz) - 1)])
        chunks = Chunks(
            restorer.net, restorer.autoencoder, restorer.features, restorer.diffusion, restorer.settings, copied,
            self._encoded(), restorer.condition_autoencoder,
        )  # fmt: skip
        samples = units * (unit + TAGS)
        self.chunks = len(restorer.chunker.spans(samples, self.shift))
        compute = chunks.restore if self.target is None else chunks.through
        stream = tagged(self._levelled(self.target), units, unit)
        mels = restorer.chunker.run(stream, samples, compute, self.shift)
        audio = vocoded(
            restorer.vocoder, mels, units * unit // restorer.features.hop_length, restorer.chunker.batch, device
        )
        factors = ((self.peaks >= SILENCE) / self._level).astype(np.float32)[:, None]
        for piece in fit(audio, self.samples):
            yield piece * factors

    def _encoded(self) -> tuple[Tensor, Tensor] | None:
        """The global context of each channel."""
        restorer = self.restorer
        if restorer.net.global_encoder is None or self.target is not None:
            return None
        mel = clip_mel(restorer.features, self._levelled(), self.samples, restorer.device)
        with torch.inference_mode():
            return restorer.net.encode_clip(mel)

    def _stored(self, spool: IO[bytes]) -> Iterator[np.ndarray]:
        """Pieces (C, n) of a temporary file."""
        spool.seek(0)
        while data := spool.read(4 * self.channels * BLOCK_SECONDS * self.restorer.sample_rate):
            yield np.frombuffer(data, np.float32).reshape(-1, self.channels).T


def _store(spool: IO[bytes], piece: np.ndarray) -> None:
    spool.write(np.ascontiguousarray(piece.T, dtype=np.float32).tobytes())
