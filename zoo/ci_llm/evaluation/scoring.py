"""Likelihoods of right answers: scores of every answer token, by agent and by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from zoo.ci_llm.aggregation import (
    Aggregator,
    BayesianAverage,
    Dirichlet,
    FittedMixture,
    Geometric,
    Mean,
    fit_dirichlet,
)
from zoo.ci_llm.data.datamodule import UNLIMITED
from zoo.ci_llm.data.text_files import Example, TextFormat
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import PROMPT, TextRows, TokenTable, join_rows, tokenise
from zoo.ci_llm.losses.likelihood import IGNORED, shifted_labels, target_losses, token_losses
from zoo.ci_llm.losses.metrics import token_scores
from zoo.ci_llm.losses.objective import label_targets
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.tensors import sample_uniforms


def token_rules(
    count: int, alpha: Sequence[float] | None = None, aggregator: Aggregator | None = None
) -> dict[str, Aggregator]:
    """The rules that combine the predictions of agents token by token, by name, `mean` first.

    Args:
        count: of agents.
        alpha: fitted weights in proportion, see `fit_weights`; without any there is no `fitted`.
        aggregator: of the run; a Dirichlet of its own alpha takes the place of that of alpha 1.
    """
    if count == 1:
        return {"mean": Mean()}
    dirichlet = aggregator if isinstance(aggregator, Dirichlet) else Dirichlet()
    rules: dict[str, Aggregator] = {"mean": Mean(), "geometric": Geometric(), "dirichlet": dirichlet}
    if alpha is not None:
        rules["fitted"] = FittedMixture(alpha)
    rules["bma"] = BayesianAverage(alpha=alpha)
    return rules


def fitting_examples(tokens: TokenTable, crowd: Crowd, new_tokens: int = 1) -> list[int]:
    """Indices of the examples whose prompt leaves so many tokens of the backbone's context."""
    context = crowd.backbone.context_tokens or UNLIMITED
    return [int(number) for number, prompt in enumerate(tokens.items[:, PROMPT]) if prompt + new_tokens <= context]


def make_batch(tokens: TokenTable, indices: Sequence[int], crowd: Crowd, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """A batch of examples, prompt and answer, padded on the right; cut at the end of the backbone's context."""
    rows = TextRows(tokens, np.asarray(indices), crowd.backbone.context_tokens or UNLIMITED)
    batch = join_rows([rows[index] for index in range(len(rows))], tokenizer.pad_id)
    return {name: value.to(crowd.device) for name, value in batch.items()}


@torch.no_grad()
def score(
    crowd: Crowd,
    batch: Mapping[str, Tensor],
    rules: Mapping[str, Aggregator],
    seeds: Sequence[int],
) -> dict[str, dict[str, Tensor]]:
    """Score the labelled tokens of a batch: `zoo.ci_llm.losses.metrics.token_scores` by rule, on the CPU.

    Args:
        batch: `input_ids`, `attention_mask` and `labels` (B, T).
        rules: by name; one that learns along a text reads its prompt too, as in generation.
        seeds: one per text, of the weights that a rule samples.
    """
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    logits = crowd(ids, mask)
    targets = shifted_labels(labels)
    selected = targets != IGNORED
    log_probs = logits[:, selected].float().log_softmax(-1)
    texts = torch.where(mask.bool(), ids, IGNORED)
    token_log_probs, has_next = -token_losses(logits, texts), shifted_labels(texts) != IGNORED
    uniforms = sample_uniforms(seeds, crowd.count)
    tokens = {}
    for name, rule in rules.items():
        log_weights = rule.start(crowd.count, len(ids), uniforms).to(ids.device)
        if rule.learns:
            path = rule.weights_along_text(log_weights, token_log_probs, has_next)[:-1].transpose(0, 1)  # (B, T, K)
        else:
            path = log_weights[:, None].expand(-1, ids.shape[1], -1)
        scores = token_scores(log_probs, rule.combine(log_probs, path[selected]), targets[selected])
        tokens[name] = {key: values.cpu() for key, values in scores.items()}
    return tokens


def fit_weights(
    crowd: Crowd,
    tokenizer: Tokenizer,
    text_format: TextFormat,
    examples: Sequence[Example],
    alpha: float = 1.0,
    batch_size: int = 16,
) -> tuple[list[float], list[float]]:
    """Fit the agents' weights to examples outside of training and test; `alpha` is the prior's.

    Returns:
        The posterior's alpha_k, see `fit_dirichlet`, and each agent's NLL, in nats per token.

    Raises:
        ValueError: when no prompt leaves a token for an answer, or alpha is not above 0.
    """
    tokens = tokenise(examples, tokenizer, text_format)
    parts = []
    indices = fitting_examples(tokens, crowd)
    for first in range(0, len(indices), batch_size):
        batch = make_batch(tokens, indices[first : first + batch_size], crowd, tokenizer)
        positions, targets = label_targets(batch)
        with torch.no_grad():
            logits = crowd.outputs(batch["input_ids"], batch["attention_mask"], logits_at=positions).logits
        parts.append(-target_losses(logits, targets).cpu())
    if not parts:
        raise ValueError(f"no prompt of {len(examples)} leaves a token for an answer in the backbone's context")
    log_probs = torch.cat(parts, 1)
    return fit_dirichlet(log_probs, alpha).tolist(), (-log_probs.double().mean(1)).tolist()
