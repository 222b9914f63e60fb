"""Spaces of gymnasium as JSON values and as stored numbers, and the schema of an environment's histories."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

Space = Discrete | Box
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def size(space: Box) -> int:
    """Return the count of numbers of one value."""
    return math.prod(space.shape)


def describe_space(space: Space) -> dict[str, Any]:
    """Return a space as JSON values; equal bounds are written once, null stands for infinity."""
    if isinstance(space, Discrete):
        return {"kind": "discrete", "n": int(space.n)}
    bounds = []
    for values in (space.low, space.high):
        flat = [_finite(value) for value in values.astype(np.float64).ravel().tolist()]
        bounds.append(flat[:1] if len(set(flat)) == 1 else flat)
    return {"kind": "box", "shape": list(space.shape), "dtype": space.dtype.name, "low": bounds[0], "high": bounds[1]}


def read_space(description: Mapping[str, Any]) -> Space:
    """Build the space that `describe_space` described."""
    if description["kind"] == "discrete":
        return Discrete(int(description["n"]))
    shape, dtype = tuple(description["shape"]), np.dtype(description["dtype"])
    if dtype.kind not in "fiub":
        raise ValueError(f"a box has numbers, found {dtype}")
    low = np.array([-math.inf if value is None else value for value in description["low"]])
    high = np.array([math.inf if value is None else value for value in description["high"]])
    low, high = (np.full(shape, each[0]) if len(each) == 1 else each.reshape(shape) for each in (low, high))
    return Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


def tensor_dtype(space: Space) -> torch.dtype:
    """Return the torch type of values of a space."""
    return torch.from_numpy(np.empty(0, space.dtype)).dtype


def stored_dtype(space: Space) -> np.dtype[Any]:
    """Return the type in which values are stored: of integers the smallest that holds the bounds."""
    low, high = (0, space.n - 1) if isinstance(space, Discrete) else (space.low.min(), space.high.max())
    if space.dtype.kind not in "iu":
        return np.dtype(space.dtype)
    fits = (name for name in INTEGERS if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
    return np.dtype(next(fits, space.dtype))


def count_random_numbers(space: Space) -> int:
    """Return how many random numbers a uniformly random action takes."""
    return 1 if isinstance(space, Discrete) else size(space)


def random_actions(space: Space, uniforms: Tensor) -> Tensor:
    """Return uniformly random actions (B, *action) by numbers (n, B) float64 in (0, 1), see `count_random_numbers`.

    Raises:
        ValueError: when the space has no bounds.
    """
    if isinstance(space, Discrete):
        return (uniforms[0] * int(space.n)).long()
    if not space.is_bounded():
        raise ValueError("uniformly random actions need bounds, and the action space has none: wrap the environment")
    low, high = (torch.from_numpy(each.astype(np.float64)).flatten()[:, None] for each in (space.low, space.high))
    values = (low + uniforms * (high - low)).T.reshape(-1, *space.shape)
    return values.to(tensor_dtype(space))


@dataclass(frozen=True)
class Schema:
    """Spaces, limit and rewards of an environment.

    Args:
        observation: space of the states.
        limit: most steps of an episode.
        fixed: whether every episode has exactly so many.
        reward: lowest and highest of a step; may be infinite.
    """

    observation: Space
    action: Space
    limit: int
    fixed: bool = False
    reward: tuple[float, float] = (-math.inf, math.inf)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Structured type of a stored transition."""
        state, action = stored_dtype(self.observation), stored_dtype(self.action)
        return np.dtype(
            [
                ("state", state, self.observation.shape),
                ("action", action, self.action.shape),
                ("reward", np.float32),
                ("next_state", state, self.observation.shape),
                ("terminated", np.bool_),
                ("truncated", np.bool_),
            ]
        )

    def describe(self) -> dict[str, Any]:
        """Return JSON values; null stands for infinity."""
        return {
            "observation": describe_space(self.observation),
            "action": describe_space(self.action),
            "limit": self.limit,
            "fixed": self.fixed,
            "reward": [_finite(value) for value in self.reward],
        }

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> Schema:
        """Build the schema that `describe` described; ValueError for anything else."""
        try:
            low, high = description["reward"]
            return cls(
                read_space(description["observation"]),
                read_space(description["action"]),
                int(description["limit"]),
                bool(description["fixed"]),
                (-math.inf if low is None else float(low), math.inf if high is None else float(high)),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected the schema of an environment, found {description!r} ({error})") from error


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
