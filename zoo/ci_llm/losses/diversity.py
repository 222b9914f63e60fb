"""The diversity term: which values of the agents are compared, and how their distance enters the loss."""

from __future__ import annotations

import warnings
from typing import Literal, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from zoo.ci_llm.losses.distances import pairwise_divergences, random_directions, sliced_wasserstein
from zoo.ci_llm.losses.likelihood import IGNORED, shifted_labels
from zoo.common.checks import check_at_least, check_one_of
from zoo.common.tensors import sample_uniforms_numpy

Strategy = Literal["last_token", "mean_pool", "first_token", "answer_mean", "answer_tokens"]
Space = Literal["hidden", "logits", "probs"]
Kind = Literal["swd", "js", "kl"]
_POOLED = ("mean_pool", "answer_mean")
_TINY = 1e-12


def text_representations(
    values: Tensor,
    attention_mask: Tensor,
    labels: Tensor | None = None,
    strategy: Strategy = "last_token",
    mask: bool = True,
) -> Tensor:
    """One point (K, B, D) per text and agent from values (K, B, T, D) per position.

    Args:
        attention_mask: (B, T), 1 for tokens; (K, B, T) with texts for each agent.
        labels: shaped like the mask, -100 where there is none; for `answer_mean` and `answer_tokens`.
        strategy: `mean_pool` is over tokens, `answer_mean` over the positions that predict a label; each of these is a
            point (K, N, D) of `answer_tokens`, for agents that read the same texts.
        mask: leave padding out; otherwise the ends and the mean include it, as in the original.
    """
    selected = _selected_positions(attention_mask, labels, strategy, mask)
    if strategy in _POOLED:
        weights = selected.float()[..., None]
        return (values.float() * weights).sum(2) / weights.sum(-2).clamp(min=1)
    if strategy == "answer_tokens":
        _check_same_texts(selected)
        return values[:, selected]
    ends = _end_position(selected, strategy).expand(values.shape[:2])  # (K, B)
    return values.gather(2, ends[..., None, None].expand(-1, -1, -1, values.shape[-1])).squeeze(2)


def _selected_positions(attention_mask: Tensor, labels: Tensor | None, strategy: Strategy, mask: bool) -> Tensor:
    """The positions, (B, T) or (K, B, T) bool, over which a strategy takes a mean or an end."""
    check_one_of(get_args(Strategy), strategy=strategy)
    if strategy in ("answer_mean", "answer_tokens"):
        if labels is None:
            raise ValueError(f"diversity strategy {strategy} needs labels, found none: give them, or use mean_pool")
        return shifted_labels(labels) != IGNORED
    return attention_mask.bool() if mask else torch.ones_like(attention_mask, dtype=torch.bool)


def _end_position(selected: Tensor, strategy: Strategy) -> Tensor:
    """The first or last selected position of each text, (B,) or (K, B)."""
    if strategy == "first_token":
        return selected.long().argmax(-1)
    return selected.shape[-1] - 1 - selected.flip(-1).long().argmax(-1)


def _check_same_texts(positions: Tensor) -> None:
    if positions.ndim > 2:
        raise ValueError("answer_tokens compares agents that read the same texts: use answer_mean")


