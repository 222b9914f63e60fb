from __future__ import annotations

import numpy as np
import pytest

from tests.miipher.stand_ins import copier, restorer
from zoo.miipher.inference.restorer import Restorer

SHORT = {"chunk_seconds": 1.0, "overlap_seconds": 0.4, "loudness": "keep"}
RATE = 16000


def seams(restorer: Restorer, samples: int, sample_rate: int) -> list[tuple[int, int]]:
    """First and last sample of each cross-fade in the result of a clip."""
    chunker, encoder = restorer.chunker, restorer.encoder
    frame = encoder.hop_samples / encoder.sample_rate * restorer.output_sample_rate
    stops = [stop for _, stop in chunker.spans(round(samples * encoder.sample_rate / sample_rate))[:-1]]
    ends = [stop - chunker.context for stop in stops]
    return [(round((end - chunker.fade) * frame), round(end * frame)) for end in ends]


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
