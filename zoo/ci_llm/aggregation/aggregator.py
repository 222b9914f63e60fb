"""How the predictions of the agents become one: named rules, all in float32 and log space."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import ClassVar

import torch
from torch import Tensor

from zoo.ci_llm.aggregation.answers import flexible_answer, vote
from zoo.ci_llm.aggregation.weights import FLOOR, BayesianUpdate, draw_dirichlet
from zoo.ci_llm.nets.sampling import draw
from zoo.common.ranges import positive


def aggregate(log_probs: Tensor, log_weights: Tensor) -> Tensor:
    """Weighted mixture (B, V) of log-probabilities (K, B, V), which are normalised, in float32 and log space.

    Args:
        log_weights: (K,) for all rows or (B, K), summing to 1 once exponentiated; -inf leaves an agent out.
    """
    weighted = log_probs.float().log_softmax(-1) + _by_agent(log_weights)
    return weighted.logsumexp(0)


def mixture(probabilities: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean (B, V) of probabilities (K, B, V), without logarithms; the arithmetic of the original.

    Args:
        weights: (K,) for all rows or (B, K), summing to 1.
    """
    return (probabilities.float() * _by_agent(weights)).sum(0)


def geometric_mixture(log_probs: Tensor, log_weights: Tensor) -> Tensor:
    """Normalised weighted geometric mean of the agents' predictions; arguments and result as in `aggregate`."""
    weights = _by_agent(log_weights).exp()
    return (log_probs.float().log_softmax(-1) * weights).sum(0).log_softmax(-1)


def _by_agent(weights: Tensor) -> Tensor:
    """Weights (K,) or (B, K) as (K, 1 or B, 1), float32."""
    return torch.atleast_2d(weights).float().T[..., None]


def uniform_log_weights(agents: int, rows: int) -> Tensor:
    """Equal log-weights (B, K), float32."""
    return torch.full((rows, agents), -math.log(agents))


