"""The training objective: the agents' losses on a batch and the diversity term that couples them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.likelihood import IGNORED, label_positions, shifted_labels, target_losses, targets_at
from zoo.ci_llm.nets.crowd import Crowd, CrowdOutput

Batch = Mapping[str, Tensor]


def count_labels(labels: Tensor, agents: int, shift: bool = True) -> Tensor:
    """Labelled tokens of an agent, a float32 scalar; the mean over agents with texts for each."""
    count = (shifted_labels(labels, shift) != IGNORED).sum().float()
    return count / agents if labels.ndim == 3 else count


def label_targets(batch: Batch, shift: bool = True) -> tuple[Tensor, Tensor]:
    """Positions and labels of a batch, int64, (M,) or (K, M), see `zoo.ci_llm.losses.likelihood.label_positions`.

    Args:
        batch: `labels`, (B, T) or (K, B, T); optional `label_positions`, for a loss with shift.
    """
    positions = batch.get("label_positions") if shift else None
    if positions is None:
        positions = label_positions(batch["labels"], shift)
    return positions, targets_at(batch["labels"], positions, shift)


@dataclass(frozen=True)
class CrowdLoss:
    """The objective of a batch.

    Attributes:
        total: to be minimised; its gradients are exact in every mode.
        losses: of the agents (K,), detached.
        diversity: what the diversity term measured, detached; None without one.
    """

    total: Tensor
    losses: Tensor
    diversity: Tensor | None = None


class CrowdObjective:
    """The mean of the agents' losses on one batch plus the diversity term.

    Logits are computed where a label is predicted, nowhere else.

    Args:
        batch: `input_ids`, `attention_mask` and `labels`, (B, T) or (K, B, T); optional `label_positions` and
            `directions` of the diversity term.
        diversity: the term; None for none.
        step: number of the optimizer step, for the term's schedule and directions.
        normaliser: divides the sums of the losses; each agent's number of labels by default.
        share: factor on the diversity term, for batches that are a part of a step.
        shift: let a position predict the next token, see `token_losses`.
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
        self.step, self.normaliser, self.share = step, normaliser, share
        positions, self.targets = label_targets(batch, shift)
        self.request: dict[str, Any] = {"logits_at": positions}
        if self.diversity is not None:
            self.request |= {"hidden": True, "layer": self.diversity.layer}

    def compute(self, crowd: Crowd, grad_scale: float = 1.0) -> CrowdLoss:
        """Compute the objective for a crowd.

        In mode chunked the gradients are computed here, chunk by chunk, and `total` passes them on: it is used like any
        loss, with accumulation, several ranks and gradient scaling.

        Args:
            grad_scale: of the gradients inside chunked mode; for float16, whose small gradients vanish otherwise.
        """
        if crowd.mode == "chunked" and len(crowd.passes()) > 1 and torch.is_grad_enabled():
            return self._compute_in_chunks(crowd, grad_scale)
        output = crowd.outputs(self.batch["input_ids"], self.batch["attention_mask"], **self.request)
        rows = slice(0, crowd.count)
        losses = self._losses(output, rows)
        if self.diversity is None:
            return CrowdLoss(losses.mean(), losses.detach())
        penalty, value = self._penalty(self.diversity, self._represent(self.diversity, output, rows))
        return CrowdLoss(losses.mean() + penalty, losses.detach(), value)

    def _compute_in_chunks(self, crowd: Crowd, grad_scale: float) -> CrowdLoss:
        """Compute the penalty's gradients in all representations, then all gradients chunk by chunk."""
        mask_seeds = crowd.agents.sample_mask_seeds()
        weights = [weight for weight in crowd.agents.parameters() if weight.requires_grad]
        gradients = [torch.zeros_like(weight) for weight in weights]
        passes = [(members, crowd.rows_of(members)) for members in crowd.passes()]

        def run(members: range) -> CrowdOutput:
            return crowd.run(members, mask_seeds, self.batch["input_ids"], self.batch["attention_mask"], **self.request)

        penalty, value, point_gradients = torch.zeros((), device=crowd.device), None, None
        if self.diversity is not None:
            with torch.no_grad():
                chunks = [self._represent(self.diversity, run(members), rows) for members, rows in passes]
            points = torch.cat(chunks).requires_grad_()
            penalty, value = self._penalty(self.diversity, points)
            (point_gradients,) = torch.autograd.grad(penalty * grad_scale, points)
        losses = []
        for members, rows in passes:
            output = run(members)
            chunk_losses = self._losses(output, rows)
            losses.append(chunk_losses.detach())
            surrogate = chunk_losses.sum() * (grad_scale / crowd.count)
            if self.diversity is not None and point_gradients is not None:
                surrogate = surrogate + (self._represent(self.diversity, output, rows) * point_gradients[rows]).sum()
            for total, gradient in zip(gradients, torch.autograd.grad(surrogate, weights), strict=True):
                total.add_(gradient, alpha=1 / grad_scale)
        agent_losses = torch.cat(losses)
        total_loss = _PrecomputedGradients.apply(agent_losses.mean() + penalty.detach(), gradients, *weights)
        return CrowdLoss(total_loss, agent_losses, value)

    def _losses(self, output: CrowdOutput, rows: slice) -> Tensor:
        """Losses (n,) of the agents whose output this is."""
        targets = self._of_agents(self.targets, rows)
        normaliser = self.normaliser
        if normaliser is None:
            normaliser = (targets != IGNORED).sum(-1).clamp(min=1)
        return target_losses(output.logits, targets).sum(1) / normaliser

    def _represent(self, diversity: Diversity, output: CrowdOutput, rows: slice) -> Tensor:
        """What the term compares (n, ...), of the agents whose output this is."""
        assert output.hidden is not None
        mask, labels = (self._of_agents(self.batch[name], rows) for name in ("attention_mask", "labels"))
        return diversity.represent(output.hidden, mask, labels)

    def _penalty(self, diversity: Diversity, points: Tensor) -> tuple[Tensor, Tensor]:
        """The term to add for points of all agents, and what it measured."""
        value = diversity.value(points, self.step, directions=self.batch.get("directions"))
        return self.share * diversity.loss(value, self.step), value.detach()

    def _of_agents(self, values: Tensor, rows: slice) -> Tensor:
        return values[rows] if self.batch["labels"].ndim == 3 else values


class _PrecomputedGradients(torch.autograd.Function):
    """A scalar whose gradients are already computed."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return None, None, *(grad_outputs[0] * gradient for gradient in ctx.gradients)
