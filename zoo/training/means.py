"""Weighted means over all items of an evaluation, equal on every rank."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class WeightedMeans:
    """Sums of values and their weights by key, reduced over ranks at the end.

    Ranks may hold different numbers of items, none included: the keys are gathered with the sums, so no collective
    call depends on what a rank has seen.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}

    def add(self, values: Mapping[str, Tensor | float], weight: float = 1.0) -> None:
        """Add the mean values of `weight` items."""
        for key, value in values.items():
            term = torch.as_tensor(value, dtype=torch.float64).detach() * weight
            self._sums[key] = self._sums[key] + term if key in self._sums else term
            self._weights[key] = self._weights.get(key, 0.0) + weight

    def compute(self) -> dict[str, float]:
        """Reduce over all ranks and return the means."""
        local = {key: (float(total), self._weights[key]) for key, total in self._sums.items()}
        parts: list[dict[str, tuple[float, float]]] = [local]
        if dist.is_available() and dist.is_initialized():
            parts = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(parts, local)
        keys = dict.fromkeys(key for part in parts for key in part)
        means = {}
        for key in keys:
            entries = [part[key] for part in parts if key in part]
            weight = sum(entry[1] for entry in entries)
            means[key] = sum(entry[0] for entry in entries) / weight if weight else float("nan")
        return means

    def reset(self) -> None:
        """Forget everything."""
        self._sums.clear()
        self._weights.clear()
