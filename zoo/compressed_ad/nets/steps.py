"""Histories of transitions as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Statistics(NamedTuple):
    """Moments of the values of training histories.

    states: mean and standard deviation (N,) float32 of an observation; (0,) for classes.
    actions: likewise.
    rewards: mean and standard deviation (1,).
    sample: (n, A) float32 of actions, for quantiles; (0, 0) for classes.
    """

    states: tuple[Tensor, Tensor]
    actions: tuple[Tensor, Tensor]
    rewards: tuple[Tensor, Tensor]
    sample: Tensor


class Steps(NamedTuple):
    """B histories of L transitions; episodes follow each other without a gap.

    states: (B, L, *observation) before the action; of grids (B, L, 2) int64, (row, column).
    actions: (B, L, *action); of grids (B, L) int64, 0 to 4.
    rewards: (B, L) float32.
    next_states: (B, L, *observation) after the action.
    dones: (B, L) bool, whether the transition ended an episode.
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    next_states: Tensor
    dones: Tensor

    @property
    def length(self) -> int:
        """Transitions of each history, L."""
        return self.actions.shape[1]

    def slice(self, start: int | None, stop: int | None) -> Steps:
        """Transitions `start` to `stop` (excluded) of every history; negative numbers count from the end."""
        return Steps(*(field[:, start:stop] for field in self))

    @staticmethod
    def cat(parts: Sequence[Steps]) -> Steps:
        """Join parts of the same histories, at least one, one after the other."""
        return Steps(*(torch.cat(fields, dim=1) for fields in zip(*parts, strict=True)))
