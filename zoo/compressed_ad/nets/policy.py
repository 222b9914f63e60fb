"""The in-context policy: a causal transformer over its own history, with old context compressed to latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.nets.compression import STD, Compressor, FieldDecoder, ReconstructionDecoder
from zoo.compressed_ad.nets.embedding import StepEmbedding
from zoo.compressed_ad.nets.heads import ActionHead, CategoricalHead
from zoo.compressed_ad.nets.steps import Statistics, Steps
from zoo.compressed_ad.nets.transformer import KVCache, Transformer


def fuse(before: Tensor, queries: Tensor) -> Tensor:
    """Add each transition (B, L - 1, dim) to the query (B, L, dim) after it."""
    return torch.cat([queries[:, :1], queries[:, 1:] + before], 1)


def separate_mask(latents: int, count: int, device: torch.device) -> Tensor:
    """Latents and transitions see what is not later; each query sees what was before it, and itself."""
    context = latents + count - 1
    mask = torch.zeros(context + count, context + count, dtype=torch.bool, device=device)
    mask[:context, :context] = torch.ones(context, context, dtype=torch.bool, device=device).tril()
    mask[context:, :context] = torch.ones(count, context, dtype=torch.bool, device=device).tril(latents - 1)
    mask[context:, context:] = torch.eye(count, dtype=torch.bool, device=device)
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

    tokens: (B, N, dim), its input: the old latents, then the embedded transitions `steps`.
    latents: (B, K, dim), its output.
    """

    tokens: Tensor
    steps: Steps
    latents: Tensor


class Output(NamedTuple):
    """The head's parameters of the actions, logits or of another distribution, and the compressions before them."""

    logits: Tensor
    compressions: list[Compression]


@dataclass
class ContextState:
    """The context of agents while they act.

    Args:
        latents: (B, K, dim), None before the first compression.
        steps: transitions since then, None when there is none.
        cache: keys and values of the transformer's tokens since then; None where they cannot be cached.
    """

    latents: Tensor | None = None
    steps: Steps | None = None
    cache: KVCache | None = None
    compressions: int = 0

    @property
    def length(self) -> int:
        """Transitions since the last compression."""
        return 0 if self.steps is None else self.steps.length


