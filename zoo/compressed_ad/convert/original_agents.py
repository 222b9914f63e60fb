"""How the original's models act, step by step, with their faults: for comparison with it, not for use."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.compressed_ad.nets.compression import Compressor
from zoo.compressed_ad.nets.embedding import LinearEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy, State
from zoo.compressed_ad.nets.steps import Steps


class LegacyCAD:
    """CAD: in the step after each compression it answers from the query alone, as if it had no latents.

    Args:
        policy: CAD in evaluation mode.
    """

    def __init__(self, policy: InContextPolicy) -> None:
        self.policy = policy
        self.state = policy.begin()

    def act(self, queries: Tensor) -> Tensor:
        """Logits (B, actions) of the states (B, 2)."""
        return self.policy.act(State() if self.state.steps is None else self.state, queries)

    def observe(self, step: Steps) -> None:
        """Take in what a step brought (L = 1)."""
        self.policy.observe(self.state, step)


class LegacyEncoder:
    """The earlier model ("v1"): its tokens are not normalised, unlike in training.

    Once the window is full, it compresses in every step, one transition at a time.

    Args:
        policy: the earlier model in evaluation mode.
        fix_mask: let latents see all, as in training; else the causal mask of the first full window stays in use.
    """

    def __init__(self, policy: InContextPolicy, fix_mask: bool = False) -> None:
        embedding, compressor = policy.embedding, policy.compressor
        if not isinstance(embedding, LinearEmbedding) or compressor is None:
            raise ValueError(
                f"the earlier model has a LinearEmbedding and a compressor, found {type(embedding).__name__} and "
                f"{type(compressor).__name__}"
            )
        self.policy = policy
        self.fix_mask = fix_mask
        self.compressions = 0
        self.latents: Tensor | None = None
        self.tokens: Tensor | None = None
        self._compressor: Compressor = compressor
        self._embedding = LinearEmbedding(embedding.dim, embedding.grid_size, embedding.num_actions)
        self._embedding.context = embedding.context

    def act(self, queries: Tensor) -> Tensor:
        """Logits (B, actions) of the states (B, 2)."""
        policy = self.policy
        query = policy.embedding.queries(queries)[:, None]
        tokens = query[:, :0] if self.tokens is None else self.tokens
        over = tokens.shape[1] - policy.capacity(compressed=True)
        if tokens.shape[1] > policy.capacity(self.latents is not None):
            old = tokens[:, :over] if self.latents is None else torch.cat([self.latents, tokens[:, :over]], 1)
            self.latents, self.tokens = self._compressor(old), tokens[:, over:]
            self.compressions += 1
            tokens = self.tokens
        sequence = [tokens, query] if self.latents is None else [self.latents, tokens, query]
        mask = None
        if self.latents is not None and self.fix_mask:
            mask = torch.ones(policy.window, policy.window, dtype=torch.bool, device=queries.device).tril()
            mask[: policy.num_latents] = True
        return policy.head(policy.transformer(torch.cat(sequence, 1), mask=mask)[:, -1])

    def observe(self, step: Steps) -> None:
        """Take in what a step brought (L = 1)."""
        token = self._embedding.transitions(step)
        self.tokens = token if self.tokens is None else torch.cat([self.tokens, token], 1)
