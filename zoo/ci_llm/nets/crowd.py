"""K agents on one backbone: their logits in one pass, one after the other, or in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone, positions
from zoo.common.checks import check_at_least

Mode = Literal["batched", "sequential", "chunked"]


class SharedTrunk:
    """Repeats the rows of a pass where the adapted blocks begin, so that the blocks below run once for all agents.

    A model passes masks and positions of the rows that enter it to every block, so each adapted block repeats them.

    Args:
        blocks: of the backbone, lowest first.
        first: index of the first adapted block; with 0 nothing is shared.
    """

    def __init__(self, blocks: Sequence[nn.Module], first: int) -> None:
        self.is_shared = first > 0
        self.rows, self.copies = 0, 1  # of the running pass
        if self.is_shared:
            for block in blocks[first:]:
                block.register_forward_pre_hook(self._repeat_inputs, with_kwargs=True)

    @contextmanager
    def repeating(self, rows: int, copies: int) -> Iterator[None]:
        """Repeat the `rows` of the passes within `copies` times, agent after agent, at the end of the trunk."""
        self.rows, self.copies = rows, copies
        try:
            yield
        finally:
            self.rows, self.copies = 0, 1

    def _repeat_inputs(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pre-hook of an adapted block."""
        if self.copies == 1:
            return None
        return self._repeat(args), {name: self._repeat(value) for name, value in kwargs.items()}

    def _repeat(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._repeat(each) for each in value)
        if isinstance(value, Tensor) and value.ndim > 1 and len(value) == self.rows:
            return value.repeat(self.copies, *[1] * (value.ndim - 1))
        return value


@dataclass(frozen=True)
class CrowdOutput:
    """Logits (n, B, T, V), or (n, M, V) at M positions, of n agents, and hidden states (n, B, T, D) on request."""

    logits: Tensor
    hidden: Tensor | None = None


