from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.miipher.inference.seams import seam_steps, seams, shift_effect
from tests.miipher.parts import backbone
from tests.miipher.stand_ins import copier, restorer, vocoder
from zoo.miipher.inference.restore import Restorer

SHORT = {"chunk_seconds": 1.0, "overlap_seconds": 0.4, "loudness": "keep"}
RATE = 16000


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
    found, elsewhere = seam_steps(model(audio, RATE), seams(model, len(audio), RATE))
    assert found <= elsewhere


def test_a_sweep_through_attention_is_no_steeper_at_seams_than_without_chunks():
    torch.manual_seed(0)
    nets = backbone(), vocoder(32), 8000
    chunked, whole = (Restorer(*nets, **SHORT | cut).eval() for cut in ({}, {"chunk_seconds": 10.0}))
    fades = seams(chunked, 6 * RATE, RATE)
    found, expected = (seam_steps(model(sweep(), RATE), fades)[0] for model in (chunked, whole))
    assert found <= 1.1 * expected


def test_a_step_is_noticed():
    audio = sweep()
    fades = seams(copier(**SHORT), len(audio), RATE)
    first, last = fades[2]
    audio[first + np.abs(audio[first:last]).argmax() :] *= -1
    found, elsewhere = seam_steps(audio, fades)
    assert found > elsewhere


def test_shifting_the_grid_changes_nothing_for_a_local_net_and_little_for_attention():
    audio = sweep()
    assert shift_effect(restorer(**SHORT), audio, RATE)["max"] < 1e-3
    torch.manual_seed(0)
    found = shift_effect(Restorer(backbone(), vocoder(32), 8000, **SHORT).eval(), audio, RATE)
    assert 0 < found["mean"] < found["p99"] < found["max"]


def test_too_short_clips_are_refused():
    with pytest.raises(ValueError, match="1 chunks long, expected at least 3"):
        shift_effect(restorer(), sweep(), RATE)
    with pytest.raises(ValueError, match="no seam"):
        seam_steps(sweep(), [])
