"""Heads: the parameters of a distribution of the next action."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.checks import check_at_least
from zoo.common.tensors import widest_float
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.spaces import Box, Discrete, describe_space, size
from zoo.compressed_ad.nets.embedding import check_space
from zoo.compressed_ad.nets.steps import Statistics


def cross_entropy(logits: Tensor, classes: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy (B, L) of logits (B, L, classes), in nats."""
    logits = logits.float().transpose(1, 2)
    return F.cross_entropy(logits, classes, reduction="none", label_smoothing=label_smoothing)


class ActionHead(nn.Linear):
    """Base: one linear layer to the parameters of a distribution over actions.

    Args:
        dim: width of the tokens.
        outputs: parameters of the distribution.

    Attributes:
        numbers: random numbers that a sample takes.
    """

    error: ClassVar[str]
    """Name of `errors` in the log."""
    numbers: int = 1

    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__(dim, outputs)

    @abstractmethod
    def losses(self, parameters: Tensor, actions: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Negative log-likelihoods (B, L), in nats, of actions (B, L, *action) by parameters (B, L, P)."""

    @abstractmethod
    def sample(self, parameters: Tensor, uniforms: Tensor) -> Tensor:
        """Actions (B, *action) by parameters (B, P) and random numbers (numbers, B) in (0, 1), see `widest_float`."""

    @abstractmethod
    def most_likely(self, parameters: Tensor) -> Tensor:
        """The likeliest actions (..., *action) by parameters (..., P)."""

    @abstractmethod
    def errors(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Accuracy (categorical) or distance (else) of the likeliest actions, (B, L)."""

    def check(self, env: Env) -> None:
        """Refuse an environment that takes other actions."""

    def fit(self, statistics: Statistics) -> None:
        """Use statistics of training histories, where the head has a use for them."""


class CategoricalHead(ActionHead):
    """Logits of `num_actions` actions.

    Args:
        dim: width of the tokens.
        num_actions: actions to choose from.
    """

    error = "acc_action"

    def __init__(self, dim: int, num_actions: int) -> None:
        super().__init__(dim, num_actions)

    def check(self, env: Env) -> None:
        """Refuse an environment of another number of actions."""
        check_space("action", Discrete(self.out_features), env.schema.action, env)

    def losses(self, parameters: Tensor, actions: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy (B, L), in nats."""
        return cross_entropy(parameters, actions, label_smoothing)

    def sample(self, parameters: Tensor, uniforms: Tensor) -> Tensor:
        """Actions (B,) by the inverse of the distribution function."""
        return sample_categorical(parameters.to(uniforms.dtype).softmax(1), uniforms[0])

    def most_likely(self, parameters: Tensor) -> Tensor:
        """The likeliest (...), int64."""
        return parameters.argmax(-1)

    def errors(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Accuracy (B, L) of the likeliest action, 0 or 1."""
        return (self.most_likely(parameters) == actions).float()


def sample_categorical(weights: Tensor, numbers: Tensor) -> Tensor:
    """Sample (B,) by weights (B, N) and random numbers (B,) in (0, 1); none of weight 0."""
    sums = weights.cumsum(1)
    return (sums[:, :-1] <= (numbers[:, None] * sums[:, -1:])).sum(1)


class BinsHead(ActionHead):
    """A bounded Box cut into bins, each number of an action separately; uniform inside a bin.

    Args:
        env: whose actions they are.
        dim: width of the tokens.
        bins: of each number, at least 2.
        quantiles: cut at quantiles of the training actions, not evenly between the bounds. Bins are never narrower
            than a hundredth of an even one.
    """

    error = "mae_action"
    low: Tensor
    high: Tensor
    edges: Tensor

    def __init__(self, env: Env, dim: int = 64, bins: int = 21, quantiles: bool = False) -> None:
        check_at_least(2, bins=bins)
        space = env.schema.action
        if not isinstance(space, Box) or not space.is_bounded():
            text = json.dumps(describe_space(space))
            raise ValueError(f"actions of {env.name} are {text}: this head is for a Box with finite bounds")
        super().__init__(dim, size(space) * bins)
        self.space, self.bins, self.quantiles = space, bins, quantiles
        self.numbers = 2 * size(space)
        low, high = (torch.from_numpy(each.astype(np.float32).reshape(-1)) for each in (space.low, space.high))
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.register_buffer("edges", self._even_edges())  # (A, bins + 1)

    def check(self, env: Env) -> None:
        """Refuse an environment of other actions."""
        check_space("action", self.space, env.schema.action, env)

    def fit(self, statistics: Statistics) -> None:
        """Set the edges to quantiles of training actions, with `quantiles`, unless they came with loaded weights."""
        span = (self.high - self.low)[:, None]
        is_loaded = ((self.edges - self._even_edges()).abs() >= 0.1 * span / self.bins).any()
        if not self.quantiles or is_loaded:
            return
        shares = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64)[1:-1]
        inner = statistics.sample.double().quantile(shares, 0).T.to(span.device)  # (A, bins - 1)
        edges = torch.cat([self.low[:, None], inner, self.high[:, None]], 1)
        least = 0.01 * span / self.bins
        widths = edges.diff(dim=1).clamp(min=0) + least
        sums = F.pad(widths.cumsum(1), (1, 0))
        self.edges.copy_(self.low[:, None] + sums / sums[:, -1:] * span)

    def _even_edges(self) -> Tensor:
        shares = torch.linspace(0, 1, self.bins + 1, device=self.low.device)
        return self.low[:, None] + shares * (self.high - self.low)[:, None]

    def losses(self, parameters: Tensor, actions: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Negative logarithm of the density (B, L): cross-entropy of the bins and logarithm of their widths, summed."""
        flat = self._flat(actions)  # (B, L, A)
        inner = self.edges[:, 1:-1]
        bins = (flat[..., None] >= inner).sum(-1)  # (B, L, A)
        logits = self._logits(parameters)
        crosses = F.cross_entropy(
            logits.flatten(0, -2), bins.flatten(), reduction="none", label_smoothing=label_smoothing
        ).view_as(flat)
        widths = self.edges.diff(dim=1).expand(*flat.shape, -1).gather(-1, bins[..., None])[..., 0]
        return (crosses + widths.log()).sum(-1)

    def sample(self, parameters: Tensor, uniforms: Tensor) -> Tensor:
        """Sample a bin and a number inside it, for each number of an action."""
        logits = self._logits(parameters).to(uniforms.dtype)  # (B, A, bins)
        count = size(self.space)
        shares = logits.softmax(-1).flatten(0, 1)
        bins = sample_categorical(shares, uniforms[:count].T.flatten()).view(logits.shape[:-1])
        return self._actions(bins, uniforms[count:].T)

    def most_likely(self, parameters: Tensor) -> Tensor:
        """Centres of the likeliest bins."""
        bins = self._logits(parameters).argmax(-1)
        return self._actions(bins, torch.full_like(bins, 0.5, dtype=widest_float(bins.device)))

    def errors(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Mean distance (B, L) of the likeliest action, over the numbers of an action."""
        return (self._flat(self.most_likely(parameters)) - self._flat(actions)).abs().mean(-1)

    def _logits(self, parameters: Tensor) -> Tensor:
        """(..., A, bins) float32."""
        return parameters.float().unflatten(-1, (size(self.space), self.bins))

    def _flat(self, actions: Tensor) -> Tensor:
        """Actions (..., *action) as (..., A) float32."""
        return actions.reshape(*actions.shape[: actions.ndim - len(self.space.shape)], -1).float()

    def _actions(self, bins: Tensor, shares: Tensor) -> Tensor:
        """Actions (..., *action) at a share of bins (..., A)."""
        edges = self.edges.expand(*bins.shape, -1)
        low, high = (edges.gather(-1, (bins + step)[..., None])[..., 0].to(shares.dtype) for step in (0, 1))
        values = (low + shares * (high - low)).float()
        return values.maximum(self.low).minimum(self.high).reshape(*bins.shape[:-1], *self.space.shape)
