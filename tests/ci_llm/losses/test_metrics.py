import math

import pytest
import torch

from zoo.ci_llm.aggregation import aggregate, uniform_log_weights
from zoo.ci_llm.losses.metrics import (
    CrowdScores,
    calibration_error,
    entropy,
    error_correlation,
    risk_coverage,
    text_intervals,
    token_scores,
)


def predictions(agents=3, tokens=60, vocabulary=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(agents, tokens, vocabulary, generator=generator)).log_softmax(-1)
    labels = torch.randint(vocabulary, (tokens,), generator=generator)
    return log_probs, aggregate(log_probs, uniform_log_weights(agents, tokens)), labels


def scored(agents=3):
    scores = CrowdScores()
    log_probs, ensemble, labels = predictions(agents)
    texts = torch.arange(60) // 6
    scores.add(token_scores(log_probs[:, :30], ensemble[:30], labels[:30]), texts[:30])
    scores.add(token_scores(log_probs[:, 30:], ensemble[30:], labels[30:]), texts[30:])
    return scores


def test_scores_of_a_token_by_hand():
    log_probs = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]]).log()
    ensemble, labels = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([1])
    found = token_scores(log_probs, ensemble, labels)
    assert found["agent_nll"].flatten().tolist() == pytest.approx([-math.log(0.2), -math.log(0.6)])
    assert found["agent_correct"].flatten().tolist() == [0, 1]
    assert found["nll"].item() == pytest.approx(-math.log(0.4))
    assert found["confidence"].item() == pytest.approx(0.6)
    assert found["brier"].item() == pytest.approx(0.6**2 + 0.6**2)
    assert found["disagreement"].item() == 1
    # for two agents the Jensen-Shannon divergence is the mutual information
    assert found["js"].item() == pytest.approx(found["mutual_information"].item(), rel=1e-4)
    assert found["scaled_nll"].shape == (33, 1)
    assert found["scaled_nll"][16].item() == pytest.approx(found["nll"].item())


def test_entropy_of_known_distributions():
    found = entropy(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log())
    assert found.tolist() == pytest.approx([math.log(2), 0.0])


def test_summary_of_a_set():
    summary = scored().summary()
    log_probs, ensemble, labels = predictions()
    agents = [torch.nn.functional.nll_loss(one, labels).item() for one in log_probs]
    assert [summary[f"nll_agent_{k}"] for k in range(3)] == pytest.approx(agents)
    assert summary["nll_mean"] == pytest.approx(sum(agents) / 3)
    assert summary["nll_best"] == pytest.approx(min(agents))
    assert summary["nll_ensemble"] == pytest.approx(torch.nn.functional.nll_loss(ensemble, labels).item())
    assert summary["ambiguity"] == pytest.approx(summary["nll_mean"] - summary["nll_ensemble"]) and (
        summary["ambiguity"] > 0
    )
    assert 0 <= summary["pairwise_js"] <= math.log(2)
    assert all(math.isfinite(value) for value in summary.values())


def test_a_crowd_of_one_has_no_diversity():
    summary = scored(agents=1).summary()
    assert summary["pairwise_kl"] == summary["disagreement"] == 0
    assert summary["ambiguity"] == pytest.approx(0, abs=1e-6)
    assert math.isnan(summary["error_correlation"])


def test_scores_that_were_kept_sum_up_to_the_same():
    kept = CrowdScores()
    kept.add(*scored().state())
    assert kept.summary() == scored().summary() and kept.intervals() == scored().intervals()


def test_intervals_are_over_texts():
    found = scored().intervals()
    summary = scored().summary()
    for name in ("nll_mean", "nll_ensemble", "ambiguity"):
        assert found[name].mean == pytest.approx(summary[name], rel=1e-5)
        assert found[name].low < found[name].mean < found[name].high
    gain = summary["nll_best"] - summary["nll_ensemble"]
    assert found["gain_over_best"].mean == pytest.approx(gain, rel=1e-4)
    one_text = text_intervals({"x": torch.tensor([1.0, 3.0])}, torch.zeros(2, dtype=torch.long))
    assert one_text["x"].mean == 2 and math.isnan(one_text["x"].low)


def test_no_tokens_are_an_error():
    with pytest.raises(ValueError, match="no labelled token"):
        CrowdScores().summary()


def test_calibration_error():
    confidence = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.3, 0.3])
    assert calibration_error(confidence, torch.tensor([1, 1, 1, 0, 1, 0])) == pytest.approx(
        4 / 6 * 0.15 + 2 / 6 * 0.2, rel=1e-5
    )
    assert calibration_error(torch.tensor([1.0, 0.0]), torch.tensor([1, 0])) == 0
    assert math.isnan(calibration_error(torch.zeros(0), torch.zeros(0)))


def test_a_fitted_temperature_calibrates_overconfident_predictions():
    generator = torch.Generator().manual_seed(0)
    true = (2 * torch.randn(3000, 4, generator=generator)).log_softmax(-1)
    labels = torch.multinomial(true.exp(), 1, generator=generator).squeeze(1)
    over = (2.5 * true).log_softmax(-1)
    scores = CrowdScores()
    scores.add(token_scores(over[None], over, labels), torch.arange(3000) // 10)
    summary = scores.summary()
    assert summary["ece"] > 0.1 and summary["ece_scaled"] < 0.04


def test_error_correlation():
    right = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]])
    assert error_correlation(right[:2]) == pytest.approx(1)
    assert error_correlation(right[1:]) == pytest.approx(-1)
    assert error_correlation(right) == pytest.approx(-1 / 3)
    assert math.isnan(error_correlation(torch.tensor([[1, 1], [1, 0]])))


def test_risk_and_coverage():
    coverage, risk = risk_coverage(torch.tensor([1.0, 0.5, 0.5, 0.25]), torch.tensor([1, 1, 0, 0]))
    assert coverage.tolist() == pytest.approx([0.25, 0.75, 1.0])
    assert risk.tolist() == pytest.approx([0, 1 / 3, 0.5])
    with pytest.raises(ValueError, match="at least one answer"):
        risk_coverage(torch.zeros(0), torch.zeros(0))
