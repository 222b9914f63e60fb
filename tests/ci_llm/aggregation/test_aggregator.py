import math

import pytest
import torch

from zoo.ci_llm.aggregation.aggregator import (
    BayesianAverage,
    Dirichlet,
    Fitted,
    Geometric,
    Mean,
    Vote,
    aggregate,
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


@pytest.mark.parametrize("rule", [Mean(), Dirichlet(), Fitted([1, 2, 1]), BayesianAverage(), Geometric(), Vote()])
def test_every_rule_gives_probabilities_in_single_precision(rule):
    found = rule(log_probs().bfloat16())
    assert found.shape == (2, 5) and found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(2))


def test_drawn_weights_belong_to_the_row():
    uniforms = sample_uniforms([7, 8, 9], 3)
    all_rows = Dirichlet(0.5).start(3, 3, uniforms)
    torch.testing.assert_close(Dirichlet(0.5).start(3, 1, uniforms[:, 1:2]), all_rows[1:2], rtol=0, atol=0)
    assert not torch.allclose(all_rows[0], all_rows[1])
    with pytest.raises(ValueError, match="alpha is positive"):
        Dirichlet(0)


def test_fitted_weights():
    expected = torch.einsum("k,kbv->bv", torch.tensor([0.25, 0.5, 0.25]), log_probs().exp())
    torch.testing.assert_close(Fitted([1, 2, 1])(log_probs()), expected)
    torch.testing.assert_close(Fitted([0, 1, 0])(log_probs()), log_probs()[1].exp())
    with pytest.raises(ValueError, match="2 fitted weights for 3 agents"):
        Fitted([1, 1]).start(3, 1)
    for bad in ([], [0, 0], [-1, 2]):
        with pytest.raises(ValueError, match="at least 0"):
            Fitted(bad)


def test_bayesian_averaging_follows_the_text():
    rule = BayesianAverage(floor=0)
    given = torch.tensor([[0.9, 0.9], [0.5, 0.5], [0.1, 0.1]]).log()[:, None]
    path = rule.along(rule.start(3, 1), given, torch.tensor([[1, 0]]))
    assert path.shape == (3, 1, 3)
    torch.testing.assert_close(path[0].exp(), torch.full((1, 3), 1 / 3))
    torch.testing.assert_close(path[1].exp(), torch.tensor([[0.9, 0.5, 0.1]]) / 1.5)
    torch.testing.assert_close(path[2], path[1])
    begun = BayesianAverage(alpha=[2, 1, 1]).start(3, 2).exp()
    torch.testing.assert_close(begun, torch.tensor([[0.5, 0.25, 0.25]] * 2))


def test_rules_that_do_not_learn_keep_their_weights():
    path = Mean().along(Mean().start(3, 2), torch.zeros(3, 2, 4), torch.ones(2, 4))
    assert (path == -math.log(3)).all()


def test_a_vote_returns_the_first_text_with_the_winning_answer():
    texts = ["it is 4", "that makes 5", "so 5.0 it is"]
    assert Vote().winning_text(texts) == "that makes 5"
    assert not Vote.joint and Mean.joint
