"""What a crowd is trained on: the agents' losses on a batch, and the diversity term that ties them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.likelihood import IGNORED, label_positions, learned, target_losses, targets_at
from zoo.ci_llm.nets.backbone import packed
from zoo.ci_llm.nets.crowd import Crowd, CrowdOutput

Batch = Mapping[str, Tensor]


def attended(batch: Batch) -> tuple[Tensor, dict[str, Any]]:
    """Attention mask of a batch and, where its rows hold several texts, positions: arguments of `Crowd.outputs`."""
    segments = batch.get("segment_ids")
    if segments is None:
        return batch["attention_mask"], {}
    mask, position_ids = packed(segments.flatten(0, -2))
    return mask.view(*segments.shape[:-1], *mask.shape[1:]), {"position_ids": position_ids.view_as(segments)}


def label_count(labels: Tensor, agents: int, shift: bool = True) -> Tensor:
    """Labelled tokens of an agent, a float32 scalar; their mean where the agents have texts of their own."""
    count = (learned(labels, shift) != IGNORED).sum().float()
    return count / agents if labels.ndim == 3 else count


def targets(batch: Batch, shift: bool = True) -> tuple[Tensor, Tensor]:
    """Positions and labels of a batch, int64, (M,) or (K, M), see `zoo.ci_llm.losses.likelihood.label_positions`.

    Args:
        batch: `labels`, (B, T) or (K, B, T); `label_positions` of these, or `loss_positions` for a loss that does not
            shift, where they are known.
    """
    known = batch.get("label_positions" if shift else "loss_positions")
    positions = label_positions(batch["labels"], shift) if known is None else known
    return positions, targets_at(batch["labels"], positions, shift)


@dataclass(frozen=True)
class CrowdLoss:
    """The objective of a batch: `total`, the mean of `losses` (K,) plus `penalty`, with exact gradients in every mode.

    Losses and penalty are detached; the penalty is 0 without one.
    """

    total: Tensor
    losses: Tensor
    penalty: Tensor


Task = Callable[[Tensor, range], Tensor]
Represent = Callable[[CrowdOutput, range], Tensor]
Penalty = Callable[[Tensor], Tensor]


def objective(
    crowd: Crowd,
    input_ids: Tensor,
    attention_mask: Tensor,
    task: Task,
    represent: Represent | None = None,
    penalty: Penalty | None = None,
    grad_scale: float = 1.0,
    **request: Any,
) -> CrowdLoss:
    """The training objective: mean of the agents' losses plus a penalty that ties the agents together.

    In mode chunked its gradients are computed here: representations of all agents without gradients, then the
    penalty's gradient with respect to them, then chunk by chunk loss and representation with that gradient
    injected. `total` hands the sum on, so that it is used like any loss: one backward pass, automatic or manual
    optimisation, accumulation, several ranks, gradient scaling.

    Args:
        input_ids: (B, T) or (K, B, T).
        task: of logits (n, B, T, V), or (n, M, V) with `logits_at`, and the n agents they are of: losses (n,).
        represent: of an output and its n agents: what the penalty compares, (n, ...). It draws no random numbers.
        penalty: of the representations (K, ...) of all agents: a scalar to be added.
        grad_scale: of the gradients inside chunked mode; for float16, whose small gradients vanish otherwise.
    """
    if len(crowd.passes()) > 1 and crowd.mode == "chunked" and torch.is_grad_enabled():
        return _chunked(crowd, input_ids, attention_mask, task, represent, penalty, grad_scale, request)
    output = crowd.outputs(input_ids, attention_mask, **request)
    losses = task(output.logits, crowd.everyone())
    extra = losses.new_zeros(())
    if represent is not None and penalty is not None:
        extra = penalty(represent(output, crowd.everyone()))
    return CrowdLoss(losses.mean() + extra, losses.detach(), extra.detach())


def _chunked(
    crowd: Crowd,
    input_ids: Tensor,
    attention_mask: Tensor,
    task: Task,
    represent: Represent | None,
    penalty: Penalty | None,
    grad_scale: float,
    request: dict[str, Any],
) -> CrowdLoss:
    noise = crowd.agents.draw_noise()
    weights = [weight for weight in crowd.agents.parameters() if weight.requires_grad]
    totals = [torch.zeros_like(weight) for weight in weights]

    def run(members: range) -> CrowdOutput:
        return crowd.run(members, noise, input_ids, attention_mask, **request)

    pull: Tensor | None = None
    extra = torch.zeros((), device=input_ids.device)
    if represent is not None and penalty is not None:
        with torch.no_grad():
            everyone = torch.cat([represent(run(members), members) for members in crowd.passes()])
        everyone.requires_grad_()
        extra = penalty(everyone)
        (pull,) = torch.autograd.grad(extra * grad_scale, everyone)
    values, first = [], 0
    for members in crowd.passes():
        output = run(members)
        losses = task(output.logits, members)
        values.append(losses.detach())
        inner = losses.sum() * (grad_scale / crowd.count)
        if pull is not None and represent is not None:
            inner = inner + (represent(output, members) * pull[first : first + len(members)]).sum()
        first += len(members)
        for total, gradient in zip(totals, torch.autograd.grad(inner, weights), strict=True):
            total.add_(gradient, alpha=1 / grad_scale)
    losses, extra = torch.cat(values), extra.detach()
    return CrowdLoss(_Known.apply(losses.mean() + extra, totals, *weights), losses, extra)


class _Known(torch.autograd.Function):
    """A value whose gradients were computed before."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return None, None, *(outer[0] * gradient for gradient in ctx.gradients)


class Objective:
    """Task losses and diversity term of one batch, in the pieces that `objective` asks for.

    Logits are computed where a label is predicted and where the diversity term compares predictions, and nowhere else.

    Args:
        batch: `input_ids`, `attention_mask` and `labels`, (B, T) or (K, B, T); packed also `segment_ids`; found
            before: `label_positions`, `loss_positions` (those of a loss that does not shift), `directions` of the term.
        normaliser: what the losses are divided by; each agent's labels by default.
        share: factor on the diversity term, for batches that are a part of a step.

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
        self._wanted = self.positions
        if self.diversity is not None and (self.diversity.needs_logits or self.diversity.strategy == "answer_tokens"):
            predicting = self.positions if shift else targets(batch)[0]
            self.compared = self.diversity.positions(batch["attention_mask"], predicting)
            if self.diversity.needs_logits and self.compared is not self.positions:
                self._wanted = torch.cat([self.positions, self.compared], -1)

    def of(self, crowd: Crowd, grad_scale: float = 1.0) -> CrowdLoss:
        """Compute it; arguments and gradients as in `objective`."""
        mask, request = attended(self.batch)
        ids = self.batch["input_ids"]
        request["logits_at"] = self._wanted
        if self.diversity is None:
            return objective(crowd, ids, mask, self._losses, grad_scale=grad_scale, **request)
        more: dict[str, Any] = {"hidden": self.diversity.needs_hidden, "layer": self.diversity.layer, **request}
        return objective(crowd, ids, mask, self._losses, self._represent, self._penalty, grad_scale, **more)

    def _split(self, logits: Tensor) -> Sequence[Tensor]:
        """Logits that predict labels, and those that diversity compares."""
        if self._wanted is self.positions:
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
