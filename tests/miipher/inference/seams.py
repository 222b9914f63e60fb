"""What chunks do to a long file: the change of its log-mel when their grid moves, and steps where they are joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from zoo.audio.analysis.mel import LogMel
from zoo.miipher.inference.restore import Restorer


def seams(restorer: Restorer, samples: int, sample_rate: int) -> list[tuple[int, int]]:
    """Where the chunks of a clip are cross-faded.

    Returns:
        (first, last) sample of each cross-fade in the result, which is at `restorer.output_sample_rate`.
    """
    chunker, encoder = restorer.chunker, restorer.encoder
    frame = encoder.hop_samples / encoder.sample_rate * restorer.output_sample_rate
    stops = [stop for _, stop in chunker.spans(round(samples * encoder.sample_rate / sample_rate))[:-1]]
    ends = [stop - chunker.context for stop in stops]
    return [(round((end - chunker.fade) * frame), round(end * frame)) for end in ends]


def shift_effect(restorer: Restorer, audio: np.ndarray, sample_rate: int) -> dict[str, float]:
    """Restore a clip (T,) of at least three chunks twice, with their grid moved by half a chunk; compare the log-mels.

    The restorer's `loudness` should be "keep", or its one gain per file counts as well.

    Returns:
        Natural-log mel differences: `mean` absolute, `p99` its 99th percentile and `max`; `floor` is the mean absolute
        difference between neighbouring frames of the unshifted result, what a change of 12 ms makes.
    """
    chunks = len(restorer.chunker.spans(round(len(audio) * restorer.encoder.sample_rate / sample_rate)))
    if chunks < 3:
        raise ValueError(f"the clip is {chunks} chunks long, expected at least 3: take a longer one or shorter chunks")
    shift = (restorer.chunker.window - restorer.chunker.overlap) // 2
    mel = LogMel(restorer.output_sample_rate, f_max=None)
    plain, moved = (
        mel(torch.from_numpy(restorer(audio, sample_rate, grid_shift_frames=frames))[None])[0] for frames in (0, shift)
    )
    change = (plain - moved).abs().flatten()
    return {
        "mean": float(change.mean()),
        "p99": float(np.quantile(change.numpy(), 0.99)),
        "max": float(change.max()),
        "floor": float(plain.diff(dim=1).abs().mean()),
    }


def seam_steps(result: np.ndarray, fades: Sequence[tuple[int, int]], percentile: float = 99.9) -> tuple[float, float]:
    """The largest difference of neighbouring samples where chunks are joined, and a percentile of those elsewhere.

    The largest of a noisy stretch may exceed the percentile without any step: compare such a result with the same
    stretches of one that was computed in a single chunk. `seams` gives the fades, of which there must be one.
    """
    if not fades:
        raise ValueError("the clip has no seam: take a longer one or shorter chunks")
    steps = np.abs(np.diff(result))
    inside = np.zeros(len(steps), bool)
    for first, last in fades:
        inside[max(first - 1, 0) : last + 1] = True
    return float(steps[inside].max()), float(np.percentile(steps[~inside], percentile))
