"""How the predictions of the agents become one: named rules, in float32 and log space, and weights fitted to data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import ClassVar

import scipy
import torch
from torch import Tensor

from zoo.ci_llm.aggregation.answers import flexible_answer, vote
from zoo.common.checks import check_at_least, check_below, check_positive, check_within

FLOOR = 1e-4  # least weight of an agent along a text, so that an agent that was wrong once can come back
_PASSES = 1000  # of `fit_dirichlet`


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
        check_positive(alpha=alpha)
        self.alpha = alpha

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """Weights drawn for each row; see the base."""
        alpha = torch.full((agents,), float(self.alpha))
        if uniforms is None:
            return torch.distributions.Dirichlet(alpha).sample((rows,)).log()
        return draw_dirichlet(alpha, uniforms)


class Fitted(Mean):
    """Fixed weights, such as the mean of a posterior fitted by `fit_dirichlet`.

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

    After each token, log w becomes gamma log w + (1 - gamma) log prior + eta log p(token).

    Args:
        eta: how much a token counts; 1 with gamma 1 is Bayesian model averaging, 0 leaves the prior's weights.
        gamma: how much of what was learned stays, in [0, 1]; below 1 old tokens are forgotten towards the prior.
        floor: least weight of an agent, in [0, 1).
        alpha: weights at the beginning of a text in proportion, such as fitted ones; equal by default.

    Source: Hoeting et al., "Bayesian Model Averaging: A Tutorial" (1999), section 1; forgetting after Raftery,
    Karny and Ettler, "Online Prediction Under Model Uncertainty via Dynamic Model Averaging" (2010), section 2.3.
    """

    learns = True

    def __init__(
        self, eta: float = 1.0, gamma: float = 1.0, floor: float = FLOOR, alpha: Sequence[float] | None = None
    ) -> None:
        check_at_least(0, eta=eta, floor=floor)
        check_within(0, 1, gamma=gamma)
        check_below(1, floor=floor)
        self.eta, self.gamma, self.floor = eta, gamma, floor
        self.prior = Fitted(alpha) if alpha is not None else Mean()

    def start(self, agents: int, rows: int, uniforms: Tensor | None = None) -> Tensor:
        """The prior's weights for each row; see the base."""
        return self.prior.start(agents, rows)

    def update(self, log_weights: Tensor, token_log_probs: Tensor) -> Tensor:
        """Weights after a token; see the base."""
        if self.gamma < 1:
            prior = self.start(*token_log_probs.shape).to(log_weights)
            log_weights = self.gamma * log_weights + (1 - self.gamma) * prior
        updated = (log_weights + self.eta * token_log_probs.float().T).log_softmax(-1)
        return updated.clamp(min=math.log(self.floor)).log_softmax(-1) if self.floor else updated


class Geometric(Aggregator):
    """Normalised geometric mean: a token is likely where no agent excludes it."""

    def combine(self, log_probs: Tensor, log_weights: Tensor, uniforms: Tensor | None = None) -> Tensor:
        """The weighted geometric mixture; see the base."""
        return _product(log_probs, _by_agent(log_weights).exp())


def _product(log_probs: Tensor, weights: Tensor) -> Tensor:
    """Normalised product (B, V) of predictions (K, B, V) to the power of weights (K, B, 1); 0 to the 0 is 1."""
    powers = log_probs.float().log_softmax(-1) * weights
    return powers.masked_fill(weights == 0, 0.0).sum(0).log_softmax(-1)


class Vote(Mean):
    """Each agent writes a text of its own; the answer that most give wins."""

    joint = False

    def winning_text(self, texts: Sequence[str], extract: Callable[[str], Decimal | None] = flexible_answer) -> str:
        """The text of the first agent that gives the winning answer; `extract` finds the answer in a text."""
        return texts[vote([extract(text) for text in texts]).winner]


def fit_dirichlet(token_log_probs: Tensor, alpha: float = 1.0, tolerance: float = 1e-6) -> Tensor:
    """Posterior alpha_k (K,) of the agents' weights, float64, given how well each predicted a set of tokens.

    Each pass shares every token among the agents by weight times probability, and counts the shares:
    alpha_k = alpha + sum_n r_nk with r_nk = w_k p_k(y_n) / sum_j w_j p_j(y_n) and w = alpha_k / sum.

    Args:
        token_log_probs: (K, N), what each agent gave the right token, in nats.
        alpha: of the symmetric prior, above 0.
        tolerance: it ends when no weight moves by more.

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
    for _ in range(_PASSES):
        posterior = alpha + (scores + weights.log()[:, None]).softmax(0).sum(1)
        before, weights = weights, posterior / posterior.sum()
        if (weights - before).abs().max() <= tolerance:
            break
    return posterior


def draw_dirichlet(alpha: Tensor, uniforms: Tensor) -> Tensor:
    """Draw log-weights (B, K) from a Dirichlet distribution (K,), each row with its own random numbers (K, B).

    Source: Devroye, "Non-Uniform Random Variate Generation" (1986), chapter XI, theorem 4.1: gamma variates, here by
    inversion, over their sum.
    """
    shape, chance = alpha.detach().double().cpu()[:, None], uniforms.double().cpu()
    drawn = torch.from_numpy(scipy.special.gammaincinv(shape.numpy(), chance.numpy()))
    # for a small variate the gamma distribution is x^alpha / Gamma(alpha + 1), whose inverse does not underflow
    small = (chance.log() + torch.lgamma(shape + 1)) / shape
    return torch.where(drawn > torch.finfo(torch.float32).tiny, drawn.log(), small).T.log_softmax(-1).float()