class Aggregator(ABC):
    """A rule that turns K predictions into one.

    A text begins with the weights of `start`; each prediction goes through `combine`; a rule that learns along the
    text takes the chosen tokens into account in `update`.
    """

    joint: ClassVar[bool] = True
    """Whether the agents write one text together; otherwise each writes its own and the whole texts are compared."""
    learns: ClassVar[bool] = False
    """Whether `update` changes the weights."""
    stochastic: ClassVar[bool] = False
    """Whether `combine` wants random numbers."""

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """Log-weights (B, K) at the beginning of each text, float32 on the CPU.

        Args:
            uniforms: random numbers (K, B) in (0, 1), each row's own; the global generator by default.
        """
        return uniform_log_weights(agents, rows)

    @abstractmethod
    def combine(self, log_probs: Tensor, log_weights: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """One prediction (B, V), float32, for each row of log-probabilities (K, B, V), by log-weights (B, K).

        Args:
            uniforms: (B,), in (0, 1), for stochastic rules.
        """

    def update(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        """Log-weights (B, K) after a token, to which each agent gave the log-probability (K, B)."""
        return log_weights

    def along(self, log_weights: Tensor, token_log_probs: Tensor, mask: Tensor) -> Tensor:
        """Log-weights (T + 1, B, K) before each token of given texts, and behind the last.

        Args:
            log_weights: (B, K), of `start`.
            token_log_probs: (K, B, T), what each agent gave the text's token.
            mask: (B, T), true for tokens that count; the weights stay as they are at others.
        """
        path = [log_weights]
        for step in range(mask.shape[1]):
            updated = self.update(path[-1], token_log_probs[:, :, step])
            path.append(torch.where(mask[:, step, None].bool(), updated, path[-1]))
        return torch.stack(path)

    def __call__(self, log_probs: Tensor) -> Tensor:
        """Combine single predictions (K, B, V), logits or log-probabilities, into probabilities (B, V)."""
        log_weights = self.start(*log_probs.shape[:2]).to(log_probs.device)
        uniforms = torch.rand(log_probs.shape[1], device=log_probs.device) if self.stochastic else None
        return self.combine(log_probs.float().log_softmax(-1), log_weights, uniforms).exp()


class Mean(Aggregator):
    """Equal weights: the mean of the predictions, and of a symmetric Dirichlet prior."""

    def combine(self, log_probs: Tensor, log_weights: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """The weighted mixture; see the base."""
        return aggregate(log_probs, log_weights)


class Dirichlet(Mean):
    """Weights drawn once for each text from a symmetric Dirichlet prior.

    Args:
        alpha: of the prior, above 0; the smaller, the more one agent speaks alone.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        positive(alpha=alpha)
        self.alpha = alpha

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """Weights drawn for each row; see the base."""
        alpha = torch.full((agents,), float(self.alpha))
        if uniforms is None:
            return torch.distributions.Dirichlet(alpha).sample((rows,)).log()
        return draw_dirichlet(alpha, uniforms)


class Fitted(Mean):
    """Fixed weights, such as the mean of a posterior fitted by `zoo.ci_llm.aggregation.weights.fit_dirichlet`.

    Args:
        alpha: one number per agent, at least 0, in proportion to the weights; 0 leaves an agent out, and a single
            number above 0 among zeros makes that agent speak alone.
    """

    def __init__(self, alpha: Sequence[float]) -> None:
        if not alpha or min(alpha) < 0 or not 0 < sum(alpha) < math.inf:
            raise ValueError(f"fitted weights are at least 0 and not all 0, found {list(alpha)}")
        self.alpha = list(alpha)

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """The fitted weights for each row; see the base."""
        if agents != len(self.alpha):
            raise ValueError(f"{len(self.alpha)} fitted weights for {agents} agents: fit them on this crowd")
        weights = torch.tensor(self.alpha, dtype=torch.float64)
        return (weights / weights.sum()).log().float().repeat(rows, 1)


class BayesianAverage(Mean):
    """Weights that follow the text, prompt included: agents that predicted it count more.

    Args:
        eta: how much a token counts, see `zoo.ci_llm.aggregation.weights.BayesianUpdate`.
        gamma: how much of what was learned stays.
        floor: least weight of an agent.
        alpha: weights at the beginning of a text in proportion, such as fitted ones; equal by default.
    """

    learns = True

    def __init__(
        self, eta: float = 1.0, gamma: float = 1.0, floor: float = FLOOR, alpha: Sequence[float] | None = None
    ) -> None:
        self.step = BayesianUpdate(eta, gamma, floor)
        self.prior = Fitted(alpha) if alpha is not None else Mean()

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """The prior's weights for each row; see the base."""
        return self.prior.start(agents, rows)

    def update(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        """Weights after a token; see the base."""
        prior = self.start(*token_log_probs.shape).to(log_weights)
        return self.step(log_weights, prior, token_log_probs)


class Geometric(Aggregator):
    """Normalised geometric mean: a token is likely where no agent excludes it."""

    def combine(self, log_probs: Tensor, log_weights: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """The weighted geometric mixture; see the base."""
        return geometric_mixture(log_probs, log_weights)


class SampleMember(Aggregator):
    """One agent drawn for every token: at temperature 1 the same as drawing from the mean."""

    stochastic = True

    def combine(self, log_probs: Tensor, log_weights: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """The prediction of each row's agent; see the base."""
        if uniforms is None:
            raise ValueError("sample_member draws an agent per token: give one random number per row")
        chosen = draw(log_weights, uniforms)
        return log_probs[chosen, torch.arange(len(chosen), device=chosen.device)].float()


class Vote(Mean):
    """Each agent writes a text of its own; the answer that most give wins."""

    joint = False

    def winning_text(self, texts: Sequence[str], extract: Callable[[str], Decimal | None] = flexible_answer) -> str:
        """The text of the first agent that gives the winning answer; `extract` finds the answer in a text."""
        return texts[vote([extract(text) for text in texts]).winner]
