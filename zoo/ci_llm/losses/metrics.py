"""Likelihood, calibration and diversity of a crowd's predictions, by token and by answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from zoo.ci_llm.losses.distances import pairwise_kl
from zoo.common.tensors import widest_float

BINS = 15  # of the calibration error, as Guo et al. (2017)


def gather_log_probs(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """The log-probabilities of tokens (...), which may lack leading axes, in predictions (..., V)."""
    return log_probs.gather(-1, tokens.expand(log_probs.shape[:-1])[..., None]).squeeze(-1)


def token_scores(log_probs: Tensor, ensemble: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Scores of labels (N,) by the agents' log-probabilities (K, N, V) and those of the ensemble (N, V).

    Returns:
        float32 on the same device: `agent_nll` (K, N); (N,): `nll`, `correct`, `confidence`, `brier` of the ensemble;
        `kl`, `disagreement` (of the likeliest token), each a mean over pairs of agents.

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
        "kl": pairwise_kl(log_probs).mean(0) if pairs else zeros,
        "disagreement": torch.stack(differ).mean(0) if pairs else zeros,
    }
    return {name: values.detach().float() for name, values in scores.items()}


def mean_scores(scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Means of `token_scores` over tokens, the last axis; NLL and divergences in nats per token.

    Returns:
        `nll_mean`, `nll_agent_<k>`, `nll_ensemble`, `ambiguity` (mean minus ensemble; not negative for the mean of the
        predictions, by Jensen's inequality), `pairwise_kl`, `disagreement`, `accuracy`.
    """
    dtype = widest_float(scores["nll"].device)
    agents = scores["agent_nll"].mean(1, dtype=dtype)
    ensemble = scores["nll"].mean(dtype=dtype)
    return {
        "nll_mean": agents.mean(),
        **{f"nll_agent_{k}": value for k, value in enumerate(agents)},
        "nll_ensemble": ensemble,
        "ambiguity": agents.mean() - ensemble,
        "pairwise_kl": scores["kl"].mean(),
        "disagreement": scores["disagreement"].mean(),
        "accuracy": scores["correct"].mean(),
    }


def summarise_scores(scores: Mapping[str, Tensor]) -> dict[str, float]:
    """Return `mean_scores`, `nll_best` (least of the agents), `brier` and `ece` of a set of tokens."""
    means = {name: float(value) for name, value in mean_scores(scores).items()}
    return {
        **means,
        "nll_best": min(value for name, value in means.items() if name.startswith("nll_agent_")),
        "brier": float(scores["brier"].mean()),
        "ece": calibration_error(scores["confidence"], scores["correct"]),
    }


def reliability_bins(confidence: Tensor, correct: Tensor) -> list[dict[str, float]]:
    """Confidence, accuracy and share of tokens (N,) in bins of equal width, without empty bins."""
    confidence, correct = confidence.double(), correct.double()
    at = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    return [
        {
            "confidence": float(confidence[at == each].mean()),
            "accuracy": float(correct[at == each].mean()),
            "share": float((at == each).double().mean()),
        }
        for each in at.unique().tolist()
    ]


def calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """Expected calibration error: distance of confidence and accuracy (N,), in bins of equal width; NaN without items.

    Source: Guo et al., "On Calibration of Modern Neural Networks" (2017), equation 3.
    """
    bins = reliability_bins(confidence, correct)
    return sum(row["share"] * abs(row["confidence"] - row["accuracy"]) for row in bins) if bins else math.nan
