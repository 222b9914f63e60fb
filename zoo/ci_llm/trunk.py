"""The shared trunk: blocks below the first adapted one see each text once, whatever the number of agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class Trunk:
    """Repeats the rows of a pass where the adapted blocks begin.

    A model's forward makes masks and positions once, for the rows that enter it, and hands them to every block; so each
    adapted block gets its own repeated, and the first of them the hidden states too. A cache holds the trunk's keys and
    values once.

    Args:
        blocks: of the backbone, lowest first.
        first: index of the first adapted block; with 0 there is nothing to share.
    """

    def __init__(self, blocks: Sequence[nn.Module], first: int) -> None:
        self.shared = first > 0
        self.rows = 0  # of the running pass; 0 while the agents have rows of their own
        self.copies = 1
        if self.shared:
            for block in blocks[first:]:
                block.register_forward_pre_hook(_Repeat(self), with_kwargs=True)

    @contextmanager
    def repeating(self, rows: int, copies: int) -> Iterator[None]:
        """Let passes of so many rows leave the trunk as `copies` times as many, agent-major."""
        self.rows, self.copies = rows, copies
        try:
            yield
        finally:
            self.rows, self.copies = 0, 1


class _Repeat:
    """Hook before a block: repeat what has the rows of the trunk."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk = trunk

    def __call__(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.trunk.copies == 1:
            return None
        return self._repeated(args), {name: self._repeated(value) for name, value in kwargs.items()}

    def _repeated(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._repeated(part) for part in value)
        if isinstance(value, Tensor) and value.ndim > 1 and len(value) == self.trunk.rows:
            return value.repeat(self.trunk.copies, *[1] * (value.ndim - 1))
        return value
