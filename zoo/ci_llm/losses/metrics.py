"""Likelihood, calibration and diversity of a crowd's predictions, by token and by answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from zoo.ci_llm.losses.distances import pairwise_divergences
from zoo.common.statistics import Interval, bootstrap_mean

BINS = 15  # of the calibration error, as Guo et al. (2017)
TEMPERATURES = tuple(2.0 ** (step / 8) for step in range(-16, 17))  # 0.25 to 4, candidates of temperature scaling


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy (...), in nats, of log-probabilities (..., V)."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def token_scores(log_probs: Tensor, ensemble: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Scores of each token; they are small, so predictions need not be stored.

    Args:
        log_probs: the agents' log-probabilities (K, N, V).
        ensemble: of the aggregator, log-probabilities (N, V).
        labels: right tokens (N,), int64.

    Returns:
        float32 on the same device. (K, N): `agent_nll`, `agent_correct`. (N,): `nll`, `correct`, `confidence`,
        `brier` of the ensemble; `kl`, `js`, `disagreement` (of the likeliest token), each a mean over pairs of agents;
        `mutual_information` H(mean p) - mean H(p). (G, N): `scaled_nll` and `scaled_confidence` of the ensemble at
        each of `TEMPERATURES`.

    Source: Guo et al., "On Calibration of Modern Neural Networks" (2017), section 2; Lakshminarayanan et al. (2017),
    section 2.4.
    """
    log_probs, ensemble = log_probs.float(), ensemble.float()
    tops = log_probs.argmax(-1)
    mean = log_probs.logsumexp(0) - math.log(len(log_probs))
    pairs = list(combinations(range(len(log_probs)), 2))
    differ = [(tops[i] != tops[j]).float() for i, j in pairs]
    zeros = torch.zeros(len(labels), device=labels.device)
    right = gather_log_probs(ensemble, labels)
    norms = torch.stack([(ensemble / temperature).logsumexp(-1) for temperature in TEMPERATURES])
    temperatures = torch.tensor(TEMPERATURES, device=ensemble.device)[:, None]
    scores = {
        "agent_nll": -gather_log_probs(log_probs, labels),
        "agent_correct": tops == labels,
        "nll": -right,
        "correct": ensemble.argmax(-1) == labels,
        "confidence": ensemble.amax(-1).exp(),
        "brier": ensemble.exp().square().sum(-1) - 2 * right.exp() + 1,
        "kl": pairwise_divergences(log_probs, "kl").mean(0) if pairs else zeros,
        "js": pairwise_divergences(log_probs, "js").mean(0) if pairs else zeros,
        "disagreement": torch.stack(differ).mean(0) if pairs else zeros,
        "mutual_information": entropy(mean) - entropy(log_probs).mean(0),
        "scaled_nll": norms - right / temperatures,
        "scaled_confidence": (ensemble.amax(-1) / temperatures - norms).exp(),
    }
    return {name: values.detach().float() for name, values in scores.items()}


