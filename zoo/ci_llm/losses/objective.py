"""What a crowd is trained on: the agents' losses on a batch, and the diversity term that ties them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.likelihood import IGNORED, label_positions, learned, target_losses, targets_at
from zoo.ci_llm.nets.crowd import Crowd, CrowdLoss, CrowdOutput
from zoo.ci_llm.nets.positions import packed

Batch = Mapping[str, Tensor]


def attended(batch: Batch) -> tuple[Tensor, dict[str, Any]]:
    """Attention mask of a batch and, where its rows hold several texts, positions: arguments of `Crowd.outputs`.

    Args:
        batch: `attention_mask` and, packed, `segment_ids`, (B, T) or (K, B, T).
    """
    segments = batch.get("segment_ids")
    if segments is None:
        return batch["attention_mask"], {}
    mask, position_ids = packed(segments.flatten(0, -2))
    return mask.view(*segments.shape[:-1], *mask.shape[1:]), {"position_ids": position_ids.view_as(segments)}


def label_count(labels: Tensor, agents: int, shift: bool = True) -> Tensor:
    """Labelled tokens of an agent, a float32 scalar; their mean where the agents have texts of their own.

    Args:
        labels: (B, T) or (K, B, T).
        shift: as in `zoo.ci_llm.losses.likelihood.token_losses`.
    """
    count = (learned(labels, shift) != IGNORED).sum().float()
    return count / agents if labels.ndim == 3 else count


def targets(batch: Batch, shift: bool = True) -> tuple[Tensor, Tensor]:
    """Where a batch has labels, and which.

    Args:
        batch: `labels`, (B, T) or (K, B, T); `label_positions` of these, or `loss_positions` for a loss that does not
            shift, where they are known.
        shift: as in `zoo.ci_llm.losses.likelihood.token_losses`.

    Returns:
        Positions and labels, int64, (M,) or (K, M), see `zoo.ci_llm.losses.likelihood.label_positions`.
    """
    known = batch.get("label_positions" if shift else "loss_positions")
    positions = label_positions(batch["labels"], shift) if known is None else known
    return positions, targets_at(batch["labels"], positions, shift)


class Objective:
    """Task losses and diversity term of one batch, in the pieces that `Crowd.objective` asks for.

    Logits are computed where a label is foretold and where the diversity term compares predictions, and nowhere else.

    Args:
        batch: `input_ids`, `attention_mask` and `labels`, (B, T) or (K, B, T); packed also `segment_ids`; found
            before: `label_positions`, `loss_positions` (those of a loss that does not shift), `directions` of the term.
        step: number of the optimizer step, of which directions and warm-up depend.
        normaliser: what the losses are divided by, see `zoo.ci_llm.losses.likelihood.losses`; each agent's labels by
            default.
        share: factor on the diversity term, for batches that are a part of a step.
        shift: as in `zoo.ci_llm.losses.likelihood.token_losses`.

    Attributes:
        value: R, what the diversity term measured; None without one.
    """

    def __init__(
        self,
        batch: Batch,
        diversity: Diversity | None = None,
        step: int = 0,
        normaliser: Tensor | None = None,
        share: Tensor | float = 1.0,
        shift: bool = True,
    ) -> None:
        self.batch = batch
        self.diversity = diversity if diversity is not None and diversity.enabled else None
        self.step, self.normaliser, self.share, self.shift = step, normaliser, share, shift
        self.value: Tensor | None = None
        self.positions, self.targets = targets(batch, shift)
        self.compared: Tensor | None = None  # positions of the predictions or answers that diversity compares
        self._asked = self.positions
        if self.diversity is not None and (self.diversity.needs_logits or self.diversity.strategy == "answer_tokens"):
            foretelling = self.positions if shift else targets(batch)[0]
            self.compared = self.diversity.positions(batch["attention_mask"], foretelling)
            if self.diversity.needs_logits and self.compared is not self.positions:
                self._asked = torch.cat([self.positions, self.compared], -1)

    def of(self, crowd: Crowd, grad_scale: float = 1.0) -> CrowdLoss:
        """Compute it; arguments and gradients as in `Crowd.objective`."""
        mask, request = attended(self.batch)
        ids = self.batch["input_ids"]
        request["logits_at"] = self._asked
        if self.diversity is None:
            return crowd.objective(ids, mask, self._losses, grad_scale=grad_scale, **request)
        more: dict[str, Any] = {"hidden": self.diversity.needs_hidden, "layer": self.diversity.layer, **request}
        return crowd.objective(ids, mask, self._losses, self._represent, self._penalty, grad_scale, **more)

    def _split(self, logits: Tensor) -> Sequence[Tensor]:
        """Logits that foretell labels, and those that diversity compares."""
        if self._asked is self.positions:
            return logits, logits
        count = self.positions.shape[-1]
        return logits.split([count, logits.shape[1] - count], 1)

    def _losses(self, logits: Tensor, members: range) -> Tensor:
        targets = self._of_members(self.targets, members)
        normaliser = self.normaliser
        if normaliser is None:
            normaliser = (targets != IGNORED).sum(-1).clamp(min=1)
        return target_losses(self._split(logits)[0], targets).sum(1) / normaliser

    def _represent(self, output: CrowdOutput, members: range) -> Tensor:
        assert self.diversity is not None
        mask, labels = (self._of_members(self.batch[name], members) for name in ("attention_mask", "labels"))
        places = None if self.compared is None else self._of_members(self.compared, members)
        return self.diversity.represent(self._split(output.logits)[1], output.hidden, mask, labels, places)

    def _penalty(self, points: Tensor) -> Tensor:
        assert self.diversity is not None
        value = self.diversity.value(points, self.step, directions=self.batch.get("directions"))
        self.value = value.detach()
        return self.share * self.diversity.loss(value, self.step)

    def _of_members(self, values: Tensor, members: range) -> Tensor:
        own = self.batch["labels"].ndim == 3
        return values[members.start : members.stop] if own else values


def mean_over_ranks(value: Tensor) -> Tensor:
    """Mean of a scalar over all processes; the scalar itself where there is one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    total = value.clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()
