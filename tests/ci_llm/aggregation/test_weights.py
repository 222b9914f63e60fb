import pytest
import torch

from zoo.ci_llm.aggregation.aggregator import BayesianAverage, draw_dirichlet, fit_dirichlet
from zoo.common.tensors import sample_uniforms


def spoiled(tokens=400, seed=0):
    """Two agents that know something and one that gives every token almost nothing."""
    noise = torch.rand(3, tokens, generator=torch.Generator().manual_seed(seed))
    return (noise * torch.tensor([[0.8], [0.8], [0.02]])).log()


def ensemble_nll(log_probs, weights):
    return -(log_probs.double() + weights.log()[:, None]).logsumexp(0).mean().item()


def test_fitted_weights_beat_equal_ones_when_an_agent_is_spoiled():
    posterior = fit_dirichlet(spoiled())
    weights = posterior / posterior.sum()
    assert posterior.sum().item() == pytest.approx(400 + 3)
    assert weights[2] < 0.05
    held_out, equal = spoiled(seed=1), torch.full((3,), 1 / 3, dtype=torch.float64)
    assert ensemble_nll(held_out, weights) < ensemble_nll(held_out, equal) - 0.2


def test_fitting_ends_at_the_maximum():
    log_probs = torch.tensor([[0.9, 0.9, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
    posterior = fit_dirichlet(log_probs, alpha=1e-6, tolerance=1e-10)
    best = min(torch.linspace(0.01, 0.99, 99), key=lambda w: ensemble_nll(log_probs, torch.stack([w, 1 - w]).double()))
    assert (posterior / posterior.sum())[0].item() == pytest.approx(best.item(), abs=0.011)


def test_a_strong_prior_keeps_the_weights_equal():
    posterior = fit_dirichlet(spoiled(), alpha=1e7)
    assert (posterior / posterior.sum()).tolist() == pytest.approx([1 / 3] * 3, abs=1e-4)


def test_fitting_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="alpha is positive"):
        fit_dirichlet(spoiled(), alpha=0)
    with pytest.raises(ValueError, match="at least one token"):
        fit_dirichlet(torch.zeros(3, 0))
    with pytest.raises(ValueError, match="no NaN"):
        fit_dirichlet(torch.full((2, 2), float("nan")))


@pytest.mark.parametrize("alpha", [0.001, 0.5, 4.0])
def test_drawn_weights_have_the_distributions_mean_and_spread(alpha):
    drawn = draw_dirichlet(torch.full((3,), alpha), sample_uniforms(range(4000), 3)).exp()
    torch.testing.assert_close(drawn.sum(1), torch.ones(4000))
    assert drawn.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    assert drawn.var(0).mean().item() == pytest.approx((1 / 3) * (2 / 3) / (3 * alpha + 1), rel=0.07)


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
