"""Frames in, samples out as they come: a generator that is given its input in pieces of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from zoo.common.tensors import promote_to_float32
from zoo.hifigan.nets.interface import WaveformGenerator


class VocoderStream:
    """Takes frames as they come and gives the samples that they determine, as the generator does for all at once.

    The layers of a causal generator remember the end of what they saw, so that each frame is computed once. Of others
    the context is kept and computed again with every push: twice the look-ahead, whatever the number of new frames.

    A stream has a folded copy of the generator, on the weights of the original where these are folded (of an export).

    Args:
        generator: features to waveform; left as it is.
        sample_rate: of its output in Hz.

    Attributes:
        look_ahead_frames: frames that must follow before a frame's samples are given.
        look_ahead_seconds: their duration.

    Raises:
        ValueError: when the generator's conditioner sees the whole input.
    """

    def __init__(self, generator: WaveformGenerator, sample_rate: int) -> None:
        self.look_ahead_frames = look_ahead(generator)
        self.look_ahead_seconds = self.look_ahead_frames * generator.hop_length / sample_rate
        self._generator = generator.streaming()
        weight = next(self._generator.parameters())
        self._frames = weight.new_zeros(1, generator.in_channels, 0).detach()
        self._given = 0  # of these frames, whose samples have been given
        self._closed = False

    def push(self, frames: Any) -> np.ndarray:
        """Take the next frames.

        Args:
            frames: (in_channels, n) float, n >= 0.

        Returns:
            The samples (m,) that are now determined, float32 (float64 of a generator in float64); m is a multiple of
            the hop, also 0.

        Raises:
            ValueError: for frames of another shape, which change nothing, and after `close` or a push that failed
                inside the generator.
        """
        if self._closed:
            raise ValueError("this stream is closed, or a push failed: open another one with stream()")
        found = np.asarray(frames, np.float64 if self._frames.dtype == torch.float64 else np.float32)
        if found.ndim != 2 or len(found) != self._generator.in_channels:
            raise ValueError(f"expected frames ({self._generator.in_channels}, n), found {found.shape}")
        return self._compute(found)

    def close(self) -> np.ndarray:
        """End the stream: the samples (m,) that waited for later frames; none the second time."""
        rest = np.zeros((len(self._frames[0]), 0), np.float32)
        samples = self._compute(rest, last=True) if not self._closed else np.zeros(0, np.float32)
        self._closed = True
        return samples

    @torch.inference_mode()
    def _compute(self, frames: np.ndarray, last: bool = False) -> np.ndarray:
        hop, context = self._generator.hop_length, self.look_ahead_frames
        known = torch.cat([self._frames, torch.from_numpy(frames)[None].to(self._frames)], -1)
        end = known.shape[-1] - (0 if last else context)
        if end <= self._given:
            self._frames = known
            return np.zeros(0, frames.dtype)
        self._closed = True  # unless it succeeds: what the layers remember would lack a part
        samples = self._generator(known)[0, 0, self._given * hop : end * hop]
        kept = max(end - context, 0)
        self._frames, self._given, self._closed = known[..., kept:].clone(), end - kept, False
        return promote_to_float32(samples).cpu().numpy()


def look_ahead(generator: WaveformGenerator) -> int:
    """Later frames that a frame's samples depend on; refuses a generator that needs all of them."""
    frames = generator.look_ahead_frames
    if frames is None:
        name = type(getattr(generator, "conditioner", generator)).__name__
        raise ValueError(f"{name} sees the whole input, so its generator cannot stream: use from_mel")
    return frames