class Crowd(nn.Module):
    """A frozen backbone and the agents that share it.

    All modes give the same logits, losses and gradients, dropout included. `batched` computes all agents in one pass
    of K * B rows, agent-major; blocks below the first adapted one run on B rows. `sequential` runs the agents one by
    one. `chunked` runs `chunk` agents at a time, and `CrowdObjective` then stores the activations of one chunk only.

    Args:
        backbone: frozen, shared by all agents.
        agents: the adapters; hooked into the backbone here.
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
        agents.attach(backbone)
        self.first_block = min(backbone.block_of(name) for name in agents.names)  # that is adapted
        self.trunk = SharedTrunk(list(backbone.blocks), self.first_block)
        self.members: range | None = range(agents.count)

    @property
    def count(self) -> int:
        """Number of selected agents: K, fewer within `select_agents`, 1 within `without_agents`."""
        return len(self.all_agents())

    @property
    def device(self) -> torch.device:
        """Of the agents."""
        return next(self.agents.parameters()).device

    def all_agents(self) -> range:
        """The selected agents; without agents, one stands for the backbone."""
        return range(1) if self.members is None else self.members

    @contextmanager
    def select_agents(self, first: int, stop: int | None = None) -> Iterator[None]:
        """Compute agents `first` to `stop` - 1 only (one agent when `stop` is not given)."""
        members = range(first, first + 1 if stop is None else stop)
        if not (0 <= first < members.stop <= self.agents.count):
            raise ValueError(f"agents {first} to {members.stop - 1} do not exist: there are {self.agents.count}")
        with self._select(members):
            yield

    @contextmanager
    def without_agents(self) -> Iterator[None]:
        """Compute the backbone alone, as a crowd of one."""
        with self._select(None):
            yield

    @contextmanager
    def _select(self, members: range | None) -> Iterator[None]:
        previous, self.members = self.members, members
        try:
            yield
        finally:
            self.members = previous

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits (K, B, T, V) of all agents, in the backbone's type; arguments as in `outputs`."""
        return self.outputs(input_ids, attention_mask).logits

    def outputs(self, input_ids: Tensor, attention_mask: Tensor, cache: Any = None, **request: Any) -> CrowdOutput:
        """Logits and hidden states of all agents.

        Args:
            input_ids: (B, T) int64 for all agents, or (K, B, T) with texts for each agent.
            attention_mask: 1 for tokens, 0 for padding on either side, shaped like input_ids; with a cache as long as
                the cached and the new tokens together.
            cache: a cache of transformers, filled in place; all agents then share a pass in every mode.
            request: further arguments of `run`.
        """
        passes = self.passes() if cache is None else [self.all_agents()]
        mask_seeds = self.agents.sample_mask_seeds()
        results = [self.run(members, mask_seeds, input_ids, attention_mask, cache, **request) for members in passes]
        if len(results) == 1:
            return results[0]
        states = [result.hidden for result in results if result.hidden is not None]
        return CrowdOutput(torch.cat([result.logits for result in results]), torch.cat(states) if states else None)

    def passes(self) -> list[range]:
        """The agents of each pass."""
        agents = self.all_agents()
        return [agents[start : start + self.chunk] for start in range(0, len(agents), self.chunk)]

    def rows_of(self, members: range) -> slice:
        """Where neighbouring agents lie along the first axis of values of all selected agents."""
        first = self.all_agents().start
        return slice(members.start - first, members.stop - first)

    def run(
        self,
        members: range,
        mask_seeds: list[int] | None,
        input_ids: Tensor,
        attention_mask: Tensor,
        cache: Any = None,
        hidden: bool = False,
        layer: int = -1,
        logits_to_keep: int = 0,
        logits_at: Tensor | None = None,
        is_padded: bool = True,
    ) -> CrowdOutput:
        """One pass of neighbouring agents; texts and cache as in `outputs`.

        Args:
            mask_seeds: of `Agents.sample_mask_seeds`.
            hidden: return hidden states too.
            layer: index into the hidden states: 0 for the embeddings, then the blocks; -1 after the final norm.
            logits_to_keep: compute logits of so many last positions only; 0 for all.
            logits_at: compute logits at these positions b * T + t only: (M,) int64 for all agents, or (K, M) where
                each has its texts; negative ones are padding, whose logits mean nothing.
            is_padded: false where attention_mask is known to be 1 everywhere: attention without a mask is faster.
        """
        count, (rows, length) = len(members), input_ids.shape[-2:]
        texts: dict[str, Any] = self._prepare_texts(members, input_ids, attention_mask)
        if not is_padded:
            texts["attention_mask"] = None
        shape, indices = (count, rows), None
        if logits_at is not None:
            at = (logits_at[self.rows_of(members)] if logits_at.ndim == 2 else logits_at.expand(count, -1)).clamp(min=0)
            shape = (count, at.shape[1])
            indices = (at + torch.arange(count, device=at.device)[:, None] * (rows * length)).flatten()  # (n * M,)
        copies = count if input_ids.ndim == 2 and self.trunk.is_shared else 1
        active = None if self.members is None else members
        with self.agents.active_agents(active, mask_seeds), self.trunk.repeating(rows, copies):
            result = self.backbone(
                **texts, past_key_values=cache, use_cache=cache is not None, output_hidden_states=hidden,
                logits_to_keep=logits_to_keep, logits_at=indices,
            )  # fmt: skip
        states = result.hidden_states[layer].unflatten(0, (-1, rows)) if hidden else None  # (n or 1, B, T, D)
        return CrowdOutput(
            (result.logits if indices is None else result.logits.squeeze(0)).unflatten(0, shape),
            states.expand(count, -1, -1, -1) if states is not None else None,
        )

    def _prepare_texts(self, members: range, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """The rows that enter the backbone: those of all agents, or once where these share a trunk."""
        position_ids = positions(attention_mask)[..., -input_ids.shape[-1] :]
        texts = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        if input_ids.ndim == 3:
            if len(input_ids) != self.count:
                raise ValueError(
                    f"input_ids {tuple(input_ids.shape)} are texts of {len(input_ids)} agents, not {self.count}"
                )
            return {name: values[self.rows_of(members)].flatten(0, 1) for name, values in texts.items()}
        if self.trunk.is_shared:
            return texts
        return {name: values.repeat(len(members), 1) for name, values in texts.items()}