def gather_log_probs(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """The log-probabilities of tokens (...), which may lack leading axes, in predictions (..., V)."""
    return log_probs.gather(-1, tokens.expand(log_probs.shape[:-1])[..., None]).squeeze(-1)


class CrowdScores:
    """Scores of the tokens of a set, and their summary."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = {}
        self._texts: list[Tensor] = []

    def add(self, scores: Mapping[str, Tensor], texts: Tensor) -> None:
        """Add the results of `token_scores` or `state`; `texts` (N,) int64, index of each token's text."""
        for name, values in scores.items():
            self._parts.setdefault(name, []).append(values)
        self._texts.append(texts)

    def state(self) -> tuple[dict[str, Tensor], Tensor]:
        """All scores, tokens along the last axis, and the text (N,) that each token belongs to."""
        if not self._texts:
            raise ValueError("no tokens were scored: the set holds no labelled token")
        return {name: torch.cat(parts, dim=-1) for name, parts in self._parts.items()}, torch.cat(self._texts)

    def summary(self) -> dict[str, float]:
        """Means over tokens.

        Returns:
            `nll_agent_<k>`, `nll_mean`, `nll_best`, `nll_ensemble`, `ambiguity` (mean minus ensemble; not negative
            for the mean of the predictions, by Jensen's inequality), `pairwise_kl`, `pairwise_js`, `disagreement`,
            `mutual_information`, `error_correlation`, `accuracy`, `brier`, `ece`, `ece_scaled`; NLL and divergences in
            nats per token.
        """
        tokens, texts = self.state()
        agents = tokens["agent_nll"].double().mean(1)
        ensemble = float(tokens["nll"].double().mean())
        return {
            **{f"nll_agent_{k}": float(nll) for k, nll in enumerate(agents)},
            "nll_mean": float(agents.mean()),
            "nll_best": float(agents.min()),
            "nll_ensemble": ensemble,
            "ambiguity": float(agents.mean()) - ensemble,
            "pairwise_kl": float(tokens["kl"].mean()),
            "pairwise_js": float(tokens["js"].mean()),
            "disagreement": float(tokens["disagreement"].mean()),
            "mutual_information": float(tokens["mutual_information"].mean()),
            "error_correlation": error_correlation(tokens["agent_correct"]),
            "accuracy": float(tokens["correct"].mean()),
            "brier": float(tokens["brier"].mean()),
            "ece": calibration_error(tokens["confidence"], tokens["correct"]),
            "ece_scaled": scaled_calibration_error(tokens, texts),
        }

    def intervals(self, seed: int = 0) -> dict[str, Interval]:
        """Bootstrap intervals over texts, since tokens of one text are not independent.

        Returns:
            `nll_mean`, `nll_ensemble`, `ambiguity` and `gain_over_best` (NLL of the best agent minus the ensemble's,
            paired; above 0 where the ensemble is better), means per token.
        """
        tokens, texts = self.state()
        best = tokens["agent_nll"][tokens["agent_nll"].double().mean(1).argmin()]
        mean = tokens["agent_nll"].mean(0)
        measured = {
            "nll_mean": mean,
            "nll_ensemble": tokens["nll"],
            "ambiguity": mean - tokens["nll"],
            "gain_over_best": best - tokens["nll"],
        }
        return text_intervals(measured, texts, seed)


def text_intervals(values: Mapping[str, Tensor], texts: Tensor, seed: int = 0) -> dict[str, Interval]:
    """Means over tokens of scores (N,) by name, with bootstrap intervals over the texts (N,) that they belong to."""
    _, at, counts = np.unique(texts.numpy(), return_inverse=True, return_counts=True)
    return {
        name: bootstrap_mean(np.bincount(at, weights=score.double().numpy()) / counts, counts, seed=seed)
        for name, score in values.items()
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


def scaled_calibration_error(tokens: Mapping[str, Tensor], texts: Tensor, bins: int = BINS) -> float:
    """Calibration error that is left when a temperature is fitted, by NLL, on the other half of the texts.

    Args:
        tokens: `scaled_nll`, `scaled_confidence` (G, N) and `correct` (N,) of `token_scores`.
        texts: the text of each token (N,), int64; those of even rank are one half. NaN for a single text.
    """
    odd = texts.unique(return_inverse=True)[1] % 2 == 1
    if not odd.any():
        return math.nan
    confidence = torch.empty_like(tokens["correct"])
    for half in (odd, ~odd):
        best = tokens["scaled_nll"][:, ~half].double().mean(1).argmin()
        confidence[half] = tokens["scaled_confidence"][best, half]
    return calibration_error(confidence, tokens["correct"], bins)


def error_correlation(correct: Tensor) -> float:
    """Mean correlation of two agents' errors, by whether each was right (K, N).

    Over the pairs of agents of which neither is always right or always wrong; NaN without any.
    """
    errors = 1 - correct.double()
    errors = errors[errors.std(1, correction=0) > 0]
    if len(errors) < 2:
        return math.nan
    first, second = torch.triu_indices(len(errors), len(errors), 1)
    return float(torch.corrcoef(errors)[first, second].mean())


def risk_coverage(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Error rate among the answers above each level of confidence.

    Returns:
        Coverage (M,) rising to 1, and risk (M,), float64, a point for each of the M levels of confidence.

    Source: Geifman and El-Yaniv, "Selective Classification for Deep Neural Networks" (2017), section 2.
    """
    if not len(confidence):
        raise ValueError("risk and coverage need at least one answer, found none")
    levels, at = confidence.double().unique(return_inverse=True)
    counts = torch.zeros(len(levels), dtype=torch.float64).index_add_(0, at, torch.ones(len(at), dtype=torch.float64))
    wrong = torch.zeros(len(levels), dtype=torch.float64).index_add_(0, at, 1 - correct.double())
    covered = counts.flip(0).cumsum(0)
    return covered / len(at), wrong.flip(0).cumsum(0) / covered
