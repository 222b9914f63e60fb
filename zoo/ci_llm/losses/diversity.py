"""The diversity term: what of the agents is compared, across ranks where wanted, and how it enters the loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from zoo.ci_llm.losses.distances import pairwise_divergences, random_directions, sliced_wasserstein
from zoo.common.checks import check_at_least
from zoo.common.tensors import sample_uniforms_numpy

Strategy = Literal["last_token", "mean_pool", "first_token", "answer_mean", "answer_tokens"]
Space = Literal["hidden", "logits", "probs"]
Kind = Literal["swd", "js", "kl"]
_POOLED = ("mean_pool", "answer_mean")
_TINY = 1e-12


def representations(
    values: Tensor,
    attention_mask: Tensor,
    labels: Tensor | None = None,
    strategy: Strategy = "last_token",
    mask: bool = True,
) -> Tensor:
    """One point per text and agent (or several) from values per position.

    Args:
        values: (K, B, T, D), hidden states or predictions.
        attention_mask: (B, T), 1 for real tokens; (K, B, T) where the agents read texts of their own.
        labels: shaped like the mask, -100 where there is none; the answer is predicted at the positions before its
            labels. Needed by `answer_mean` and `answer_tokens`.
        strategy: `last_token` (the last real one), `mean_pool` (mean over real tokens), `first_token`, `answer_mean`
            (mean over the positions that predict the answer) or `answer_tokens` (each of those is a point).
        mask: heed the mask; otherwise the ends and the mean include padding, as in the original. The answer strategies
            heed the labels in any case.

    Returns:
        (K, B, D); (K, N, D) for the N positions of `answer_tokens`, which compares agents that read the same texts.
    """
    chosen = _chosen(attention_mask, labels, strategy, mask)
    if strategy in _POOLED:
        return _masked_mean(values, chosen)
    if strategy != "answer_tokens":
        places = _end(chosen, strategy).expand(values.shape[:2])  # (K, B)
        return values.gather(2, places[..., None, None].expand(-1, -1, -1, values.shape[-1])).squeeze(2)
    _check_shared(chosen)
    return values[:, chosen]


def _chosen(attention_mask: Tensor, labels: Tensor | None, strategy: Strategy, mask: bool) -> Tensor:
    """The positions, (B, T) or (K, B, T), that a strategy pools or looks for an end among."""
    if strategy in ("answer_mean", "answer_tokens"):
        if labels is None:
            raise ValueError(f"diversity strategy {strategy} needs labels, found none: give them, or use mean_pool")
        return F.pad(labels[..., 1:] != -100, (0, 1))
    if strategy not in ("last_token", "mean_pool", "first_token"):
        raise ValueError(
            f"unknown diversity strategy {strategy!r}: use last_token, mean_pool, first_token, answer_mean or "
            "answer_tokens"
        )
    return attention_mask.bool() if mask else torch.ones_like(attention_mask, dtype=torch.bool)


def _end(chosen: Tensor, strategy: Strategy) -> Tensor:
    """The last or the first chosen position of each text, (B,) or (K, B)."""
    if strategy == "first_token":
        return chosen.long().argmax(-1)
    return chosen.shape[-1] - 1 - chosen.flip(-1).long().argmax(-1)


def _check_shared(positions: Tensor) -> None:
    if positions.ndim > 2:
        raise ValueError("answer_tokens compares agents that read the same texts: use answer_mean")


def _mean_of_texts(values: Tensor, positions: Tensor, chosen: Tensor) -> Tensor:
    """`_masked_mean` of values (K, M, D) that are known at some positions alone, (M,) or (K, M)."""
    rows, length = chosen.shape[-2:]
    places = positions.clamp(min=0)
    counted = chosen.flatten(-2).gather(-1, places) & (positions >= 0)
    here = torch.arange(rows, device=places.device)[:, None] == (places // length)[..., None, :]
    weights = (here & counted[..., None, :]).float()  # (..., B, M)
    return weights @ values.float() / weights.sum(-1, keepdim=True).clamp(min=1)


def _masked_mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean over the chosen positions, (B, T) or (K, B, T); zero for a text without any."""
    weights = chosen.float()[..., None]
    return (values.float() * weights).sum(2) / weights.sum(-2).clamp(min=1)


