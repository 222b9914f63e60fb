"""How straight a trained model's paths are: what reflow lowers, and what few steps cost."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.flow.sampler import Sampler
from zoo.flow.sampling import straightness


def evaluate_straightness(sampler: Sampler, labels: Sequence[int] | None, seeds: Sequence[int]) -> float:
    """Mean straightness of the paths that a model samples on.

    On pairs, `val/loss` of FlowTask is the same integral along the pairs' own lines (with sigma_min 0, per element).

    Args:
        sampler: the model, in evaluation mode; its solver's grid is that of the integral.
        labels: one class per sample; None for a net without classes.
        seeds: one per sample.

    Returns:
        Mean over the samples of the integral of |(x_1 - x_0) - v(t, x_t)|^2 over t, 0 where one Euler step is exact.

    Raises:
        ValueError: when there are no seeds, or labels and net do not go together.

    Source: Liu et al., "Flow Straight and Fast" (2023), section 2.2.
    """
    if not seeds or (sampler.net.num_classes and len(labels or ()) != len(seeds)):
        raise ValueError(
            f"seeds are needed, and as many labels where the net has classes; found {len(seeds)} seeds, "
            f"{'no' if labels is None else len(labels)} labels and a net of {sampler.net.num_classes} classes"
        )
    total = 0.0
    for start in range(0, len(seeds), sampler.chunk):
        part = slice(start, start + sampler.chunk)
        field = sampler.field(None if labels is None else labels[part])
        total += float(straightness(field, sampler.noise(seeds[part]), sampler.solver).sum())
    return total / len(seeds)
