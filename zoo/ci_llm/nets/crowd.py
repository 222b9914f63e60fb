"""K agents on one backbone: their logits in one pass, one after the other, or in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo.ci_llm.nets.agents import Active, Agents, active_rows
from zoo.ci_llm.nets.backbone import Backbone, positions
from zoo.common.checks import check_at_least


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
        self.copies: int | Tensor = 1
        if self.shared:
            for block in blocks[first:]:
                block.register_forward_pre_hook(self._repeat, with_kwargs=True)

    @contextmanager
    def repeating(self, rows: int, copies: int | Tensor) -> Iterator[None]:
        """Let passes of so many rows leave the trunk as `copies` times as many, agent-major, or as rows by number."""
        self.rows, self.copies = rows, copies
        try:
            yield
        finally:
            self.rows, self.copies = 0, 1

    def _repeat(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hook before a block: repeat what has the rows of the trunk."""
        if isinstance(self.copies, int) and self.copies == 1:
            return None
        return self._repeated(args), {name: self._repeated(value) for name, value in kwargs.items()}

    def _repeated(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._repeated(part) for part in value)
        if isinstance(value, Tensor) and value.ndim > 1 and len(value) == self.rows:
            if isinstance(self.copies, Tensor):
                return value.index_select(0, self.copies)
            return value.repeat(self.copies, *[1] * (value.ndim - 1))
        return value


Mode = Literal["batched", "sequential", "chunked"]


@dataclass(frozen=True)
class CrowdOutput:
    """Logits (n, B, T, V), or (n, M, V) at M positions, of n agents, and hidden states (n, B, T, D) where wanted."""

    logits: Tensor
    hidden: Tensor | None = None


