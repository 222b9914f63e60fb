"""Likelihood, calibration and diversity of a crowd's predictions, by token and by answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from zoo.ci_llm.losses.distances import pairwise_divergences

BINS = 15  # of the calibration error, as Guo et al. (2017)


def gather_log_probs(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """The log-probabilities of tokens (...), which may lack leading axes, in predictions (..., V)."""
    return log_probs.gather(-1, tokens.expand(log_probs.shape[:-1])[..., None]).squeeze(-1)


def token_scores(log_probs: Tensor, ensemble: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Scores of labels (N,) by the agents' log-probabilities (K, N, V) and those of the ensemble (N, V).

    Returns:
        float32 on the same device: `agent_nll` (K, N); (N,): `nll`, `correct`, `confidence`, `brier` of the ensemble;
        `kl`, `js`, `disagreement` (of the likeliest token), each a mean over pairs of agents.

    Source: Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation" (2017), section 2.4.
    """
    log_probs, ensemble = log_probs.float(), ensemble.float()
    tops = log_probs.argmax(-1)
    pairs = list(combinations(range(len(log_probs)), 2))
    differ = [(tops[i] != tops[j]).float() for i, j in pairs]
    zeros = torch.zeros(len(labels), device=labels.device)
    label_log_probs = gather_log_probs(ensemble, labels)
    scores = {
        "agent_nll": -gather_log_probs(log_probs, labels),
        "nll": -label_log_probs,
        "correct": ensemble.argmax(-1) == labels,
        "confidence": ensemble.amax(-1).exp(),
        "brier": ensemble.exp().square().sum(-1) - 2 * label_log_probs.exp() + 1,
        "kl": pairwise_divergences(log_probs, "kl").mean(0) if pairs else zeros,
        "js": pairwise_divergences(log_probs, "js").mean(0) if pairs else zeros,
        "disagreement": torch.stack(differ).mean(0) if pairs else zeros,
    }
    return {name: values.detach().float() for name, values in scores.items()}


def summarise_scores(scores: Mapping[str, Tensor]) -> dict[str, float]:
    """Means of `token_scores` over tokens, the last axis.

    Returns:
        `nll_agent_<k>`, `nll_mean`, `nll_best`, `nll_ensemble`, `ambiguity` (mean minus ensemble; not negative for the
        mean of the predictions, by Jensen's inequality), `pairwise_kl`, `pairwise_js`, `disagreement`, `accuracy`,
        `brier`, `ece`; NLL and divergences in nats per token.
    """
    agents = scores["agent_nll"].double().mean(1)
    ensemble = float(scores["nll"].double().mean())
    return {
        **{f"nll_agent_{k}": float(nll) for k, nll in enumerate(agents)},
        "nll_mean": float(agents.mean()),
        "nll_best": float(agents.min()),
        "nll_ensemble": ensemble,
        "ambiguity": float(agents.mean()) - ensemble,
        "pairwise_kl": float(scores["kl"].mean()),
        "pairwise_js": float(scores["js"].mean()),
        "disagreement": float(scores["disagreement"].mean()),
        "accuracy": float(scores["correct"].mean()),
        "brier": float(scores["brier"].mean()),
        "ece": calibration_error(scores["confidence"], scores["correct"]),
    }


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: distance of confidence and accuracy (N,), in bins of equal width; NaN without items.

    Source: Guo et al., "On Calibration of Modern Neural Networks" (2017), equation 3.
    """
    if not len(confidence):
        return math.nan
    confidence = confidence.double()
    at = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64).index_add_(0, at, confidence - correct.double())
    return float(gaps.abs().sum() / len(confidence))