class InContextPolicy(nn.Module):
    """Predicts the next action from the history so far; its weights stay fixed while it learns a task in its context.

    Without a compressor it sees the last T - 1 transitions (algorithm distillation). With one, the transitions since
    the last compression and K latents: whenever they fill the window, the compressor turns both into K new latents.
    Training and acting compress at the same steps.

    Args:
        embedding: of transitions and query states.
        transformer: its context is the window T: latents, transitions and query.
        compressor: turns what leaves the window into latents; null for none.
        arrangement: "separate" gives each transition and each query a token, as the original does; "fused"
            adds a query to the transition before it, which halves the tokens.
        latent_mask: "causal" lets latents see nothing later, so that all steps train at once and keys and values can
            be cached; "full" lets them see recent transitions and the query, as the original does.
        decoder: reconstructs compressed tokens, for the reconstruction loss.
        type_embedding: add a learned vector to latents where the transformer sees them.
        head: distribution of the next action; logits of the embedding's actions by default.

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
        for part in (compressor, decoder):
            dim = getattr(part, "dim", embedding.dim)
            if dim != embedding.dim:
                raise ValueError(f"tokens have {embedding.dim} channels, {type(part).__name__} has {dim}: set its dim")
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
        if isinstance(self.decoder, FieldDecoder):
            self.decoder.check(env)

    def fit_statistics(self, statistics: Statistics) -> None:
        """Pass statistics of training histories to embedding and head."""
        self.embedding.fit(statistics)
        self.head.fit(statistics)

    @property
    def uses_statistics(self) -> bool:
        """Whether embedding or head use them."""
        return type(self.embedding).fit is not StepEmbedding.fit or type(self.head).fit is not ActionHead.fit

    def describe(self) -> dict[str, Any]:
        """Return its kind and sizes as JSON values."""
        return {
            "window": self.window,
            "num_latents": self.num_latents,
            "compressor": None if self.compressor is None else type(self.compressor).__name__,
            "parameters": sum(weight.numel() for weight in self.parameters()),
            "arrangement": self.arrangement,
            "latent_mask": self.latent_mask,
        }

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
        """Return the lengths of the parts between compressions of a history of `length` steps."""
        cuts: list[int] = []
        while length > 0:
            room = self.capacity(len(cuts) > 0) if self.compressor is not None else self.window
            cuts.append(min(length, room))
            length -= cuts[-1]
        return cuts

    def forward(self, steps: Steps, gradient_rounds: int | None = None, last_only: bool = False) -> Output:
        """Predict the action of every step from what was before it: logits (B, L, actions).

        Args:
            steps: B histories of L steps; without a compressor L is at most the window.
            gradient_rounds: gradients flow through at most so many compressions in a row; all by default, 0 none.
            last_only: predict the last step's action alone, logits (B, 1, actions), as the original trains.

        Raises:
            ValueError: for too long a history without a compressor, or all steps with the full mask.
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
                logits.append(self.last_logits(latents, part.slice(0, length - 1), part.states[:, -1])[:, None])
            if not last:
                if latents is not None and gradient_rounds and number % gradient_rounds == 0:
                    latents = latents.detach()
                compressions.append(self.compress(latents, part))
                latents = compressions[-1].latents
                if gradient_rounds == 0:
                    latents = latents.detach()
        return Output(torch.cat(logits, 1), compressions)

    def begin(self, cached: bool = True) -> ContextState:
        """Return an empty context; `cached` caches keys and values where that is exact."""
        return ContextState(cache=self._new_cache() if cached else None)

    def act(self, state: ContextState, queries: Tensor) -> Tensor:
        """Predict the next action, logits (B, actions), in states (B, ...); to be called once before each `observe`."""
        if state.cache is None:
            return self.last_logits(state.latents, state.steps, queries)
        last = None if state.steps is None else state.steps.slice(state.length - 1, state.length)
        tokens = self.embedding.queries(queries)[:, None]  # (B, 1, dim)
        position = (0 if state.latents is None else self.num_latents) + state.length
        first = position
        mask = None
        if last is None:
            if state.latents is not None:
                tokens, first = torch.cat([self._typed(state.latents), tokens], 1), 0
        elif self.arrangement == "fused":
            tokens = tokens + self.embedding.transitions(last)
        else:
            tokens, first = torch.cat([self.embedding.transitions(last), tokens], 1), position - 1
            mask = torch.ones(2, position + 1, dtype=torch.bool, device=tokens.device).tril(position - 1)
        positions = torch.arange(first, position + 1, device=tokens.device)
        output = self.transformer(tokens, positions, mask, state.cache)
        if self.arrangement == "separate":
            state.cache.drop_last()
        return self.head(output[:, -1])

    def observe(self, state: ContextState, step: Steps) -> None:
        """Append the last transitions, L = 1, to the state in place; compress when the window is full."""
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

    def _new_cache(self) -> KVCache | None:
        return KVCache(len(self.transformer.blocks)) if self.latent_mask == "causal" else None

    def _typed(self, latents: Tensor) -> Tensor:
        """Add the type vector to latents, where there is one."""
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
        prefix = before[:, :0] if latents is None else self._typed(latents)
        if self.arrangement == "fused":
            output = self.transformer(torch.cat([prefix, fuse(before, queries)], 1))
        else:
            latent_count, count = prefix.shape[1], steps.length
            index = torch.arange(latent_count + count, device=queries.device)
            positions = torch.cat([index[:-1], index[latent_count:]])
            output = self.transformer(
                torch.cat([prefix, before, queries], 1), positions, separate_mask(latent_count, count, queries.device)
            )
        return self.head(output[:, -steps.length :])

    def last_logits(self, latents: Tensor | None, steps: Steps | None, queries: Tensor) -> Tensor:
        """Predict the action in states (B, ...) after the latents and steps of a segment, logits (B, actions)."""
        query = self.embedding.queries(queries)[:, None]  # (B, 1, dim)
        before = query[:, :0] if steps is None else self.embedding.transitions(steps)
        prefix = query[:, :0] if latents is None else self._typed(latents)
        mask = None
        if self.arrangement == "fused":
            earlier = query[:, :0] if steps is None else self.embedding.queries(steps.states)
            tokens = torch.cat([prefix, fuse(before, torch.cat([earlier, query], 1))], 1)
        else:
            tokens = torch.cat([prefix, before, query], 1)
            if self.latent_mask == "full" and latents is not None:
                mask = full_mask(prefix.shape[1], tokens.shape[1], tokens.device)
        return self.head(self.transformer(tokens, mask=mask)[:, -1])
