"""Choosing a token from the crowd's prediction: temperature and filters, applied after aggregation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_positive, check_within
from zoo.common.tensors import widest_float


class Sampling:
    """Temperature, then top-k, top-p and min-p, then a random choice.

    Args:
        temperature: 0 takes the likeliest token; 1 samples from the prediction as it is.
        top_k: the k likeliest tokens remain; 0 for all.
        top_p: the likeliest tokens that together have at least this probability remain, in (0, 1].
        min_p: tokens with at least this share of the likeliest one's probability remain, in [0, 1].

    Source: the filters are those of transformers (`TopKLogitsWarper`, `TopPLogitsWarper`, `MinPLogitsWarper`).
    """

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> None:
        check_at_least(0, temperature=temperature, top_k=top_k)
        check_within(0, 1, top_p=top_p, min_p=min_p)
        check_positive(top_p=top_p)
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p

    def filter(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities (B, V) at this temperature, above 0, of the remaining tokens; -inf for the others."""
        from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        warpers: list[Any] = [TopKLogitsWarper(self.top_k)] if self.top_k else []
        warpers += [TopPLogitsWarper(self.top_p)] if self.top_p < 1 else []
        warpers += [MinPLogitsWarper(self.min_p)] if self.min_p else []
        scores = log_probs.float() / self.temperature
        for warper in warpers:
            scores = warper(None, scores)  # they do not read the ids
        return scores.log_softmax(-1)

    def choose(self, log_probs: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Choose a token (B,) for every row of log-probabilities (B, V).

        Args:
            uniforms: a random number for each row (B,), in (0, 1); at temperature 0 the first of equals is taken.
        """
        if self.temperature == 0:
            return log_probs.argmax(-1)
        if uniforms is None:
            raise ValueError(f"temperature {self.temperature} samples tokens: give one random number per row")
        return sample_indices(self.filter(log_probs), uniforms)


def sample_indices(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Sample indices (B,) from rows of log-probabilities (B, V), by numbers (B,) in (0, 1); none of probability 0."""
    cumulative = log_probs.to(widest_float(log_probs.device)).exp().cumsum(-1)
    thresholds = uniforms.to(cumulative)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, thresholds).squeeze(-1).clamp(max=log_probs.shape[-1] - 1)
