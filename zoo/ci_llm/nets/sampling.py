"""Choosing a token from the crowd's prediction: temperature and the filters, applied after aggregation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_positive, check_within


class Sampling:
    """Temperature, then top-k, top-p and min-p, then a draw.

    Args:
        temperature: 0 takes the likeliest token; 1 draws from the prediction as it is.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens that together have at least this probability, in (0, 1].
        min_p: keep the tokens with at least this part of the likeliest one's probability, in [0, 1].

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), section 3; Nguyen et al., "Turning
    Up the Heat: Min-p Sampling" (2024), section 3.
    """

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> None:
        check_at_least(0, temperature=temperature, top_k=top_k)
        check_within(0, 1, top_p=top_p, min_p=min_p)
        check_positive(top_p=top_p)
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    def filtered(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities (B, V) that tokens are drawn from, -inf for what is left out; constants in rows cancel."""
        if self.greedy:
            raise ValueError("temperature 0 draws nothing: call choose, or give a temperature above 0")
        scores = (log_probs.float() / self.temperature).log_softmax(-1)
        if 0 < self.top_k < scores.shape[-1]:
            kept = torch.full_like(scores, -math.inf)
            best = scores.topk(self.top_k, dim=-1)
            scores = kept.scatter(-1, best.indices, best.values).log_softmax(-1)
        if self.top_p < 1:
            ordered, order = scores.sort(dim=-1, descending=True, stable=True)
            before = ordered.exp().cumsum(-1) - ordered.exp()
            ordered = ordered.masked_fill(before >= self.top_p, -math.inf)
            scores = torch.empty_like(scores).scatter(-1, order, ordered).log_softmax(-1)
        if self.min_p > 0:
            limit = scores.amax(-1, keepdim=True) + math.log(self.min_p)
            scores = scores.masked_fill(scores < limit, -math.inf).log_softmax(-1)
        return scores

    def choose(self, log_probs: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """Choose a token for every row of log-probabilities (B, V).

        Args:
            uniforms: (B,), in (0, 1), each row's random number; at temperature 0 the first of equals is taken.
        """
        if self.greedy:
            return log_probs.argmax(-1)
        if uniforms is None:
            raise ValueError(f"temperature {self.temperature} draws tokens: give one random number per row")
        return draw(self.filtered(log_probs), uniforms)


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw indices (B,) from rows of log-probabilities (B, V), by numbers (B,) in (0, 1); none of weight 0."""
    heights = log_probs.double().exp().cumsum(-1)
    at = uniforms.to(heights)[:, None] * heights[:, -1:]
    return torch.searchsorted(heights, at).squeeze(-1).clamp(max=log_probs.shape[-1] - 1)
