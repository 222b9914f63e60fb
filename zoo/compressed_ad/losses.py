"""Losses of in-context policies: the predicted actions, and the reconstruction of compressed context."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.compressed_ad.nets.compression import FieldDecoder
from zoo.compressed_ad.nets.policy import Compression, InContextPolicy
from zoo.compressed_ad.nets.steps import Steps


def reconstruction_loss(
    policy: InContextPolicy,
    compression: Compression,
    reward_weight: float = 1.0,
    seed: int | None = None,
    reconstructed: Tensor | None = None,
) -> Tensor:
    """How badly the policy's decoder reconstructs from the latents what was compressed.

    A plain decoder gives back all tokens, old latents included: mean squared error, the tokens being fixed. A
    `FieldDecoder` predicts the fields of the transitions: mean cross-entropy of a field, in nats.

    Args:
        policy: with a decoder.
        compression: its `steps` may begin before its tokens for a `FieldDecoder`: what old latents should still tell.
        reward_weight: of a rewarded transition, others having 1.
        seed: of the positions that a `FieldDecoder` reconstructs, the same on every process; all by default.
        reconstructed: these positions (n,), where they were drawn before.

    Returns:
        A scalar.
    """
    decoder = policy.decoder
    if decoder is None:
        raise ValueError("a policy without decoder reconstructs nothing: give policy.decoder, or recon_weight 0")
    tokens, steps, latents = compression
    old = tokens.shape[1] - steps.length
    decoder.check_tokens(tokens.shape[1] - min(old, 0))
    if isinstance(decoder, FieldDecoder):
        chosen = decoder.chosen(steps.length, seed, tokens.device) if reconstructed is None else reconstructed
        steps = Steps(*(field[:, chosen] for field in steps))
        places = (chosen + old) % decoder.position_queries.shape[1]  # what is before the tokens: from the table's end
        predicted = zip(decoder.field_logits(latents, places), decoder.field_values(steps), strict=True)
        errors = torch.stack([cross_entropy(logits, values) for logits, values in predicted]).mean(0)
        rewarded = steps.rewards > 0
    else:
        output = decoder(latents, torch.arange(tokens.shape[1], device=tokens.device))
        errors = (output.float() - tokens.detach().float()).square().mean(-1)
        rewarded = F.pad(steps.rewards > 0, (old, 0))
    return (errors * (1 + (reward_weight - 1) * rewarded)).mean()


def cross_entropy(logits: Tensor, classes: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy (B, L) of logits (B, L, classes), in nats."""
    return F.cross_entropy(logits.float().transpose(1, 2), classes, reduction="none", label_smoothing=label_smoothing)
