"""The diversity term: which hidden states of the agents are compared, and how their distance enters the loss."""

from __future__ import annotations

import warnings
from typing import Literal, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from zoo.ci_llm.losses.distances import pairwise_sliced_wasserstein, random_directions
from zoo.ci_llm.losses.likelihood import IGNORED, shifted_labels
from zoo.common.checks import check_at_least, check_one_of
from zoo.common.tensors import sample_uniforms_numpy

Strategy = Literal["last_token", "mean_pool", "first_token", "answer_mean"]
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
        labels: shaped like the mask, -100 where there is none; for `answer_mean`.
        strategy: `mean_pool` is over tokens, `answer_mean` over the positions that predict a label.
        mask: leave padding out; otherwise the ends and the mean include it, as in the original.
    """
    check_one_of(get_args(Strategy), strategy=strategy)
    if strategy == "answer_mean":
        if labels is None:
            raise ValueError("diversity strategy answer_mean needs labels, found none: give them, or use mean_pool")
        selected = shifted_labels(labels) != IGNORED
    else:
        selected = attention_mask.bool() if mask else torch.ones_like(attention_mask, dtype=torch.bool)
    if strategy in ("mean_pool", "answer_mean"):
        weights = selected.float()[..., None]
        return (values.float() * weights).sum(2) / weights.sum(-2).clamp(min=1)
    if strategy == "first_token":
        ends = selected.long().argmax(-1)
    else:
        ends = selected.shape[-1] - 1 - selected.flip(-1).long().argmax(-1)
    ends = ends.expand(values.shape[:2])  # (K, B)
    return values.gather(2, ends[..., None, None].expand(-1, -1, -1, values.shape[-1])).squeeze(2)


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
        mask: leave padding out; false for parity with the original.
        normalize: scale every point to length 1, so that longer vectors are not farther apart.
        target: the term is `weight * max(0, target - R)` and stops pushing at the target; without one, `-weight * R`.
        warmup_steps: optimizer steps until the weight is full; it grows linearly from step 0 on.
        gather: compare the point sets of all ranks instead of each rank's own.
        shared: one set of directions for all pairs of agents (K projections); otherwise one for each, as the original.
        seed: of the directions, which depend on it and the step alone and thus are equal on all ranks.
    """

    def __init__(
        self,
        weight: float = 0.01,
        projections: int = 64,
        strategy: Strategy = "last_token",
        layer: int = -1,
        mask: bool = True,
        normalize: bool = False,
        target: float | None = None,
        warmup_steps: int = 0,
        gather: bool = False,
        shared: bool = True,
        seed: int = 0,
    ) -> None:
        check_at_least(0, weight=weight, warmup_steps=warmup_steps)
        check_at_least(1, projections=projections)
        if weight > 0 and strategy == "first_token":
            warnings.warn(
                "diversity strategy first_token sees one token of a causal model, usually BOS: prefer answer_mean",
                stacklevel=2,
            )
        self.weight, self.projections, self.strategy, self.layer = weight, projections, strategy, layer
        self.mask, self.normalize, self.target = mask, normalize, target
        self.warmup_steps, self.gather, self.shared, self.seed = warmup_steps, gather, shared, seed

    @property
    def enabled(self) -> bool:
        """Whether the term is part of the loss."""
        return self.weight > 0

    def represent(self, hidden: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Tensor:
        """The points (K, B, D) of each agent that are compared, float32.

        Args:
            hidden: (K, B, T, D) of `layer`.
            attention_mask: (B, T) or (K, B, T), as `labels`, -100 where there is none.
        """
        points = text_representations(hidden, attention_mask, labels, self.strategy, self.mask).float()
        return F.normalize(points, dim=-1, eps=_TINY) if self.normalize else points

    def directions(self, dims: int, agents: int, step: int) -> Tensor:
        """Directions of optimizer step `step`, see `random_directions`."""
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
        if directions is None:
            directions = self.directions(points.shape[-1], len(points), step)
        return pairwise_sliced_wasserstein(points, directions).mean()

    def factor(self, step: int) -> float:
        """Weight of the term at optimizer step `step` (from 0)."""
        return self.weight * min(1.0, (step + 1) / (self.warmup_steps + 1))

    def loss(self, value: Tensor, step: int = 0) -> Tensor:
        """The term to add to the task loss for R at optimizer step `step`, counted from 0."""
        if self.target is None:
            return -self.factor(step) * value
        return self.factor(step) * (self.target - value).clamp(min=0)
