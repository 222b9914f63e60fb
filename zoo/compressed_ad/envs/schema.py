"""What an environment shows and takes: its spaces, how long an episode may be, and what it pays."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zoo.common.checks import check_at_least

Bounds = tuple[float, ...]


@dataclass(frozen=True)
class Discrete:
    """One of the numbers 0 to n - 1, int64."""

    n: int

    def __post_init__(self) -> None:
        check_at_least(1, n=self.n)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one value: ()."""
        return ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the stored values."""
        return np.dtype("int64")

    def describe(self) -> dict[str, Any]:
        """As JSON values."""
        return {"kind": "discrete", "n": self.n}


@dataclass(frozen=True)
class Box:
    """An array of numbers between bounds.

    Args:
        shape: of one value.
        kind: name of the numpy dtype of the stored values.
        low: of each number in row-major order, or one for all, as is `high`; both may be infinite.
    """

    shape: tuple[int, ...]
    kind: str
    low: Bounds
    high: Bounds

    def __post_init__(self) -> None:
        sizes = (1, math.prod(self.shape))
        if len(self.low) not in sizes or len(self.high) not in sizes:
            raise ValueError(f"bounds of a box of shape {self.shape}: one or {sizes[1]} numbers, found {self}")
        if self.dtype.kind not in "fiub" or any(low > high for low, high in zip(*self.limits(), strict=True)):
            raise ValueError(f"a box has numbers, and low is at most high, found {self}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the stored values."""
        return np.dtype(self.kind)

    @property
    def size(self) -> int:
        """Numbers of one value."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether a value is a picture (H, W, C) or (C, H, W) of bytes."""
        return self.dtype == np.uint8 and len(self.shape) == 3

    @property
    def bounded(self) -> bool:
        """Whether all bounds are finite."""
        return all(map(math.isfinite, (*self.low, *self.high)))

    def limits(self) -> tuple[list[float], list[float]]:
        """Lowest and highest value of each number."""
        return tuple([*bounds] * (1 if len(bounds) == self.size else self.size) for bounds in (self.low, self.high))  # type: ignore[return-value]

    def describe(self) -> dict[str, Any]:
        """As JSON values; null stands for infinity."""
        low, high = ([value if math.isfinite(value) else None for value in each] for each in (self.low, self.high))
        return {"kind": "box", "shape": list(self.shape), "dtype": self.kind, "low": low, "high": high}


Space = Discrete | Box


def box(shape: tuple[int, ...], kind: str, low: Any, high: Any) -> Box:
    """A box with bounds as arrays of its shape or as numbers; equal ones are written once."""
    bounds = []
    for values in (low, high):
        flat = np.asarray(values, dtype=np.float64).reshape(-1).tolist()
        bounds.append(tuple(flat[:1] if len(set(flat)) == 1 else flat))
    return Box(tuple(shape), np.dtype(kind).name, *bounds)


def space_of(described: Mapping[str, Any]) -> Space:
    """The space that `describe` described."""
    if described["kind"] == "discrete":
        return Discrete(int(described["n"]))
    low = tuple(-math.inf if value is None else float(value) for value in described["low"])
    high = tuple(math.inf if value is None else float(value) for value in described["high"])
    return Box(tuple(described["shape"]), described["dtype"], low, high)


@dataclass(frozen=True)
class Schema:
    """What histories of an environment hold.

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
        """Of a stored transition."""
        state, action = self.observation, self.action
        return np.dtype(
            [
                ("state", state.dtype, state.shape),
                ("action", action.dtype, action.shape),
                ("reward", np.float32),
                ("next_state", state.dtype, state.shape),
                ("terminated", np.bool_),
                ("truncated", np.bool_),
            ]
        )

    def describe(self) -> dict[str, Any]:
        """As JSON values; null stands for infinity."""
        return {
            "observation": self.observation.describe(),
            "action": self.action.describe(),
            "limit": self.limit,
            "fixed": self.fixed,
            "reward": [value if math.isfinite(value) else None for value in self.reward],
        }

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Schema:
        """The schema that `describe` described.

        Raises:
            ValueError: when it is none.
        """
        try:
            low, high = described["reward"]
            return cls(
                space_of(described["observation"]),
                space_of(described["action"]),
                int(described["limit"]),
                bool(described["fixed"]),
                (-math.inf if low is None else float(low), math.inf if high is None else float(high)),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected the schema of an environment, found {described!r} ({error})") from error

    def require(self, other: Schema, mine: str, whose: str) -> None:
        """Refuse another schema, and print both."""
        if self != other:
            raise ValueError(
                f"the schemas differ. {mine}: {json.dumps(self.describe())}; {whose}: {json.dumps(other.describe())}"
            )
