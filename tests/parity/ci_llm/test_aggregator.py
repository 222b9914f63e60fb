import pytest
import torch

from tests.numeric import assert_agrees
from zoo.ci_llm.aggregation import Dirichlet, Mean, aggregate

ALPHAS = ["0.5", "1.0"]
SEED = 11


@pytest.fixture(scope="module")
def logits(io) -> torch.Tensor:
    return io["left.agent_logits"][:, :, -1]


def close(results: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(results, expected, atol=0, rtol=2e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_equal_weights(io, logits, alpha):
    close(Mean()(logits), io[f"agg.uniform.alpha{alpha}"])


def test_from_probabilities(io, logits):
    recorded = io["agg.from_probs.uniform"]
    assert_agrees(lambda x, w: aggregate(x, w.log()).exp(), logits, torch.full((3,), 1 / 3), recorded=recorded)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_drawn_weights(io, logits, alpha):
    rule = Dirichlet(float(alpha))
    torch.manual_seed(2000 + SEED)
    close(rule.start(3, 4).exp(), io[f"agg.weights.alpha{alpha}"])
    torch.manual_seed(2000 + SEED)
    close(rule(logits), io[f"agg.sampled.alpha{alpha}"])


@pytest.mark.parametrize("alpha", ALPHAS)
def test_given_weights(io, logits, alpha):
    weights, recorded = io[f"agg.weights.alpha{alpha}"], io[f"agg.sampled.alpha{alpha}"]
    assert_agrees(lambda x, w: aggregate(x, w.log()).exp(), logits, weights, recorded=recorded)
