import math

import pytest
import torch

from zoo.ci_llm.losses.metrics import calibration_error, reliability_bins, summarise_scores, token_scores


def test_scores_of_a_token_by_hand():
    log_probs = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]]).log()
    scores = token_scores(log_probs, torch.tensor([[0.6, 0.4]]).log(), torch.tensor([1]))
    assert scores["agent_nll"].flatten().tolist() == pytest.approx([-math.log(0.2), -math.log(0.6)])
    assert scores["nll"].item() == pytest.approx(-math.log(0.4))
    assert scores["confidence"].item() == pytest.approx(0.6)
    assert scores["brier"].item() == pytest.approx(0.6**2 + 0.6**2)
    assert scores["disagreement"].item() == 1 and scores["correct"].item() == 0
    summary = summarise_scores(scores)
    assert summary["nll_best"] == pytest.approx(-math.log(0.6)) and summary["brier"] == pytest.approx(0.72)
    assert summary["nll_mean"] == pytest.approx(-math.log(0.2 * 0.6) / 2) and summary["pairwise_kl"] > 0
    alone = token_scores(log_probs[:1], log_probs[0], torch.tensor([1]))
    assert alone["kl"].item() == alone["disagreement"].item() == 0


def test_calibration_error():
    confidence = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.3, 0.3])
    expected = 4 / 6 * 0.15 + 2 / 6 * 0.2
    assert calibration_error(confidence, torch.tensor([1, 1, 1, 0, 1, 0])) == pytest.approx(expected, rel=1e-5)
    assert calibration_error(torch.tensor([1.0, 0.0]), torch.tensor([1, 0])) == 0
    bins = reliability_bins(torch.tensor([0.05, 0.95, 0.95, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert [row["share"] for row in bins] == [0.25, 0.75] and bins[1]["accuracy"] == pytest.approx(2 / 3)
