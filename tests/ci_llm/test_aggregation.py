"""Rules that combine predictions, and weights fitted to data."""

import math

import pytest
import torch

from zoo.ci_llm.aggregation import (
    BayesianAverage,
    Dirichlet,
    FittedMixture,
    Geometric,
    Mean,
    Vote,
    aggregate,
    fit_dirichlet,
    sample_dirichlet,
    uniform_log_weights,
)
from zoo.common.tensors import sample_uniforms


def log_probs(agents=3, rows=2, vocabulary=5):
    return torch.randn(agents, rows, vocabulary, generator=torch.Generator().manual_seed(0)).log_softmax(-1)


def test_the_mixture_in_log_space_is_the_mean_of_probabilities():
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    expected = torch.einsum("bk,kbv->bv", weights, log_probs().exp())
    torch.testing.assert_close(aggregate(log_probs(), weights.log()).exp(), expected)
    torch.testing.assert_close(aggregate(log_probs(), weights[0].log())[0], expected[0].log())


def test_tiny_probabilities_survive():
    certain = torch.tensor([0.0, -200.0]).expand(2, 1, 2)
    assert aggregate(certain, torch.tensor([0.5, 0.5]).log())[0, 1].item() == pytest.approx(-200)


def test_the_ensemble_is_no_worse_than_its_mean_agent():
    joined = aggregate(log_probs(), uniform_log_weights(3, 2))
    assert (-joined <= -log_probs().mean(0) + 1e-6).all()


def test_geometric_mean():
    weights = torch.tensor([0.5, 0.3, 0.2])
    expected = (log_probs() * weights[:, None, None]).sum(0).log_softmax(-1)
    torch.testing.assert_close(Geometric().combine(log_probs(), weights.log()), expected)
    torch.testing.assert_close(Geometric()(log_probs()), log_probs().mean(0).softmax(-1))


@pytest.mark.parametrize(
    "rule", [Mean(), Dirichlet(), FittedMixture([1, 2, 1]), BayesianAverage(), Geometric(), Vote()]
)
def test_every_rule_gives_probabilities_in_single_precision(rule):
    found = rule(log_probs().bfloat16())
    assert found.shape == (2, 5) and found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(2))


def test_sampled_weights_belong_to_the_row():
    uniforms = sample_uniforms([7, 8, 9], 3)
    all_rows = Dirichlet(0.5).start(3, 3, uniforms)
    torch.testing.assert_close(Dirichlet(0.5).start(3, 1, uniforms[:, 1:2]), all_rows[1:2], rtol=0, atol=0)
    assert not torch.allclose(all_rows[0], all_rows[1])
    with pytest.raises(ValueError, match="alpha is positive"):
        Dirichlet(0)


def test_fitted_weights():
    expected = torch.einsum("k,kbv->bv", torch.tensor([0.25, 0.5, 0.25]), log_probs().exp())
    torch.testing.assert_close(FittedMixture([1, 2, 1])(log_probs()), expected)
    torch.testing.assert_close(FittedMixture([0, 1, 0])(log_probs()), log_probs()[1].exp())
    with pytest.raises(ValueError, match="2 fitted weights for 3 agents"):
        FittedMixture([1, 1]).start(3, 1)
    for bad in ([], [0, 0], [-1, 2]):
        with pytest.raises(ValueError, match="at least 0"):
            FittedMixture(bad)


def test_bayesian_averaging_follows_the_text():
    rule = BayesianAverage(floor=0)
    given = torch.tensor([[0.9, 0.9], [0.5, 0.5], [0.1, 0.1]]).log()[:, None]
    path = rule.weights_along_text(rule.start(3, 1), given, torch.tensor([[1, 0]]))
    assert path.shape == (3, 1, 3)
    torch.testing.assert_close(path[0].exp(), torch.full((1, 3), 1 / 3))
    torch.testing.assert_close(path[1].exp(), torch.tensor([[0.9, 0.5, 0.1]]) / 1.5)
    torch.testing.assert_close(path[2], path[1])
    begun = BayesianAverage(alpha=[2, 1, 1]).start(3, 2).exp()
    torch.testing.assert_close(begun, torch.tensor([[0.5, 0.25, 0.25]] * 2))


