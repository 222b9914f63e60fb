from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.miipher.parts import backbone
from tests.miipher.stand_ins import copier, restorer, vocoder
from zoo.audio.analysis.mel import LogMel
from zoo.miipher.inference.restorer import Restorer
from zoo.miipher.options import RestoreOptions

SHORT = {"chunk_seconds": 1.0, "overlap_seconds": 0.4, "loudness": "keep"}
RATE = 16000


def seams(restorer: Restorer, samples: int, sample_rate: int) -> list[tuple[int, int]]:
    """First and last sample of each cross-fade in the result of a clip."""
    chunker, encoder = restorer.chunker, restorer.encoder
    frame = encoder.hop_samples / encoder.sample_rate * restorer.output_sample_rate
    stops = [stop for _, stop in chunker.spans(round(samples * encoder.sample_rate / sample_rate))[:-1]]
    ends = [stop - chunker.context for stop in stops]
    return [(round((end - chunker.fade) * frame), round(end * frame)) for end in ends]


def shift_effect(restorer: Restorer, audio: np.ndarray) -> torch.Tensor:
    """Changes of a clip's log-mel when the grid of its chunks is moved by half a chunk."""
    shift = (restorer.chunker.window - restorer.chunker.overlap) // 2
    mel = LogMel(restorer.output_sample_rate, f_max=None)
    results = (torch.from_numpy(restorer(audio, RATE, grid_shift_frames=frames))[None] for frames in (0, shift))
    plain, moved = (mel(each)[0] for each in results)
    return (plain - moved).abs().flatten()


def seam_steps(result: np.ndarray, fades: list[tuple[int, int]]) -> tuple[float, float]:
    """The largest difference of neighbouring samples at seams, and the 99.9th percentile of those elsewhere."""
    steps = np.abs(np.diff(result))
    inside = np.zeros(len(steps), bool)
    for first, last in fades:
        inside[max(first - 1, 0) : last + 1] = True
    return float(steps[inside].max()), float(np.percentile(steps[~inside], 99.9))


def sweep(seconds: float = 6.0) -> np.ndarray:
    """A sine from 50 to 3000 Hz that also grows: its steepest samples are the last ones, behind all seams."""
    time = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * (50 * time + 0.5 * 2950 / seconds * time**2)
    return (np.linspace(0.05, 0.1, len(time)) * np.sin(phase)).astype(np.float32)


def test_seams_lie_in_the_middle_of_the_overlaps():
    model = restorer(**SHORT)  # chunks of 50 frames, 30 apart; 7 discarded, 6 faded
    assert model.chunker.spans(100 * 320) == [(0, 50), (30, 80), (50, 100)]
    assert seams(model, 100 * 320, RATE) == [(37 * 160, 43 * 160), (67 * 160, 73 * 160)]
    assert seams(model, 2 * 100 * 320, 2 * RATE) == seams(model, 100 * 320, RATE)


@pytest.mark.parametrize("levelled", [False, True])
def test_a_sweep_shows_no_step_at_seams(levelled):
    """Also where each chunk is levelled over what it sees, as the group norm of an encoder does."""
    model = copier(levelled, **SHORT)
    audio = sweep()
    actual, elsewhere = seam_steps(model(audio, RATE), seams(model, len(audio), RATE))
    assert actual <= elsewhere


def test_a_sweep_through_attention_is_no_steeper_at_seams_than_without_chunks():
    torch.manual_seed(0)
    nets = backbone(), vocoder(32), 8000
    chunked, full = (Restorer(*nets, RestoreOptions(**SHORT | cut)).eval() for cut in ({}, {"chunk_seconds": 10.0}))
    fades = seams(chunked, 6 * RATE, RATE)
    actual, expected = (seam_steps(model(sweep(), RATE), fades)[0] for model in (chunked, full))
    assert actual <= 1.1 * expected


def test_a_step_is_noticed():
    audio = sweep()
    fades = seams(copier(**SHORT), len(audio), RATE)
    first, last = fades[2]
    audio[first + np.abs(audio[first:last]).argmax() :] *= -1
    actual, elsewhere = seam_steps(audio, fades)
    assert actual > elsewhere


def test_shifting_the_grid_changes_nothing_for_a_local_net_and_little_for_attention():
    audio = sweep()
    assert shift_effect(restorer(**SHORT), audio).max() < 1e-3
    torch.manual_seed(0)
    actual = shift_effect(Restorer(backbone(), vocoder(32), 8000, RestoreOptions(**SHORT)).eval(), audio)
    assert 0 < actual.mean() < actual.quantile(0.99) < actual.max()
