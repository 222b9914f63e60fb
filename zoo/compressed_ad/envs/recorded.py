"""Histories without their environment: what imports of other projects' files leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.schema import Schema


class Recorded(Env):
    """A family of tasks of which there are histories, and nothing to act in.

    Train on it with `data.init_args.eval_seeds: 0`.

    Args:
        title: what it is called.
        tasks: how many there are, at least 1.
        described: the schema, as `Schema.describe` has it.
    """

    def __init__(self, title: str, tasks: int, described: dict[str, Any]) -> None:
        check_at_least(1, tasks=tasks)
        self.name = title
        self.task_sizes = (tasks,)
        self.schema = Schema.read(described)

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""
        return {"title": self.name, "tasks": self.task_sizes[0], "described": self.schema.describe()}

    def task_names(self) -> list[str]:
        """A word for each feature of a task."""
        return ["Task"]

    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> NoReturn:
        """Refused: there is no environment."""
        raise ValueError(
            f"{self.name} is known by its histories alone, so nothing can act in it: train with "
            "data.init_args.eval_seeds 0, and evaluate in an environment of the same spaces"
        )

    def random_returns(self, tasks: Tensor) -> Tensor:
        """Unknown: NaN (B,)."""
        return torch.full((len(tasks),), torch.nan, dtype=torch.float64)
