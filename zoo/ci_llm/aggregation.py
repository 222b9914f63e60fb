"""Rules that combine the agents' predictions, in float32 and log space, and weights fitted to data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import scipy
import torch
from torch import Tensor

from zoo.ci_llm.answers import flexible_answer, vote
from zoo.common.checks import check_at_least, check_below, check_positive

FLOOR = 1e-4  # least weight of an agent along a text, so that it can recover after a wrong token
_MAX_ITERATIONS = 1000  # of `fit_dirichlet`
_TOLERANCE = 1e-6  # it ends when no weight moves by more


def aggregate(log_probs: Tensor, log_weights: Tensor) -> Tensor:
    """Weighted mixture (B, V) of log-probabilities (K, B, V), which are normalised, in float32 and log space.

    Args:
        log_weights: (K,) for all rows or (B, K), summing to 1 once exponentiated; -inf leaves an agent out.
    """
    return (log_probs.float().log_softmax(-1) + _by_agent(log_weights)).logsumexp(0)


def _by_agent(weights: Tensor) -> Tensor:
    """Weights (K,) or (B, K) as (K, 1 or B, 1), float32."""
    return torch.atleast_2d(weights).float().T[..., None]


def uniform_log_weights(agents: int, rows: int) -> Tensor:
    """Equal log-weights (B, K), float32."""
    return torch.full((rows, agents), -math.log(agents))


class Aggregator(ABC):
    """A rule that combines K predictions.

    A text begins with the weights of `start`; each prediction passes `combine`; a rule that learns along the text
    adapts its weights to the chosen tokens in `update`.

    Attributes:
        joint: whether the agents generate one text together; otherwise each generates one.
        learns: whether `update` changes the weights.
    """

    joint: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """Log-weights (B, K) at the beginning of each text, float32 on the CPU.

        Args:
            uniforms: random numbers (K, B) in (0, 1), of each row; the global generator by default.
        """
        return uniform_log_weights(agents, rows)

    @abstractmethod
    def combine(self, log_probs: Tensor, log_weights: Tensor) -> Tensor:
        """Combine log-probabilities (K, B, V) by log-weights (B, K) into one prediction (B, V), float32."""

    def update(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        """Log-weights (B, K) after a token, to which each agent gave the log-probability (K, B)."""
        return log_weights

    def weights_along_text(self, log_weights: Tensor, token_log_probs: Tensor, mask: Tensor) -> Tensor:
        """Log-weights (T + 1, B, K) before each token of texts, and after the last.

        Args:
            log_weights: (B, K), of `start`.
            token_log_probs: (K, B, T), of the texts' tokens by each agent.
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
        return self.combine(log_probs.float().log_softmax(-1), log_weights).exp()


class Mean(Aggregator):
    """Equal weights: the mean of the predictions, and of a symmetric Dirichlet prior."""

    def combine(self, log_probs: Tensor, log_weights: Tensor) -> Tensor:
        """The weighted mixture; see the base."""
        return aggregate(log_probs, log_weights)


class Dirichlet(Mean):
    """Weights sampled once for each text from a symmetric Dirichlet prior.

    Args:
        alpha: of the prior, above 0; the smaller, the more one agent dominates.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        check_positive(alpha=alpha)
        self.alpha = alpha

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """Weights sampled for each row; see the base."""
        alpha = torch.full((agents,), float(self.alpha))
        if uniforms is None:
            return torch.distributions.Dirichlet(alpha).sample((rows,)).log()
        return sample_dirichlet(alpha, uniforms)


class FittedMixture(Mean):
    """Fixed weights, such as the mean of a posterior fitted by `fit_dirichlet`.

    Args:
        alpha: one number per agent, at least 0, in proportion to the weights; 0 leaves an agent out.
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
    """Weights that adapt along the text, prompt included: agents that predicted it count more.

    Args:
        floor: least weight of an agent, in [0, 1).
        alpha: weights at the beginning of a text in proportion, such as fitted ones; equal by default.

    Source: Hoeting et al., "Bayesian Model Averaging: A Tutorial" (1999), section 1.
    """

    learns = True

    def __init__(self, floor: float = FLOOR, alpha: Sequence[float] | None = None) -> None:
        check_at_least(0, floor=floor)
        check_below(1, floor=floor)
        self.floor = floor
        self.prior = FittedMixture(alpha) if alpha is not None else Mean()

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """The prior's weights for each row; see the base."""
        return self.prior.start(agents, rows)

    def update(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        """Weights after a token; see the base."""
        updated = (log_weights + token_log_probs.float().T).log_softmax(-1)
        return updated.clamp(min=math.log(self.floor)).log_softmax(-1) if self.floor else updated


class Geometric(Aggregator):
    """Normalised geometric mean: a token is likely where no agent excludes it."""

    def combine(self, log_probs: Tensor, log_weights: Tensor) -> Tensor:
        """The weighted geometric mixture; see the base. 0 to the power of 0 is 1."""
        weights = _by_agent(log_weights).exp()
        powers = log_probs.float().log_softmax(-1) * weights
        return powers.masked_fill(weights == 0, 0.0).sum(0).log_softmax(-1)


class Vote(Mean):
    """Each agent generates a text; the most frequent answer wins."""

    joint = False

    def winning_text(self, texts: Sequence[str]) -> str:
        """The text of the first agent with the winning answer."""
        return texts[vote([flexible_answer(text) for text in texts]).winner]


def fit_dirichlet(token_log_probs: Tensor, alpha: float = 1.0) -> Tensor:
    """Fit the posterior alpha_k (K,) of the agents' weights, float64, to a set of tokens by expectation maximisation.

    Args:
        token_log_probs: (K, N), of the right tokens by each agent, in nats.
        alpha: of the symmetric prior, above 0.

    Source: Dempster, Laird and Rubin, "Maximum Likelihood from Incomplete Data via the EM Algorithm" (1977), section
    4.3.
    """
    check_positive(alpha=alpha)
    if token_log_probs.dim() != 2 or not token_log_probs.numel() or token_log_probs.isnan().any():
        raise ValueError(
            "fitting weights needs log-probabilities (agents, tokens) of at least one token and no NaN, "
            f"found shape {tuple(token_log_probs.shape)}"
        )
    scores = token_log_probs.detach().to("cpu", torch.float64)
    count = len(scores)
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    posterior = torch.full((count,), float(alpha), dtype=torch.float64)
    for _ in range(_MAX_ITERATIONS):
        posterior = alpha + (scores + weights.log()[:, None]).softmax(0).sum(1)
        previous, weights = weights, posterior / posterior.sum()
        if (weights - previous).abs().max() <= _TOLERANCE:
            break
    return posterior


def sample_dirichlet(alpha: Tensor, uniforms: Tensor) -> Tensor:
    """Sample log-weights (B, K) from a Dirichlet distribution (K,), by random numbers (K, B) of each row.

    Source: Devroye, "Non-Uniform Random Variate Generation" (1986), chapter XI, theorem 4.1: gamma variates, here by
    inversion, over their sum.
    """
    shape, chance = alpha.detach().double().cpu()[:, None], uniforms.double().cpu()
    variates = torch.from_numpy(scipy.special.gammaincinv(shape.numpy(), chance.numpy()))
    # for a small variate the gamma distribution is x^alpha / Gamma(alpha + 1), whose inverse does not underflow
    small = (chance.log() + torch.lgamma(shape + 1)) / shape
    return torch.where(variates > torch.finfo(torch.float32).tiny, variates.log(), small).T.log_softmax(-1).float()
