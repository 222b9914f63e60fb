"""Long signals through nets that see a window: overlapping chunks computed in batches, cross-faded into one stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import IO

import numpy as np
import soxr

from zoo.common.checks import check_at_least, check_positive

Compute = Callable[[np.ndarray, Sequence[int]], np.ndarray]
Span = tuple[int, int]


@dataclass(frozen=True)
class Chunker:
    """Cuts a signal into chunks and joins what a net makes of them, in memory that does not grow with the signal.

    All chunks lie on one grid of units (the net's frames) and are `window` units long; the last one reaches back a
    whole window from the signal's end, and a signal shorter than a window is one chunk. Of the overlap of two chunks
    the outer 3/8 on each side are discarded: they are context. The 2/8 in its middle are cross-faded. A net whose
    receptive field is at most `context` units therefore gives what it gives for the whole signal.

    Args:
        window: units of a chunk.
        overlap: units that neighbouring chunks share, at most half a window.
        unit_samples: input samples per unit.
        batch: chunks computed together by `process`, those of all channels counted.
        fades: without, half of the overlap is context on each side: for nets whose receptive field is known exactly.
    """

    window: int
    overlap: int
    unit_samples: int
    batch: int = 4
    fades: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.overlap * (1 + self.fades) <= self.window or self.window < 1:
            raise ValueError(f"overlap: expected at most half of the chunk of {self.window} units, got {self.overlap}")
        check_at_least(1, batch=self.batch, unit_samples=self.unit_samples)

    @property
    def context(self) -> int:
        """Units at an inner end of a chunk that are computed and discarded."""
        return self.overlap * 3 // 8 if self.fades else self.overlap // 2

    @property
    def fade(self) -> int:
        """Units over which two chunks are cross-faded."""
        return self.overlap - 2 * self.context

    def units(self, samples: int) -> int:
        """Units of a signal, at least one."""
        return max(-(-samples // self.unit_samples), 1)

    def spans(self, samples: int) -> list[Span]:
        """List (start, stop) in units of the chunks."""
        stride = self.window - self.overlap
        total = self.units(samples)
        spans = [(0, self.window)]
        while spans[-1][1] < total:
            stop = spans[-1][1] + stride
            spans.append((stop - self.window, stop))
        spans[-1] = (max(total - self.window, 0) if len(spans) > 1 else 0, total)
        return spans

    def process(self, blocks: Iterable[np.ndarray], samples: int, compute: Compute) -> Iterator[np.ndarray]:
        """Compute a stream of known length.

        Args:
            blocks: pieces (C, n) of the signal, n of any size; together (C, samples), samples > 0.
            compute: takes chunks (N, units * unit_samples) float32, zero-padded at the end, and the number of valid
                samples of each; returns (N, ..., units * scale).

        Yields:
            Pieces (C, ..., m); together (C, ..., units(samples) * scale).
        """
        spans = self.spans(samples)
        chunks = zip(spans, self._compute_batches(blocks, spans, samples, compute), strict=True)
        yield from self._join_chunks((span, span == spans[-1], chunk) for span, chunk in chunks)

    def process_stream(
        self, blocks: Iterable[np.ndarray], compute: Callable[[np.ndarray], np.ndarray]
    ) -> Iterator[np.ndarray]:
        """Compute a stream (..., n) of whole units, whose length shows only at its end, on the same grid.

        Nothing is padded: the first chunk starts, and the last one ends, with the stream, because a net that pads each
        of its layers with zeros does not give there what it gives for zeros around the stream. `compute` maps a chunk
        (..., units * unit_samples) to (..., units * scale).
        """
        chunks = self._split_stream(blocks)
        yield from self._join_chunks((span, last, compute(window)) for span, last, window in chunks)

    def _join_chunks(self, chunks: Iterable[tuple[Span, bool, np.ndarray]]) -> Iterator[np.ndarray]:
        """Computed chunks, of which the last one is marked, as one stream."""
        done = 0
        pending: np.ndarray | None = None
        for (start, stop), is_last, chunk in chunks:
            scale = chunk.shape[-1] // (stop - start)
            end = stop if is_last else stop - self.context - self.fade
            fresh = chunk[..., (done - start) * scale :]
            if pending is not None:
                fresh[..., : pending.shape[-1]] = crossfade(pending, fresh[..., : pending.shape[-1]])
            yield fresh[..., : (end - done) * scale]
            pending = fresh[..., (end - done) * scale : (end - done + self.fade) * scale].copy()
            done = end

    def _split_stream(self, blocks: Iterable[np.ndarray]) -> Iterator[tuple[Span, bool, np.ndarray]]:
        buffer: np.ndarray | None = None
        unit, first, stop = self.unit_samples, 0, self.window  # unit at which the buffer starts, end of the next chunk
        for block in blocks:
            buffer = block if buffer is None else np.concatenate([buffer, block], axis=-1)
            while (units := first + buffer.shape[-1] // unit) > stop:
                start = stop - self.window
                yield (start, stop), False, buffer[..., (start - first) * unit : (stop - first) * unit]
                stop += self.window - self.overlap
                # the last chunk may reach back a whole window from the end
                keep = min(stop - self.window, max(units - self.window, 0))
                buffer, first = buffer[..., (keep - first) * unit :], keep
        if buffer is not None:
            end = first + buffer.shape[-1] // unit
            start = max(end - self.window, 0)
            yield (start, end), True, buffer[..., (start - first) * unit :]

    def _compute_batches(
        self, blocks: Iterable[np.ndarray], spans: Sequence[Span], samples: int, compute: Compute
    ) -> Iterator[np.ndarray]:
        """The result (C, ..., units * scale) of each chunk; those of one batch are equally long."""
        windows = zip(spans, split_windows(blocks, spans, self.unit_samples), strict=True)
        for _, group in groupby(windows, key=lambda item: item[0][1] - item[0][0]):
            while some := list(islice(group, self.batch)):
                rows = np.concatenate([window for _, window in some])
                unit = self.unit_samples
                valid = [min(stop * unit, samples) - start * unit for (start, stop), window in some for _ in window]
                batches = range(0, len(rows), self.batch)
                result = np.concatenate([compute(rows[i : i + self.batch], valid[i : i + self.batch]) for i in batches])
                yield from result.reshape(len(some), -1, *result.shape[1:])


def split_windows(blocks: Iterable[np.ndarray], spans: Sequence[Span], unit_samples: int = 1) -> Iterator[np.ndarray]:
    """Cut a stream of pieces (..., n) into windows of rising (start, stop) in units, zero beyond its end."""
    source = iter(blocks)
    buffer = next(source, None)
    if buffer is None:
        raise ValueError("expected at least one block of the signal, found none")
    first = 0
    for start, stop in spans:
        parts = [buffer]
        missing = stop * unit_samples - first - buffer.shape[-1]
        while missing > 0:
            block = next(source, None)
            if block is None:
                block = np.zeros((*buffer.shape[:-1], missing), np.float32)
            parts.append(block)
            missing -= block.shape[-1]
        buffer = np.concatenate(parts, axis=-1)[..., start * unit_samples - first :]
        first = start * unit_samples
        yield buffer[..., : (stop - start) * unit_samples]


def crossfade(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Fade from one signal (..., n) to another, linearly; where they are equal the result is too, exactly."""
    count = new.shape[-1]
    weights = (np.arange(count, 0, -1, dtype=np.float32) - 0.5) / np.float32(max(count, 1))
    return new + (old - new) * weights


def match_length(blocks: Iterable[np.ndarray], samples: int) -> Iterator[np.ndarray]:
    """Give a stream of pieces (..., n) an exact length: what is too much is cut, what is missing is zero."""
    rest = samples
    block = np.zeros(0, np.float32)
    for block in blocks:
        piece = block[..., :rest]
        rest -= piece.shape[-1]
        if piece.shape[-1]:
            yield piece
    if rest:
        yield np.zeros((*block.shape[:-1], rest), np.float32)


def resample_blocks(blocks: Iterable[np.ndarray], source_rate: int, target_rate: int) -> Iterator[np.ndarray]:
    """Resample a stream of pieces (C, n) float32, which may come out empty; joined, they equal `resample_array`'s."""
    check_positive(source_rate=source_rate, target_rate=target_rate)
    if source_rate == target_rate:
        yield from blocks
        return
    stream: soxr.ResampleStream | None = None
    channels = 1
    for block in blocks:
        channels = len(block)
        stream = stream or soxr.ResampleStream(source_rate, target_rate, channels, dtype="float32")
        ready = stream.resample_chunk(np.ascontiguousarray(block.T, dtype=np.float32))
        yield np.ascontiguousarray(ready.reshape(-1, channels).T)
    if stream is not None:
        ready = stream.resample_chunk(np.zeros((0, channels), np.float32), last=True)
        yield np.ascontiguousarray(ready.reshape(-1, channels).T)


def store_piece(spool: IO[bytes], piece: np.ndarray) -> None:
    """Append a piece (C, n) to a temporary file, float32, sample after sample."""
    spool.write(np.ascontiguousarray(piece.T, dtype=np.float32).tobytes())


def stored_pieces(spool: IO[bytes], channels: int, samples: int) -> Iterator[np.ndarray]:
    """Read a temporary file of `store_piece` from its beginning in pieces (C, n) of at most so many samples."""
    spool.seek(0)
    while data := spool.read(4 * channels * samples):
        yield np.frombuffer(data, np.float32).reshape(-1, channels).T


def mix_to_mono(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Mix pieces (C, n) to one channel (1, n), float32."""
    return (block.mean(axis=0, keepdims=True, dtype=np.float32) for block in blocks)


def check_finite(result: np.ndarray) -> np.ndarray:
    """Refuse a net's result with values that are not finite."""
    if not np.isfinite(result).all():
        raise ValueError("the net gave NaN or infinite values; under 16-mixed try --trainer.precision=32")
    return result