class Crowd(nn.Module):
    """A frozen backbone and the agents that share it.

    All modes give the same logits, losses and gradients, dropout included. `batched` computes all agents in one pass
    of K * B rows, agent-major; blocks below the first adapted one run on B rows. `sequential` runs the agents one by
    one. `chunked` runs `chunk` agents at a time, and `objective` then keeps the activations of one chunk only.

    Args:
        backbone: frozen, shared by all agents.
        agents: the adapters; hooked into the backbone here, unless they are already.
        mode: how the agents are computed, see above: a choice of memory and speed.
        chunk: agents per pass of "chunked".
    """

    def __init__(self, backbone: Backbone, agents: Agents, mode: Mode = "batched", chunk: int | None = None) -> None:
        super().__init__()
        if (mode == "chunked") != (chunk is not None):
            raise ValueError(f"crowd.chunk belongs to mode chunked, which needs it; got mode {mode} with chunk {chunk}")
        check_at_least(1, chunk=1 if chunk is None else chunk)
        self.backbone = backbone
        self.agents = agents
        self.mode = mode
        self.chunk = {"batched": agents.count, "sequential": 1}.get(mode, chunk or 1)
        if not agents.names:
            agents.attach(backbone)
        self.trunk = Trunk(list(backbone.blocks), min(backbone.block_of(name) for name in agents.names))
        self.members: range | None = range(agents.count)

    @property
    def count(self) -> int:
        """Agents that answer now: K, fewer within `only`, 1 within `without_agents`."""
        return 1 if self.members is None else len(self.members)

    @property
    def device(self) -> torch.device:
        """Of the agents."""
        return next(self.agents.parameters()).device

    @contextmanager
    def only(self, first: int, last: int | None = None) -> Iterator[None]:
        """Let agents first to last - 1 answer alone (one agent when last is not given)."""
        chosen = range(first, first + 1 if last is None else last)
        if not (0 <= first < chosen.stop <= self.agents.count):
            raise ValueError(f"agents {first} to {chosen.stop - 1} do not exist: there are {self.agents.count}")
        with self._answering(chosen):
            yield

    @contextmanager
    def without_agents(self) -> Iterator[None]:
        """Let the backbone answer, as a crowd of one."""
        with self._answering(None):
            yield

    @contextmanager
    def _answering(self, members: range | None) -> Iterator[None]:
        before, self.members = self.members, members
        try:
            yield
        finally:
            self.members = before

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits (K, B, T, V) of all agents, in the backbone's type; arguments as in `outputs`."""
        return self.outputs(input_ids, attention_mask).logits

    def outputs(self, input_ids: Tensor, attention_mask: Tensor, cache: Any = None, **request: Any) -> CrowdOutput:
        """Logits and hidden states of all agents.

        Args:
            input_ids: (B, T) int64 for all agents, or (K, B, T) where they read texts of their own.
            attention_mask: 1 for tokens, 0 for padding on either side, shaped like input_ids; with a cache as long as
                the cached and the new tokens together. Or (B, 1, T, T) bool, true where attention may go, for packed
                texts; give position_ids then.
            cache: a cache of transformers, filled in place; all agents then share a pass in every mode.
            request: further arguments of `run`.
        """
        passes = self.passes() if cache is None else [self.everyone()]
        noise = self.agents.draw_noise()
        parts = [self.run(members, noise, input_ids, attention_mask, cache, **request) for members in passes]
        if len(parts) == 1:
            return parts[0]
        states = [part.hidden for part in parts if part.hidden is not None]
        return CrowdOutput(torch.cat([part.logits for part in parts]), torch.cat(states) if states else None)

    def mixed(
        self,
        agents: Sequence[int],
        texts: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        cache: Any,
        logits_to_keep: int = 1,
    ) -> Tensor:
        """Logits (R, kept, V) of rows that each belong to one agent and one text; whoever answers otherwise now.

        Args:
            agents: of the rows, in ascending order; -1 for the backbone alone.
            texts: which of the texts each row reads, (R,) int64.
            input_ids: new tokens of the texts (B, T), int64.
            attention_mask: of the cached and the new tokens (B, W).
            position_ids: of the new tokens (B, T).
            cache: of transformers, filled in place: R rows, below the first adapted block B.
            logits_to_keep: last positions; 0 for all.
        """
        given = [input_ids, attention_mask, position_ids]
        if not self.trunk.shared:
            given = [each[texts] for each in given]
        copies = texts if self.trunk.shared else 1
        with self.agents.using(active_rows(agents, self.device)), self.trunk.repeating(len(input_ids), copies):
            result = self.backbone(
                input_ids=given[0],
                attention_mask=given[1],
                position_ids=given[2],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=logits_to_keep,
            )
        logits: Tensor = result.logits
        return logits

    def everyone(self) -> range:
        """The agents that answer now; without agents, one in their place."""
        return range(1) if self.members is None else self.members

    def passes(self) -> list[range]:
        """The agents of each pass."""
        everyone = self.everyone()
        return [everyone[start : start + self.chunk] for start in range(0, len(everyone), self.chunk)]

    def run(
        self,
        members: range,
        noise: list[int] | None,
        input_ids: Tensor,
        attention_mask: Tensor,
        cache: Any = None,
        position_ids: Tensor | None = None,
        hidden: bool = False,
        layer: int = -1,
        logits_to_keep: int = 0,
        logits_at: Tensor | None = None,
    ) -> CrowdOutput:
        """One pass of neighbouring agents; texts and cache as in `outputs`.

        Args:
            noise: of `Agents.draw_noise`.
            position_ids: shaped like input_ids; by default counted over the mask.
            hidden: give hidden states too.
            layer: index of them among the embeddings' (0) and the blocks' outputs; -1 after the closing norm.
            logits_to_keep: compute logits of so many last positions only; 0 for all.
            logits_at: compute logits at these positions only, b * T + t: (M,) int64 for all agents, or (K, M) where
                they read texts of their own; what is below 0 fills up, its logits mean nothing.
        """
        count, everyone = len(members), self.everyone()
        if input_ids.ndim == 3 and len(input_ids) != len(everyone):
            raise ValueError(
                f"input_ids {tuple(input_ids.shape)} are texts of {len(input_ids)} agents, not {self.count}"
            )
        if position_ids is None:
            position_ids = positions(attention_mask)[..., -input_ids.shape[-1] :]
        own = slice(members.start - everyone.start, members.stop - everyone.start)
        texts = [x[own].flatten(0, 1) if input_ids.ndim == 3 else x for x in (input_ids, attention_mask, position_ids)]
        rows = len(texts[0])
        if input_ids.ndim == 3:
            rows //= count
        shared = input_ids.ndim == 2 and self.trunk.shared
        if input_ids.ndim == 2 and not shared:
            texts = [x.repeat(count, *[1] * (x.ndim - 1)) for x in texts]
        shape, places = (count, rows), None
        if logits_at is not None:
            chosen = (logits_at[own] if logits_at.ndim == 2 else logits_at.expand(count, -1)).clamp(min=0)
            shape = (count, chosen.shape[1])
            starts = torch.arange(count, device=chosen.device) * (rows * input_ids.shape[-1])
            places = (chosen + starts[:, None]).flatten()  # (n * M,)
        active = None if self.members is None else Active(members.start, members.stop, noise)
        with self.agents.using(active), self.trunk.repeating(rows, count if shared else 1):
            result = self.backbone(
                input_ids=texts[0],
                attention_mask=texts[1],
                position_ids=texts[2],
                past_key_values=cache,
                use_cache=cache is not None,
                output_hidden_states=hidden,
                logits_to_keep=logits_to_keep,
                logits_at=places,
            )
        states = result.hidden_states[layer].unflatten(0, (-1, rows)) if hidden else None  # (n or 1, B, T, D)
        return CrowdOutput(
            result.logits.unflatten(0, shape) if places is None else result.logits[0].unflatten(0, shape),
            states.expand(count, -1, -1, -1) if states is not None else None,
        )
