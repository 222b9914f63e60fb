"""Weights of the agents learned from data: a Dirichlet posterior over a set, Bayesian averaging along a text."""

from __future__ import annotations

import math

import torch
from scipy import special
from torch import Tensor

from zoo.common.ranges import at_least, below, positive, within

FLOOR = 1e-4  # least weight of an agent along a text, so that an agent that was wrong once can come back
_PASSES = 1000


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
    positive(alpha=alpha)
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
    drawn = torch.from_numpy(special.gammaincinv(shape.numpy(), chance.numpy()))
    # for a small variate the gamma distribution is x^alpha / Gamma(alpha + 1), whose inverse does not underflow
    small = (chance.log() + torch.lgamma(shape + 1)) / shape
    return torch.where(drawn > torch.finfo(torch.float32).tiny, drawn.log(), small).T.log_softmax(-1).float()


class BayesianUpdate:
    """How the agents' weights follow a text: log w becomes gamma log w + (1 - gamma) log prior + eta log p(token).

    Args:
        eta: how much a token counts; 1 with gamma 1 is Bayesian model averaging, 0 leaves the prior's weights.
        gamma: how much of what was learned stays, in [0, 1]; below 1 old tokens are forgotten towards the prior.
        floor: least weight of an agent, in [0, 1).

    Source: Hoeting et al., "Bayesian Model Averaging: A Tutorial" (1999), section 1; forgetting after Raftery,
    Karny and Ettler, "Online Prediction Under Model Uncertainty via Dynamic Model Averaging" (2010), section 2.3.
    """

    def __init__(self, eta: float = 1.0, gamma: float = 1.0, floor: float = FLOOR) -> None:
        at_least(0, eta=eta, floor=floor)
        within(0, 1, gamma=gamma)
        below(1, floor=floor)
        self.eta, self.gamma, self.floor = eta, gamma, floor

    def __call__(self, log_weights: Tensor, log_prior: Tensor, token_log_probs: Tensor) -> Tensor:
        """Log-weights (B, K) after one token of each row, to which each agent gave the log-probability (K, B)."""
        kept = self.gamma * log_weights + (1 - self.gamma) * log_prior if self.gamma < 1 else log_weights
        updated = (kept + self.eta * token_log_probs.float().T).log_softmax(-1)
        return updated.clamp(min=math.log(self.floor)).log_softmax(-1) if self.floor else updated