def _mean_of_texts(values: Tensor, positions: Tensor, selected: Tensor) -> Tensor:
    """Means (K, B, D) over selected positions, of values (K, M, D) at some positions (M,) or (K, M) only."""
    rows, length = selected.shape[-2:]
    indices = positions.clamp(min=0)
    counted = selected.flatten(-2).gather(-1, indices) & (positions >= 0)
    is_in_row = torch.arange(rows, device=indices.device)[:, None] == (indices // length)[..., None, :]
    weights = (is_in_row & counted[..., None, :]).float()  # (..., B, M)
    return weights @ values.float() / weights.sum(-1, keepdim=True).clamp(min=1)


def gather_ranks(values: Tensor) -> Tensor:
    """Values of one shape from all ranks (ranks, ...), differentiable; (1, ...) where there is one process."""
    if not (dist.is_available() and dist.is_initialized()):
        return values[None]
    return torch.stack(list(all_gather(values.contiguous())))


def gather_points(points: Tensor) -> Tensor:
    """Join the point sets (K, B, D) of all ranks; B may differ between ranks.

    Gradients sum over ranks on the way back; the mean that data-parallel training takes of them then is the gradient
    of one process with the full batch.
    """
    sizes = gather_ranks(torch.tensor([points.shape[1]], device=points.device)).flatten().tolist()
    if len(sizes) == 1:
        return points
    padded = F.pad(points, (0, 0, 0, max(sizes) - points.shape[1]))
    return torch.cat([part[:, :size] for part, size in zip(gather_ranks(padded), sizes, strict=True)], dim=1)


class Diversity:
    """The diversity term of the loss: total = task loss + `loss(value(represent(...)))`.

    Args:
        weight: lambda, at least 0; 0 turns the term off, and hidden states are not computed.
        projections: directions of the sliced distance.
        strategy: which positions of a text are compared, see `text_representations`. With `first_token` a causal model
            has read one token only.
        layer: index into the hidden states, -1 being the last, after the final norm.
        space: hidden states, logits or probabilities.
        mask: leave padding out; false for parity with the original.
        normalize: scale every point to length 1, so that longer vectors are not farther apart.
        target: the term is `weight * max(0, target - R)` and stops pushing at the target; without one, `-weight * R`.
        warmup_steps: optimizer steps until the weight is full; it grows linearly from step 0 on.
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
        """Whether the term is part of the loss."""
        return self.weight > 0

    @property
    def needs_hidden(self) -> bool:
        """Whether hidden states of `layer` are compared."""
        return self.enabled and self.kind == "swd" and self.space == "hidden"

    def positions(self, attention_mask: Tensor, label_positions: Tensor) -> Tensor:
        """Positions b * T + t, (M,) or (K, M), where predictions are compared; those of labels where answers are."""
        if self.strategy in ("answer_mean", "answer_tokens"):
            if self.strategy == "answer_tokens":
                _check_same_texts(attention_mask)
            return label_positions
        rows, length = attention_mask.shape[-2:]
        indices = torch.arange(rows * length, device=attention_mask.device)
        if self.strategy == "mean_pool":
            return indices.expand(*attention_mask.shape[:-2], -1)
        selected = _selected_positions(attention_mask, None, self.strategy, self.mask)
        return indices[::length] + _end_position(selected, self.strategy)

    def represent(
        self,
        logits: Tensor,
        hidden: Tensor | None,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """The values (K, N, D) of each agent that are compared, float32; log-probabilities for `js` and `kl`.

        Args:
            logits: (K, B, T, V); (K, M, V) at `positions`, as that method returns them.
            hidden: (K, B, T, D) of `layer`; unused where `needs_hidden` is false.
            attention_mask: (B, T) or (K, B, T), as `labels`, -100 where there is none.
        """
        if self.kind != "swd" or self.space != "hidden":
            values = logits
        elif hidden is not None:
            values = hidden
        else:
            raise ValueError("diversity in the hidden space needs hidden states, found none: request them")
        is_pooled = self.strategy in _POOLED
        is_probability = self.kind == "swd" and self.space == "probs"
        if is_probability and is_pooled:
            values = values.float().softmax(-1)
        if positions is None:
            points = text_representations(values, attention_mask, labels, self.strategy, self.mask).float()
        elif values is hidden:
            points = values.flatten(1, 2)[:, positions].float()
        elif is_pooled:
            selected = _selected_positions(attention_mask, labels, self.strategy, self.mask)
            points = _mean_of_texts(values, positions, selected)
        else:
            points = values.float()
        if self.kind != "swd":
            return points.log_softmax(-1)
        if is_probability and not is_pooled:
            points = points.softmax(-1)
        return F.normalize(points, dim=-1, eps=_TINY) if self.normalize else points

    def directions(self, dims: int, agents: int, step: int) -> Tensor | None:
        """Directions of optimizer step `step`, see `random_directions`; None if nothing is projected."""
        if self.kind != "swd" or agents < 2:
            return None
        # torch's generator uses 32 bits of its seed
        mixed = int(sample_uniforms_numpy([(self.seed << 32) + step], 1)[0, 0] * 2**32)
        pairs = None if self.shared else agents * (agents - 1) // 2
        return random_directions(dims, self.projections, torch.Generator().manual_seed(mixed), pairs)

    def value(self, points: Tensor, step: int = 0, directions: Tensor | None = None) -> Tensor:
        """R: the diversity of representations, a scalar of at least 0; `directions` are those of `step` by default."""
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
        """Weight of the term at optimizer step `step` (from 0)."""
        return self.weight * min(1.0, (step + 1) / (self.warmup_steps + 1))

    def loss(self, value: Tensor, step: int = 0) -> Tensor:
        """The term to add to the task loss for R at optimizer step `step`, counted from 0."""
        if self.target is None:
            return -self.factor(step) * value
        return self.factor(step) * (self.target - value).clamp(min=0)
