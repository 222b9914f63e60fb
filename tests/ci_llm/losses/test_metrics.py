import math

import pytest
import torch

from zoo.ci_llm.aggregation import aggregate, uniform_log_weights
from zoo.ci_llm.losses.metrics import calibration_error, reliability_bins, summarise_scores, token_scores


def test_scores_of_a_token_by_hand():
    log_probs = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]]).log()
    scores = token_scores(log_probs, torch.tensor([[0.6, 0.4]]).log(), torch.tensor([1]))
    assert scores["agent_nll"].flatten().tolist() == pytest.approx([-math.log(0.2), -math.log(0.6)])
    assert scores["nll"].item() == pytest.approx(-math.log(0.4))
    assert scores["confidence"].item() == pytest.approx(0.6)
    assert scores["brier"].item() == pytest.approx(0.6**2 + 0.6**2)
    assert scores["disagreement"].item() == 1 and scores["correct"].item() == 0


@pytest.mark.parametrize("agents", [1, 3])
def test_summary_of_a_set(agents):
    generator = torch.Generator().manual_seed(0)
    log_probs = (2 * torch.randn(agents, 60, 4, generator=generator)).log_softmax(-1)
    labels = torch.randint(4, (60,), generator=generator)
    ensemble = aggregate(log_probs, uniform_log_weights(agents, 60))
    summary = summarise_scores(token_scores(log_probs, ensemble, labels))
    nll = -log_probs.gather(-1, labels.expand(agents, -1)[..., None]).squeeze(-1).mean(1)
    assert [summary[f"nll_agent_{k}"] for k in range(agents)] == pytest.approx(nll.tolist(), rel=1e-5)
    assert summary["nll_mean"] == pytest.approx(float(nll.mean()), rel=1e-5)
    assert summary["nll_best"] == pytest.approx(float(nll.min()), rel=1e-5)
    expected = float(-ensemble.gather(-1, labels[:, None]).mean())
    assert summary["nll_ensemble"] == pytest.approx(expected, rel=1e-5)
    assert summary["ambiguity"] == pytest.approx(summary["nll_mean"] - expected, abs=1e-6)
    assert (summary["pairwise_kl"] > 0) == (agents > 1)


def test_calibration_error():
    confidence = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.3, 0.3])
    expected = 4 / 6 * 0.15 + 2 / 6 * 0.2
    assert calibration_error(confidence, torch.tensor([1, 1, 1, 0, 1, 0])) == pytest.approx(expected, rel=1e-5)
    assert calibration_error(torch.tensor([1.0, 0.0]), torch.tensor([1, 0])) == 0
    bins = reliability_bins(torch.tensor([0.05, 0.95, 0.95, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert [row["share"] for row in bins] == [0.25, 0.75] and bins[1]["accuracy"] == pytest.approx(2 / 3)
