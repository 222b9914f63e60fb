"""Fundamental frequency by normalised cross-correlation and a best path through its peaks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from zoo.common.checks import check_above

# Path costs of Boersma (1993) with the defaults of his program: 0.45 of full correlation is voiced, an octave higher is
# worth 0.01, a jump of an octave between frames costs 0.35, a change between voiced and unvoiced 0.14 (10 ms frames).
_VOICING_THRESHOLD, _OCTAVE_COST, _OCTAVE_JUMP_COST, _VOICING_CHANGE_COST = 0.45, 0.01, 0.35, 0.14
_SILENCE_THRESHOLD = 0.03  # of the signal's peak: quieter frames drift towards unvoiced
_SILENCE_FLOOR = 1e-3  # -60 dB re full scale, absolute: digital near-silence has no pitch
_F_MIN, _F_MAX = 50.0, 550.0  # Hz, of speech
_HOP_SECONDS = 0.01
_CANDIDATES = 8
_CHUNK_FRAMES = 4096  # bounds the memory on hour-long recordings


@dataclass(frozen=True)
class PitchTrack:
    """A pitch track (F,) or (B, F); frame i is centred on sample i * hop."""

    f0: Tensor  # fundamental frequency in Hz, float32, 0 where unvoiced
    voiced: Tensor  # bool
    periodicity: Tensor  # correlation over one period in [0, 1], also for unvoiced frames


@torch.no_grad()
def track_pitch(x: Tensor, sample_rate: int) -> PitchTrack:
    """Track the pitch of speech or single notes, 50 to 550 Hz, in T // hop + 1 frames of 10 ms.

    Args:
        x: audio (T,) or (B, T), float, in [-1, 1].
        sample_rate: in Hz, > 2200.

    Source: Talkin, "A robust algorithm for pitch tracking" (1995), equation 3 for the correlation; Boersma, "Accurate
    short-term analysis of the fundamental frequency" (1993), section 3, steps 4 to 6 for candidates and path.
    """
    if x.dim() not in (1, 2):
        raise ValueError(f"expected audio (T,) or (B, T), got shape {tuple(x.shape)}")
    check_above(4 * _F_MAX, sample_rate=sample_rate)
    batch = torch.atleast_2d(x).float()
    hop = round(_HOP_SECONDS * sample_rate)
    strength, frequency, level = _candidates(batch, sample_rate, hop)
    peak = batch.abs().amax(-1, keepdim=True).clamp(min=_SILENCE_FLOOR)
    quiet = (2 - (level / peak) * (1 + _VOICING_THRESHOLD) / _SILENCE_THRESHOLD).clamp(min=0)
    quiet = torch.where(level < _SILENCE_FLOOR, 2.0, quiet)
    score = strength + _OCTAVE_COST * torch.log2(frequency / _F_MIN)
    local = torch.cat([(_VOICING_THRESHOLD + quiet)[..., None], score], dim=-1)
    octaves = torch.cat([torch.zeros_like(quiet)[..., None], torch.log2(frequency)], dim=-1)
    state = _best_path(local.cpu(), octaves.cpu()).to(x.device)
    voiced = state > 0
    chosen = (state - 1).clamp(min=0)[..., None]
    f0 = torch.where(voiced, frequency.gather(-1, chosen)[..., 0], 0.0)
    best = strength.amax(-1)
    periodicity = torch.where(voiced, strength.gather(-1, chosen)[..., 0], best).clamp(0, 1)
    periodicity = torch.where(level < _SILENCE_FLOOR, 0.0, periodicity)
    shape = (*x.shape[:-1], -1)
    return PitchTrack(f0.reshape(shape), voiced.reshape(shape), periodicity.reshape(shape))


def _candidates(batch: Tensor, sample_rate: int, hop: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the correlation peaks (B, F, K), their frequencies in Hz, and the peak level of each frame (B, F)."""
    longest = math.ceil(sample_rate / _F_MIN) + 1
    shortest = math.floor(sample_rate / _F_MAX) - 1
    window = math.ceil(1.25 * sample_rate / _F_MIN)  # a quarter more than the longest period, so that it is never cut
    span = window + longest
    # Lag t compares samples [0, window + t) of a frame: centre that stretch for a pitch of three times the lowest.
    padded = functional.pad(batch, ((window + longest // 3) // 2, span))
    frames = padded.unfold(-1, span, hop)[:, : batch.shape[-1] // hop + 1]
    parts = [
        _frame_candidates(frames[:, first : first + _CHUNK_FRAMES], window, shortest, longest)
        for first in range(0, frames.shape[1], _CHUNK_FRAMES)
    ]
    strength, lag, level = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    return strength, sample_rate / lag, level


def _frame_candidates(frames: Tensor, window: int, shortest: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    frames = frames - frames.mean(-1, keepdim=True)
    size = 1 << (frames.shape[-1] - 1).bit_length()
    head = torch.fft.rfft(frames[..., :window], n=size)
    product = torch.fft.irfft(head.conj() * torch.fft.rfft(frames, n=size), n=size)[..., : longest + 1]
    sums = functional.pad(frames.double().square().cumsum(-1), (1, 0))
    energy = (sums[..., window : window + longest + 1] - sums[..., : longest + 1]).float()
    floor = window * 1e-10  # keeps silence at correlation 0 and is far below any 16-bit step
    correlation = product / ((energy[..., :1] + floor) * (energy + floor)).sqrt()
    left, middle, right = (correlation[..., shortest + i : longest - 1 + i] for i in range(3))
    is_peak = (middle > left) & (middle >= right)
    # Chosen with the octave cost, or equal peaks at multiples of a short period could crowd out the period itself.
    bonus = _OCTAVE_COST * torch.log2(longest / torch.arange(shortest + 1, longest, device=frames.device))
    chosen = (middle + bonus).masked_fill(~is_peak, -1.0).topk(min(_CANDIDATES, middle.shape[-1]), dim=-1)
    index, is_peak = chosen.indices, chosen.values > -1.0
    height = torch.where(is_peak, middle.gather(-1, index), -1.0)
    before, after = left.gather(-1, index), right.gather(-1, index)
    curvature = (before - 2 * height + after).clamp(max=-1e-9)
    offset = (0.5 * (before - after) / curvature).clamp(-0.5, 0.5)
    height = torch.where(is_peak, height - 0.25 * (before - after) * offset, -1.0)
    lag = (index + shortest + 1) + torch.where(is_peak, offset, 0.0)
    return height, lag, frames[..., frames.shape[-1] // 4 : -(frames.shape[-1] // 4)].abs().amax(-1)


def _best_path(local: Tensor, octaves: Tensor) -> Tensor:
    """Viterbi search: maximise local scores (B, F, S) minus transition costs; state 0 is unvoiced. Returns (B, F)."""
    voiced = torch.arange(local.shape[-1]) > 0
    change = (voiced[:, None] != voiced[None, :]) * _VOICING_CHANGE_COST
    both = voiced[:, None] & voiced[None, :]
    jumps = (octaves[:, :-1, :, None] - octaves[:, 1:, None, :]).abs() * _OCTAVE_JUMP_COST
    costs = torch.where(both, jumps, change)
    total = local[:, 0]
    pointers = []
    for frame in range(1, local.shape[1]):
        best, pointer = (total[:, :, None] - costs[:, frame - 1]).max(dim=1)
        total = best + local[:, frame]
        pointers.append(pointer)
    state = total.argmax(-1)
    path = [state]
    for pointer in reversed(pointers):
        state = pointer.gather(1, state[:, None])[:, 0]
        path.append(state)
    return torch.stack(path[::-1], dim=1)
