"""Rules that combine predictions, and weights fitted to data."""

import math

import pytest
import torch

from zoo.ci_llm import BayesianAverage, Dirichlet, FittedMixture, Geometric, Mean, Vote
from zoo.ci_llm.aggregation import aggregate, fit_dirichlet, sample_dirichlet, uniform_log_weights
from zoo.common.tensors import sample_uniforms


def log_probs(agents=3, rows=2, vocabulary=5):
    return torch.randn(agents, rows, vocabulary, generator=torch.Generator().manual_seed(0)).log_softmax(-1)


def test_the_mixture_in_log_space_is_the_mean_of_probabilities():
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    expected = torch.einsum("bk,kbv->bv", weights, log_probs().exp())
    torch.testing.assert_close(aggregate(log_probs(), weights.log()).exp(), expected)
    torch.testing.assert_close(aggregate(log_probs(), weights[0].log())[0], expected[0].log())
    torch.testing.assert_close(FittedMixture([5, 3, 2])(log_probs())[0], expected[0])
    certain = torch.tensor([0.0, -200.0]).expand(2, 1, 2)
    assert aggregate(certain, torch.tensor([0.5, 0.5]).log())[0, 1].item() == pytest.approx(-200)


def test_geometric_mean():
    weights = torch.tensor([0.5, 0.3, 0.2])
    expected = (log_probs() * weights[:, None, None]).sum(0).log_softmax(-1)
    torch.testing.assert_close(Geometric().combine(log_probs(), weights.log()), expected)


@pytest.mark.parametrize(
    "rule", [Mean(), Dirichlet(), FittedMixture([1, 2, 1]), BayesianAverage(), Geometric(), Vote()]
)
def test_every_rule_gives_probabilities_in_single_precision(rule):
    probs = rule(log_probs().bfloat16())
    assert probs.shape == (2, 5) and probs.dtype == torch.float32
    torch.testing.assert_close(probs.sum(-1), torch.ones(2))


@pytest.mark.parametrize("alpha", [0.001, 0.5, 4.0])
def test_sampled_weights_have_the_distributions_mean_and_variance(alpha):
    weights = sample_dirichlet(torch.full((3,), alpha), sample_uniforms(range(4000), 3)).exp()
    torch.testing.assert_close(weights.sum(1), torch.ones(4000))
    assert weights.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    assert weights.var(0).mean().item() == pytest.approx((1 / 3) * (2 / 3) / (3 * alpha + 1), rel=0.07)


def test_bayesian_averaging_is_bayes_rule_along_the_text():
    prior, probs = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.3])
    rule = BayesianAverage(floor=0, alpha=prior.tolist())
    token_log_probs = torch.stack([probs, probs], -1).log()[:, None]  # (K, 1, 2)
    path = rule.weights_along_text(rule.start(3, 1), token_log_probs, torch.tensor([[1, 0]])).exp()
    torch.testing.assert_close(path[:, 0], torch.stack([prior, *[prior * probs / (prior * probs).sum()] * 2]))
    floored = BayesianAverage().update(uniform_log_weights(2, 1), torch.tensor([[0.0], [-1000.0]])).exp()
    assert floored[0, 1].item() == pytest.approx(1e-4, rel=1e-3)
    path = Mean().weights_along_text(Mean().start(3, 2), torch.zeros(3, 2, 4), torch.ones(2, 4))
    assert (path == -math.log(3)).all()


def token_log_probs(tokens=400, seed=0):
    """Two agents that predict the tokens and one that gives every token almost nothing."""
    noise = torch.rand(3, tokens, generator=torch.Generator().manual_seed(seed))
    return (noise * torch.tensor([[0.8], [0.8], [0.02]])).log()


def ensemble_nll(scores, weights):
    return -(scores.double() + weights.log()[:, None]).logsumexp(0).mean().item()


def test_fitted_weights_beat_equal_ones_with_a_bad_agent():
    posterior = fit_dirichlet(token_log_probs())
    weights = posterior / posterior.sum()
    assert posterior.sum().item() == pytest.approx(400 + 3) and weights[2] < 0.05
    held_out, equal = token_log_probs(seed=1), torch.full((3,), 1 / 3, dtype=torch.float64)
    assert ensemble_nll(held_out, weights) < ensemble_nll(held_out, equal) - 0.2
    strong = fit_dirichlet(token_log_probs(), alpha=1e7)
    assert (strong / strong.sum()).tolist() == pytest.approx([1 / 3] * 3, abs=1e-4)
