"""The task loss of every agent: cross-entropy of the next token."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORED = -100  # label of positions without loss: prompt and padding


def token_losses(logits: Tensor, labels: Tensor, shift: bool = True) -> Tensor:
    """Cross-entropy (K, B, T) of each labelled token at the position that predicts it, in float32; zero elsewhere.

    Args:
        logits: (K, B, T, V), any float type.
        labels: (B, T), or (K, B, T) with texts for each agent; int64, -100 for no loss.
        shift: let position t predict label t + 1. Without, label t, as the original does by mistake.
    """
    if labels.shape not in (logits.shape[1:3], logits.shape[:3]):
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}, expected {tuple(logits.shape[1:3])} or "
            f"{tuple(logits.shape[:3])} for logits {tuple(logits.shape)}"
        )
    targets = shifted_labels(labels, shift).flatten(-2)
    return target_losses(logits.flatten(1, 2), targets).view(logits.shape[:3])


def target_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (K, M) of targets (M,) or (K, M) for logits (K, M, V), in float32; zero where a target is -100."""
    targets = targets.expand(logits.shape[:2])
    flat = F.cross_entropy(logits.flatten(0, 1).float(), targets.reshape(-1), ignore_index=IGNORED, reduction="none")
    return flat.view(targets.shape)


def losses(logits: Tensor, labels: Tensor, normaliser: Tensor | float | None = None, shift: bool = True) -> Tensor:
    """Mean cross-entropy (K,) of each agent over its labelled tokens, for logits (K, B, T, V); 0 where there is none.

    Args:
        normaliser: divide the sum by this instead of the number of labelled tokens: a number, or (K,).
        shift: as in `token_losses`.
    """
    if normaliser is None:
        normaliser = (shifted_labels(labels, shift) != IGNORED).sum((-2, -1)).clamp(min=1)
    return token_losses(logits, labels, shift).sum((1, 2)) / normaliser


def shifted_labels(labels: Tensor, shift: bool = True) -> Tensor:
    """The label that each position predicts (..., T), -100 where none; `shift` as in `token_losses`."""
    return F.pad(labels[..., 1:], (0, 1), value=IGNORED) if shift else labels


def label_positions(labels: Tensor, shift: bool = True) -> Tensor:
    """The positions b * T + t that predict a label, ascending; `shift` as in `token_losses`.

    Returns:
        (M,) int64 for labels (B, T); (K, M) for (K, B, T), padded with -1.
    """
    is_labelled = (shifted_labels(labels, shift) != IGNORED).flatten(-2)
    if labels.ndim == 2:
        return is_labelled.nonzero()[:, 0]
    return pad_sequence([each.nonzero()[:, 0] for each in is_labelled], batch_first=True, padding_value=-1)


def targets_at(labels: Tensor, positions: Tensor, shift: bool = True) -> Tensor:
    """The labels that `label_positions` predict, of their shape; -100 at padding."""
    targets = shifted_labels(labels, shift).flatten(-2).gather(-1, positions.clamp(min=0))
    return targets.masked_fill(positions < 0, IGNORED)
