"""How the original's models act, step by step, with their faults: for comparison with it, not for use."""

import torch
from torch import Tensor

from zoo.compressed_ad import InContextPolicy, LinearEmbedding
from zoo.compressed_ad.nets.steps import Steps


class LegacyEncoder:
    """The earlier model ("v1"): its tokens are not normalised, unlike in training.

    Once the window is full, it compresses in every step, one transition at a time.

    Args:
        policy: the earlier model in evaluation mode.
        fix_mask: let latents see all, as in training; else the causal mask of the first full window stays in use.
    """

    def __init__(self, policy: InContextPolicy, fix_mask: bool = False) -> None:
        embedding = policy.embedding
        self.policy = policy
        self.fix_mask = fix_mask
        self.compressions = 0
        self.latents: Tensor | None = None
        self.tokens: Tensor | None = None
        self._embedding = LinearEmbedding(embedding.dim, embedding.grid_size, embedding.num_actions)
        self._embedding.context = embedding.context

    def act(self, queries: Tensor) -> Tensor:
        """Logits (B, actions) of the states (B, 2)."""
        policy = self.policy
        query = policy.embedding.queries(queries)[:, None]
        tokens = query[:, :0] if self.tokens is None else self.tokens
        above = tokens.shape[1] - policy.capacity(compressed=True)
        if tokens.shape[1] > policy.capacity(self.latents is not None):
            old = tokens[:, :above] if self.latents is None else torch.cat([self.latents, tokens[:, :above]], 1)
            self.latents, self.tokens = policy.compressor(old), tokens[:, above:]
            self.compressions += 1
            tokens = self.tokens
        sequence = [tokens, query] if self.latents is None else [self.latents, tokens, query]
        mask = None
        if self.latents is not None and self.fix_mask:
            mask = torch.ones(policy.window, policy.window, dtype=torch.bool, device=queries.device).tril()
            mask[: policy.num_latents] = True
        return policy.head(policy.transformer(torch.cat(sequence, 1), mask=mask)[:, -1])

    def observe(self, step: Steps) -> None:
        """Append a step (L = 1)."""
        token = self._embedding.transitions(step)
        self.tokens = token if self.tokens is None else torch.cat([self.tokens, token], 1)


def training_logits(
    policy: InContextPolicy,
    states: Tensor,
    actions: Tensor,
    rewards: Tensor,
    next_states: Tensor,
    query_states: Tensor,
    *,
    segment_lengths: list[int] | None = None,
    max_compressions: int | None = None,
) -> Tensor:
    """Logits (B, actions) of the next action after a context of L transitions, as the originals compute in training.

    Args:
        policy: AD, CAD or the earlier model.
        states: (B, L, 2), as are next_states.
        actions: (B, L, actions), one-hot.
        rewards: (B, L).
        query_states: (B, 2).
        segment_lengths: compress so many transitions each, one after the other (the earlier original). Otherwise
            the oldest that are too many for the window are compressed at once (the last original).
        max_compressions: 0 leaves out what is too old.
    """
    dones = torch.zeros(rewards.shape, dtype=torch.bool, device=rewards.device)
    steps = Steps(states.long(), actions.argmax(-1), rewards, next_states.long(), dones)
    latents: Tensor | None = None
    if policy.compressor is None or max_compressions == 0:
        segment_lengths = []
        steps = steps.slice(max(0, steps.length - policy.window + 1), steps.length)
    elif segment_lengths is None:
        above = steps.length - policy.capacity(False)
        segment_lengths = [above + policy.num_latents] if above > 0 else []
    for length in segment_lengths:
        latents = policy.compress(latents, steps.slice(0, length)).latents
        steps = steps.slice(length, steps.length)
    return policy.last_logits(latents, steps, query_states.long())
