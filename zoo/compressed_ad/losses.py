"""Losses of in-context policies: the predicted actions, and the reconstruction of compressed context."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.compressed_ad.nets.compression import FieldDecoder
from zoo.compressed_ad.nets.heads import cross_entropy
from zoo.compressed_ad.nets.policy import Compression, InContextPolicy
from zoo.compressed_ad.nets.steps import Steps


def reconstruction_loss(
    policy: InContextPolicy,
    compression: Compression,
    reward_weight: float = 1.0,
    reconstructed: Tensor | None = None,
) -> Tensor:
    """Compute the loss of reconstructing from the latents what was compressed, a scalar.

    A plain decoder reconstructs all tokens, old latents included: mean squared error, the tokens being fixed. A
    `FieldDecoder` predicts the fields of the transitions: mean cross-entropy of a field, in nats.

    Args:
        compression: its `steps` may begin before its tokens for a `FieldDecoder`, to test old latents.
        reward_weight: of a rewarded transition, others having 1.
        reconstructed: positions (n,) that a `FieldDecoder` reconstructs; all by default.
    """
    decoder = policy.decoder
    assert decoder is not None
    tokens, steps, latents = compression
    old = tokens.shape[1] - steps.length
    decoder.check_tokens(tokens.shape[1] - min(old, 0))
    if isinstance(decoder, FieldDecoder):
        if reconstructed is None:
            reconstructed = torch.arange(steps.length, device=tokens.device)
        steps = Steps(*(field[:, reconstructed] for field in steps))
        positions = (reconstructed + old) % decoder.position_queries.shape[1]  # before the tokens: from the table's end
        predicted = zip(decoder.field_logits(latents, positions), decoder.field_values(steps), strict=True)
        errors = torch.stack([cross_entropy(logits, values) for logits, values in predicted]).mean(0)
        rewarded = steps.rewards > 0
    else:
        output = decoder(latents, torch.arange(tokens.shape[1], device=tokens.device))
        errors = (output.float() - tokens.detach().float()).square().mean(-1)
        rewarded = F.pad(steps.rewards > 0, (old, 0))
    return (errors * (1 + (reward_weight - 1) * rewarded)).mean()