def all_ranks(values: Tensor) -> Tensor:
    """Values of one shape from all ranks (ranks, ...), differentiable; (1, ...) where there is one process."""
    if not (dist.is_available() and dist.is_initialized()):
        return values[None]
    return torch.stack(list(all_gather(values.contiguous())))


def gather_points(points: Tensor, gather: Callable[[Tensor], Tensor] = all_ranks) -> Tensor:
    """Join the point sets (K, B, D) of all ranks; B may differ between ranks.

    Gradients sum over ranks on the way back; the mean that data-parallel training takes of them then is the gradient
    of one process with the whole batch.
    """
    ranks = gather(torch.tensor([points.shape[1]], device=points.device)).flatten()
    if len(ranks) == 1:
        return points
    sizes = ranks.tolist()
    padded = F.pad(points, (0, 0, 0, max(sizes) - points.shape[1]))
    parts = gather(padded).reshape(len(sizes), *padded.shape)
    return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], dim=1)


class Diversity:
    """The diversity term of the loss: total = task loss + `loss(value(represent(...)))`.

    Args:
        weight: lambda, at least 0; 0 turns the term off, and hidden states are not computed.
        projections: directions of the sliced distance.
        strategy: what of a text is compared, see `representations`. `first_token` sees one token of a causal model and
            measures nothing but how adapters move it.
        layer: index into the hidden states, -1 being the last, after the final norm.
        space: what is compared: hidden states, logits or probabilities.
        mask: keep padding out; false for parity with the original.
        normalize: bring every point to length 1, so that no distance is won by longer vectors.
        target: the term is `weight * max(0, target - R)` and stops pushing at the target; without one, `-weight * R`.
        warmup_steps: batches until the weight is full; it grows linearly from batch 0 on.
        gather: compare the point sets of all ranks instead of each rank's own.
        kind: `swd`, or `js` or `kl` for divergences of the agents' predictions (at the single positions of
            `strategy`).
        shared: one set of directions for all pairs of agents; see `sliced_wasserstein`.
        seed: of the directions, which depend on it and the step alone and thus are equal on all ranks.
    """

    def __init__(
        self,
        weight: float = 0.01,
        projections: int = 64,
        strategy: Strategy = "last_token",
        layer: int = -1,
        space: Space = "hidden",
        mask: bool = True,
        normalize: bool = False,
        target: float | None = None,
        warmup_steps: int = 0,
        gather: bool = False,
        kind: Kind = "swd",
        shared: bool = True,
        seed: int = 0,
    ) -> None:
        check_at_least(0, weight=weight, warmup_steps=warmup_steps)
        check_at_least(1, projections=projections)
        if kind != "swd" and strategy in _POOLED:
            raise ValueError(f"diversity kind {kind} compares predictions: use strategy answer_tokens, not {strategy}")
        if weight > 0 and strategy == "first_token":
            warnings.warn(
                "diversity strategy first_token sees one token of a causal model, usually BOS: prefer answer_mean",
                stacklevel=2,
            )
        self.weight, self.projections, self.strategy, self.layer = weight, projections, strategy, layer
        self.space, self.mask, self.normalize, self.target = space, mask, normalize, target
        self.warmup_steps, self.gather, self.kind, self.shared, self.seed = warmup_steps, gather, kind, shared, seed

    @property
    def enabled(self) -> bool:
        """Whether the term is in the loss at all."""
        return self.weight > 0

    @property
    def needs_hidden(self) -> bool:
        """Whether hidden states of `layer` are wanted."""
        return self.enabled and self.kind == "swd" and self.space == "hidden"

    @property
    def needs_logits(self) -> bool:
        """Whether predictions are compared."""
        return self.enabled and not self.needs_hidden

    def positions(self, attention_mask: Tensor, label_positions: Tensor) -> Tensor:
        """Positions b * T + t, (M,) or (K, M), where predictions are compared, for `represent`.

        Args:
            label_positions: see `zoo.ci_llm.losses.likelihood`; returned where answers are compared.
        """
        if self.strategy in ("answer_mean", "answer_tokens"):
            if self.strategy == "answer_tokens":
                _check_shared(attention_mask)
            return label_positions
        rows, length = attention_mask.shape[-2:]
        every = torch.arange(rows * length, device=attention_mask.device)
        if self.strategy == "mean_pool":
            return every.expand(*attention_mask.shape[:-2], -1)
        chosen = _chosen(attention_mask, None, self.strategy, self.mask)
        return every[::length] + _end(chosen, self.strategy)

    def represent(
        self,
        logits: Tensor,
        hidden: Tensor | None,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """What of each agent is compared; of each agent alone, so that chunks of agents may be joined.

        Args:
            logits: (K, B, T, V); (K, M, V) with `positions`.
            hidden: (K, B, T, D) of `layer`; not used where `needs_hidden` is false.
            attention_mask: (B, T) or (K, B, T).
            labels: shaped like the mask, -100 where there is none.
            positions: that the logits are of, as `positions` gives them; hidden states are of all.

        Returns:
            (K, N, D), float32; log-probabilities (K, N, V) for `js` and `kl`.
        """
        log_space = self.kind != "swd"
        if not log_space and self.space == "hidden":
            if hidden is None:
                raise ValueError("diversity in the hidden space needs hidden states, found none: request them")
            values = hidden
        else:
            values = logits
        probabilities = self.space == "probs" and not log_space
        pooled = self.strategy in _POOLED
        if probabilities and pooled:
            values = values.float().softmax(-1)
        if values is hidden and positions is not None:
            points = values.flatten(1, 2)[:, positions].float()
        elif positions is None:
            points = representations(values, attention_mask, labels, self.strategy, self.mask).float()
        elif pooled:
            points = _mean_of_texts(values, positions, _chosen(attention_mask, labels, self.strategy, self.mask))
        else:
            points = values.float()
        if log_space:
            return points.log_softmax(-1)
        if probabilities and not pooled:
            points = points.softmax(-1)
        return F.normalize(points, dim=-1, eps=_TINY) if self.normalize else points

    def directions(self, dims: int, agents: int, step: int) -> Tensor | None:
        """Directions in `dims` of batch `step`, on the CPU, see `random_directions`; None if nothing is projected."""
        if self.kind != "swd" or agents < 2:
            return None
        # torch's generator heeds 32 bits of its seed
        mixed = int(sample_uniforms_numpy([(self.seed << 32) + step], 1)[0, 0] * 2**32)
        pairs = None if self.shared else agents * (agents - 1) // 2
        return random_directions(dims, self.projections, torch.Generator().manual_seed(mixed), pairs)

    def value(self, points: Tensor, step: int = 0, directions: Tensor | None = None) -> Tensor:
        """R: the diversity of the agents' representations, a scalar of at least 0; 0 for a single agent or no points.

        Args:
            directions: of `directions`, where they were drawn before; else they depend on `step`.
        """
        if self.gather:
            points = gather_points(points)
        if len(points) < 2 or not points.shape[1]:
            return points.sum() * 0
        if self.kind != "swd":
            return pairwise_divergences(points, self.kind).mean()
        if directions is None:
            directions = self.directions(points.shape[-1], len(points), step)
        return sliced_wasserstein(points, directions=directions)

    def factor(self, step: int) -> float:
        """Weight of the term in batch `step` (from 0)."""
        return self.weight * min(1.0, (step + 1) / (self.warmup_steps + 1))

    def loss(self, value: Tensor, step: int = 0) -> Tensor:
        """The term to add to the task loss for R in batch `step`, counted from 0."""
        if self.target is None:
            return -self.factor(step) * value
        return self.factor(step) * (self.target - value).clamp(min=0)