def test_rules_that_do_not_learn_keep_their_weights():
    path = Mean().weights_along_text(Mean().start(3, 2), torch.zeros(3, 2, 4), torch.ones(2, 4))
    assert (path == -math.log(3)).all()


def test_a_vote_returns_the_first_text_with_the_winning_answer():
    texts = ["it is 4", "that makes 5", "so 5.0 it is"]
    assert Vote().winning_text(texts) == "that makes 5"
    assert not Vote.joint and Mean.joint


def noisy_agent(tokens=400, seed=0):
    """Two agents that know something and one that gives every token almost nothing."""
    noise = torch.rand(3, tokens, generator=torch.Generator().manual_seed(seed))
    return (noise * torch.tensor([[0.8], [0.8], [0.02]])).log()


def ensemble_nll(log_probs, weights):
    return -(log_probs.double() + weights.log()[:, None]).logsumexp(0).mean().item()


def test_fitted_weights_beat_equal_ones_when_an_agent_is_bad():
    posterior = fit_dirichlet(noisy_agent())
    weights = posterior / posterior.sum()
    assert posterior.sum().item() == pytest.approx(400 + 3)
    assert weights[2] < 0.05
    held_out, equal = noisy_agent(seed=1), torch.full((3,), 1 / 3, dtype=torch.float64)
    assert ensemble_nll(held_out, weights) < ensemble_nll(held_out, equal) - 0.2


def test_fitting_ends_at_the_maximum():
    log_probs = torch.tensor([[0.9, 0.9, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
    posterior = fit_dirichlet(log_probs, alpha=1e-6, tolerance=1e-10)
    best = min(torch.linspace(0.01, 0.99, 99), key=lambda w: ensemble_nll(log_probs, torch.stack([w, 1 - w]).double()))
    assert (posterior / posterior.sum())[0].item() == pytest.approx(best.item(), abs=0.011)


def test_a_strong_prior_keeps_the_weights_equal():
    posterior = fit_dirichlet(noisy_agent(), alpha=1e7)
    assert (posterior / posterior.sum()).tolist() == pytest.approx([1 / 3] * 3, abs=1e-4)


def test_fitting_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="alpha is positive"):
        fit_dirichlet(noisy_agent(), alpha=0)
    with pytest.raises(ValueError, match="at least one token"):
        fit_dirichlet(torch.zeros(3, 0))
    with pytest.raises(ValueError, match="no NaN"):
        fit_dirichlet(torch.full((2, 2), float("nan")))


@pytest.mark.parametrize("alpha", [0.001, 0.5, 4.0])
def test_sampled_weights_have_the_distributions_mean_and_spread(alpha):
    sampled = sample_dirichlet(torch.full((3,), alpha), sample_uniforms(range(4000), 3)).exp()
    torch.testing.assert_close(sampled.sum(1), torch.ones(4000))
    assert sampled.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    assert sampled.var(0).mean().item() == pytest.approx((1 / 3) * (2 / 3) / (3 * alpha + 1), rel=0.07)


def test_bayesian_averaging_is_bayes_rule():
    prior, probs = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.3])
    rule = BayesianAverage(floor=0, alpha=prior.tolist())
    found = rule.update(rule.start(3, 1), probs.log()[:, None]).exp()[0]
    torch.testing.assert_close(found, prior * probs / (prior * probs).sum())


def test_eta_zero_keeps_the_prior_and_gamma_zero_forgets():
    now, probs = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([0.2, 0.8]).log()[:, None]
    rule = BayesianAverage(eta=0, gamma=0.5)
    torch.testing.assert_close(rule.update(rule.start(2, 1), probs).exp()[0], torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(BayesianAverage(gamma=0).update(now, probs).exp()[0], torch.tensor([0.2, 0.8]))


def test_no_agent_falls_below_the_floor():
    rule = BayesianAverage()
    found = rule.update(rule.start(2, 1), torch.tensor([[0.0], [-1000.0]])).exp()
    assert found[0, 1].item() == pytest.approx(1e-4, rel=1e-3)
    with pytest.raises(ValueError, match="floor is below 1"):
        BayesianAverage(floor=1)
