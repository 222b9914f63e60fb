"""What restoring and feature extraction share: the encoder on chunks of audio, and the checks that nets fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from zoo.audio.io.chunking import Chunker
from zoo.miipher.nets.cleaner import Encoder

LEAST_FRAMES = 16  # a shorter clip is zero-padded: the encoder's group norm needs some samples for its statistics


def make_chunker(encoder: Encoder, chunk_seconds: float, overlap_seconds: float, batch: int) -> Chunker:
    """Chunks on the encoder's frame grid, neighbours of which share at most half a chunk."""
    frames = [
        round(seconds * encoder.sample_rate / encoder.hop_samples) for seconds in (chunk_seconds, overlap_seconds)
    ]
    if frames[0] < LEAST_FRAMES:
        raise ValueError(f"chunk_seconds {chunk_seconds} is {frames[0]} frames, expected at least {LEAST_FRAMES}")
    return Chunker(frames[0], frames[1], encoder.hop_samples, batch)


def check_padding(encoder: Encoder) -> None:
    """Refuse an encoder that gives fewer frames than its input has hops."""
    if encoder.frames(encoder.hop_samples) != 1:
        raise ValueError("the encoder's backbone does not pad, so files would lose their ends: build it with pad: true")


def samples_at(encoder: Encoder, samples: int, sample_rate: int) -> int:
    """Samples that a clip is computed as, at the encoder's rate."""
    return max(math.ceil(samples * encoder.sample_rate / sample_rate), LEAST_FRAMES * encoder.hop_samples)


def mixed(blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Mix pieces (C, n) to mono (1, n)."""
    for block in blocks:
        yield block.mean(axis=0, keepdims=True, dtype=np.float32)


def encode(encoder: Encoder, chunks: np.ndarray, valid: Sequence[int], device: torch.device) -> Tensor:
    """Features (N, F, C) of chunks (N, T) whose first `valid` samples count."""
    waveforms = torch.from_numpy(np.ascontiguousarray(chunks)).to(device)
    lengths = None if min(valid) == chunks.shape[1] else torch.tensor(valid, device=device)
    return encoder(waveforms, lengths)


def to_array(result: Tensor) -> np.ndarray:
    """A net's result as float32, which must be finite."""
    array = result.float().cpu().numpy()
    if not np.isfinite(array).all():
        raise ValueError("the net gave NaN or infinite values; under 16-mixed try --trainer.precision=32")
    return array
