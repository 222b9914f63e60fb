"""The in-context policy: a causal transformer over its own history, with old context compressed to latents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.nets.compression import STD, Compressor, ReconstructionDecoder
from zoo.compressed_ad.nets.embedding import StepEmbedding
from zoo.compressed_ad.nets.heads import ActionHead, CategoricalHead
from zoo.compressed_ad.nets.steps import Statistics, Steps
from zoo.compressed_ad.nets.transformer import Cache, Transformer


def fuse(before: Tensor, queries: Tensor) -> Tensor:
    """Add each transition (B, L - 1, dim) to the query (B, L, dim) after it."""
    return torch.cat([queries[:, :1], queries[:, 1:] + before], 1)


def separate_mask(latents: int, count: int, device: torch.device) -> Tensor:
    """Latents and transitions see what is not later; each query sees what was before it, and itself."""
    kept = latents + count - 1
    mask = torch.zeros(kept + count, kept + count, dtype=torch.bool, device=device)
    mask[:kept, :kept] = torch.ones(kept, kept, dtype=torch.bool, device=device).tril()
    mask[kept:, :kept] = torch.ones(count, kept, dtype=torch.bool, device=device).tril(latents - 1)
    mask[kept:, kept:] = torch.eye(count, dtype=torch.bool, device=device)
    return mask


def full_mask(latents: int, count: int, device: torch.device) -> Tensor:
    """Latents see everything, the other tokens what is not later (count, count)."""
    mask = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    mask[:latents] = True
    return mask


Arrangement = Literal["fused", "separate"]
LatentMask = Literal["causal", "full"]


class Compression(NamedTuple):
    """One call of the compressor.

    `tokens` (B, N, dim) are what it was given: the old latents, then the embedded transitions `steps`; `latents`
    (B, K, dim) are what it made of them.
    """

    tokens: Tensor
    steps: Steps
    latents: Tensor


class Output(NamedTuple):
    """What the head says of the actions (logits, of a few actions) and the compressions on the way to it."""

    logits: Tensor
    compressions: list[Compression]


@dataclass
class State:
    """What an agent knows while it acts: latents, and the transitions since.

    Args:
        latents: (B, K, dim), None before the first compression.
        steps: transitions since then, None when there is none.
        cache: keys and values of what the transformer has seen since; None where they cannot be kept.
    """

    latents: Tensor | None = None
    steps: Steps | None = None
    cache: Cache | None = None
    compressions: int = 0

    @property
    def length(self) -> int:
        """Transitions since the last compression."""
        return 0 if self.steps is None else self.steps.length


class ActingPolicy(nn.Module, ABC):
    """A policy that learns a task while it acts in it, its weights unchanged.

    Attributes:
        head: what it says of the next action.
        compressor: of its old context, if it has one.
    """

    head: ActionHead
    compressor: Compressor | None

    @abstractmethod
    def check(self, env: Env) -> None:
        """Refuse an environment that this was not made for."""

    @abstractmethod
    def begin(self, cached: bool = True) -> Any:
        """The state of agents that know nothing yet; its `compressions` counts those of the context."""

    @abstractmethod
    def act(self, state: Any, queries: Tensor) -> Tensor:
        """What the head says in states (B, *observation), (B, P); to be called once before each `observe`."""

    @abstractmethod
    def observe(self, state: Any, step: Steps) -> None:
        """Take in the last transitions, L = 1, changing the state in place."""

    @property
    def window(self) -> int | None:
        """Tokens that it sees at most; None where it has no window."""
        return None

    @property
    def num_latents(self) -> int:
        """Latents that old context is compressed to."""
        return 0

    def describe(self) -> dict[str, Any]:
        """What kind it is, as JSON values."""
        return {
            "window": self.window,
            "num_latents": self.num_latents,
            "compressor": None if self.compressor is None else type(self.compressor).__name__,
            "parameters": sum(weight.numel() for weight in self.parameters()),
        }


class InContextPolicy(ActingPolicy):
    """Predicts the next action from the history so far; its weights stay fixed while it learns a task in its context.

    Without a compressor it sees the last T - 1 transitions (algorithm distillation). With one, the transitions since
    the last compression and K latents: whenever they fill the window, the compressor turns both into K new latents.
    Training and acting compress at the same steps.

    Args:
        embedding: of transitions and query states.
        transformer: its context is the window T: latents, transitions and query.
        compressor: turns what leaves the window into latents; null for none.
        arrangement: "separate" gives each transition and each query a token of its own, as the original does; "fused"
            adds a query to the transition before it, which halves the tokens.
        latent_mask: "causal" lets latents see nothing later, so that all steps train at once and keys and values can
            be kept; "full" lets them see recent transitions and the query, as the original does.
        decoder: gives compressed tokens back, for the reconstruction loss.
        type_embedding: add a learned vector to latents where the transformer sees them.
        head: what it says of the next action; logits of the embedding's actions by default.

    Source: Laskin et al., "In-context Reinforcement Learning with Algorithm Distillation" (2022), for the model without
    compressor.
    """

    def __init__(
        self,
        embedding: StepEmbedding,
        transformer: Transformer,
        compressor: Compressor | None = None,
        arrangement: Arrangement = "fused",
        latent_mask: LatentMask = "causal",
        decoder: ReconstructionDecoder | None = None,
        type_embedding: bool = True,
        head: ActionHead | None = None,
    ) -> None:
        super().__init__()
        if embedding.dim != transformer.dim:
            raise ValueError(f"tokens have {embedding.dim} channels, the transformer has {transformer.dim}")
        if compressor is not None and transformer.context < compressor.num_latents + 2:
            raise ValueError(
                f"a window of {transformer.context} has no room for {compressor.num_latents} latents, a transition and "
                "a query: lower num_latents or raise the transformer's context"
            )
        if arrangement == "fused" and latent_mask == "full":
            raise ValueError("latent_mask 'full' needs arrangement 'separate'")
        self.embedding = embedding
        self.transformer = transformer
        self.compressor = compressor
        self.arrangement = arrangement
        self.latent_mask = latent_mask
        self.decoder = decoder
        has_latents = compressor is not None and compressor.num_latents > 0
        self.latent_type = nn.Parameter(torch.zeros(1, 1, embedding.dim)) if type_embedding and has_latents else None
        if self.latent_type is not None:
            nn.init.trunc_normal_(self.latent_type, std=STD)
        if head is None:
            if embedding.num_actions is None:
                raise ValueError("actions in a Box need a head: BinsHead (policy.head)")
            head = CategoricalHead(embedding.dim, embedding.num_actions)
        if head.in_features != embedding.dim:
            raise ValueError(f"tokens have {embedding.dim} channels, the head takes {head.in_features}")
        self.head = head

    def check(self, env: Env) -> None:
        """Refuse an environment that this was not made for."""
        self.embedding.check(env)
        self.head.check(env)

    def fit_statistics(self, statistics: Statistics) -> None:
        """Take over how the values of training histories are spread, where a part uses it."""
        self.embedding.fit(statistics)
        self.head.fit(statistics)

    @property
    def uses_statistics(self) -> bool:
        """Whether a part does."""
        parts = (type(self.embedding).fit is not StepEmbedding.fit, type(self.head).fit is not ActionHead.fit)
        return any(parts)

    def describe(self) -> dict[str, Any]:
        """What kind it is, as JSON values."""
        return {**super().describe(), "arrangement": self.arrangement, "latent_mask": self.latent_mask}

    @property
    def window(self) -> int:
        """T: tokens that the transformer sees at most."""
        return self.transformer.context

    @property
    def num_latents(self) -> int:
        """K: latents that old context is compressed to."""
        return 0 if self.compressor is None else self.compressor.num_latents

    def capacity(self, compressed: bool) -> int:
        """Transitions that fill the window, before or after a first compression."""
        return self.window - 1 - (self.num_latents if compressed else 0)

    def segments(self, length: int) -> list[int]:
        """Cut a history of `length` steps where it is compressed."""
        cuts: list[int] = []
        while length > 0:
            room = self.capacity(len(cuts) > 0) if self.compressor is not None else self.window
            cuts.append(min(length, room))
            length -= cuts[-1]
        return cuts

    def forward(
        self,
        steps: Steps,
        gradient_rounds: int | None = None,
        last_only: bool = False,
    ) -> Output:
        """Predict the action of every step from what was before it.

        Args:
            steps: B histories of L steps; without a compressor L is at most the window.
            gradient_rounds: gradients flow through at most so many compressions in a row; all by default, 0 none.
            last_only: predict the last step's action alone, as the original trains.

        Returns:
            Logits (B, L, actions), or (B, 1, actions) for the last only; of another head its parameters.

        Raises:
            ValueError: when the history is too long without a compressor, or all steps are wanted with the full
                mask.
        """
        if not last_only and self.latent_mask == "full":
            raise ValueError(
                "latent_mask 'full' shows a latent the last query: only the last step trains (dense: false)"
            )
        cuts = self.segments(steps.length)
        if self.compressor is None and len(cuts) > 1:
            raise ValueError(
                f"{steps.length} steps do not fit the window of {self.window}, and there is no compressor: "
                "lower the length of the data"
            )
        latents: Tensor | None = None
        logits, compressions, start = [], [], 0
        for number, length in enumerate(cuts):
            part = steps.slice(start, start + length)
            start += length
            last = number + 1 == len(cuts)
            if not last_only:
                logits.append(self._all_logits(latents, part))
            elif last:
                logits.append(self._last_logits(latents, part.slice(0, length - 1), part.states[:, -1])[:, None])
            if not last:
                if latents is not None and gradient_rounds and number % gradient_rounds == 0:
                    latents = latents.detach()
                compressions.append(self.compress(latents, part))
                latents = compressions[-1].latents
                if gradient_rounds == 0:
                    latents = latents.detach()
        return Output(torch.cat(logits, 1), compressions)

    def begin(self, cached: bool = True) -> State:
        """The state of agents that know nothing yet; `cached` keeps keys and values where that is exact."""
        return State(cache=self._new_cache() if cached else None)

    def act(self, state: State, queries: Tensor) -> Tensor:
        """Predict the next action, logits (B, actions), in states (B, ...); to be called once before each `observe`."""
        if state.cache is None:
            return self._last_logits(state.latents, state.steps, queries)
        last = None if state.steps is None else state.steps.slice(state.length - 1, state.length)
        tokens = self.embedding.queries(queries)[:, None]  # (B, 1, dim)
        place = (0 if state.latents is None else self.num_latents) + state.length
        first = place
        mask = None
        if last is None:
            if state.latents is not None:
                tokens, first = torch.cat([self._shown(state.latents), tokens], 1), 0
        elif self.arrangement == "fused":
            tokens = tokens + self.embedding.transitions(last)
        else:
            tokens, first = torch.cat([self.embedding.transitions(last), tokens], 1), place - 1
            mask = torch.ones(2, place + 1, dtype=torch.bool, device=tokens.device).tril(place - 1)
        positions = torch.arange(first, place + 1, device=tokens.device)
        output = self.transformer(tokens, positions, mask, state.cache)
        if self.arrangement == "separate":
            state.cache.drop_last()
        return self.head(output[:, -1])

    def observe(self, state: State, step: Steps) -> None:
        """Take in the last transitions, L = 1, changing the state in place; compresses when the window is full."""
        state.steps = step if state.steps is None else Steps.cat([state.steps, step])
        room = self.capacity(state.latents is not None)
        if self.compressor is None:
            if state.length >= room:
                state.cache = None  # positions shift from now on
                state.steps = state.steps.slice(state.length - room, state.length)
        elif state.length == room:
            state.latents = self.compress(state.latents, state.steps).latents
            state.steps = None
            state.cache = None if state.cache is None else self._new_cache()
            state.compressions += 1

    def logits(
        self,
        states: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_states: Tensor,
        query_states: Tensor,
        *,
        segment_lengths: list[int] | None = None,
        max_compressions: int | None = None,
    ) -> Tensor:
        """Predict the next action after a context of any length, as the originals do while they train.

        Args:
            states: (B, L, 2).
            actions: (B, L, actions), one-hot.
            rewards: (B, L).
            next_states: (B, L, 2).
            query_states: (B, 2).
            segment_lengths: compress so many transitions each, one after the other (the earlier original). Otherwise
                the oldest that are too many for the window are compressed at once (the last original).
            max_compressions: 0 leaves out what is too old.

        Returns:
            Logits (B, actions).
        """
        dones = torch.zeros(rewards.shape, dtype=torch.bool, device=rewards.device)
        steps = Steps(states.long(), actions.argmax(-1), rewards, next_states.long(), dones)
        latents: Tensor | None = None
        if self.compressor is None or max_compressions == 0:
            segment_lengths = []
            steps = steps.slice(max(0, steps.length - self.window + 1), steps.length)
        elif segment_lengths is None:
            over = steps.length - self.capacity(False)
            segment_lengths = [over + self.num_latents] if over > 0 else []
        for length in segment_lengths:
            latents = self.compress(latents, steps.slice(0, length)).latents
            steps = steps.slice(length, steps.length)
        return self._last_logits(latents, steps, query_states.long())

    def _new_cache(self) -> Cache | None:
        return Cache(len(self.transformer.blocks)) if self.latent_mask == "causal" else None

    def _shown(self, latents: Tensor) -> Tensor:
        """Latents as the transformer sees them."""
        return latents if self.latent_type is None else latents + self.latent_type

    def compress(self, latents: Tensor | None, steps: Steps) -> Compression:
        """Turn latents (B, K, dim), if there are any, and transitions into new latents."""
        assert self.compressor is not None
        tokens = self.embedding.transitions(steps)
        if latents is not None:
            tokens = torch.cat([latents, tokens], 1)  # (B, K + L, dim)
        return Compression(tokens, steps, self.compressor(tokens))

    def _all_logits(self, latents: Tensor | None, steps: Steps) -> Tensor:
        """Logits (B, L, actions) of all steps of a segment."""
        before = self.embedding.transitions(steps.slice(0, steps.length - 1))  # (B, L - 1, dim)
        queries = self.embedding.queries(steps.states)  # (B, L, dim)
        prefix = before[:, :0] if latents is None else self._shown(latents)
        if self.arrangement == "fused":
            output = self.transformer(torch.cat([prefix, fuse(before, queries)], 1))
        else:
            shown, count = prefix.shape[1], steps.length
            index = torch.arange(shown + count, device=queries.device)
            positions = torch.cat([index[:-1], index[shown:]])
            output = self.transformer(
                torch.cat([prefix, before, queries], 1), positions, separate_mask(shown, count, queries.device)
            )
        return self.head(output[:, -steps.length :])

    def _last_logits(self, latents: Tensor | None, steps: Steps | None, queries: Tensor) -> Tensor:
        """Logits (B, actions) of one more step after those of a segment."""
        query = self.embedding.queries(queries)[:, None]  # (B, 1, dim)
        before = query[:, :0] if steps is None else self.embedding.transitions(steps)
        prefix = query[:, :0] if latents is None else self._shown(latents)
        mask = None
        if self.arrangement == "fused":
            earlier = query[:, :0] if steps is None else self.embedding.queries(steps.states)
            tokens = torch.cat([prefix, fuse(before, torch.cat([earlier, query], 1))], 1)
        else:
            tokens = torch.cat([prefix, before, query], 1)
            if self.latent_mask == "full" and latents is not None:
                mask = full_mask(prefix.shape[1], tokens.shape[1], tokens.device)
        return self.head(self.transformer(tokens, mask=mask)[:, -1])
