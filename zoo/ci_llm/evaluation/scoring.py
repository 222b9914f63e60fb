"""How likely a crowd finds right answers: scores of every answer token, agent by agent and rule by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.ci_llm.aggregation.aggregator import (
    Aggregator,
    BayesianAverage,
    Dirichlet,
    Fitted,
    Geometric,
    Mean,
    fit_dirichlet,
)
from zoo.ci_llm.data.text_data import Example, Template
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import PROMPT, TextRows, Tokens, join_rows, tokenise
from zoo.ci_llm.losses.diversity import Strategy, representations
from zoo.ci_llm.losses.likelihood import IGNORED, learned, target_losses, token_losses
from zoo.ci_llm.losses.metrics import CrowdScores, token_scores
from zoo.ci_llm.losses.objective import targets
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.tensors import sample_uniforms
from zoo.training.resume import item_seed

CLOUDS: tuple[Strategy, ...] = ("last_token", "answer_mean")  # whose distance is measured
UNBOUNDED = 2**30  # context of a backbone that knows none


@dataclass(frozen=True)
class Scores:
    """Scores of the answer tokens of some texts.

    Attributes:
        tokens: what `zoo.ci_llm.losses.metrics.token_scores` tells of each rule, by the rule's name.
        texts: (N,) int64, the row of the batch that each token belongs to.
        clouds: representations (K, B, D) by `<strategy>/<layer>`.
    """

    tokens: dict[str, dict[str, Tensor]]
    texts: Tensor
    clouds: dict[str, Tensor]


def rules(count: int, alpha: Sequence[float] | None = None) -> dict[str, Aggregator]:
    """The rules that join the predictions of agents token by token, by name, `mean` first.

    Args:
        count: agents; one alone has nothing to join.
        alpha: fitted weights in proportion, see `fit_weights`; without any there is no `fitted`.
    """
    if count == 1:
        return {"mean": Mean()}
    found: dict[str, Aggregator] = {"mean": Mean(), "geometric": Geometric(), "dirichlet": Dirichlet()}
    if alpha is not None:
        found["fitted"] = Fitted(alpha)
    found["bma"] = BayesianAverage(alpha=alpha)
    return found


def usable(tokens: Tokens, crowd: Crowd, new_tokens: int = 1) -> list[int]:
    """Numbers of the examples whose prompt leaves room for so many tokens in the backbone's context."""
    context = crowd.backbone.context_tokens or UNBOUNDED
    return [int(number) for number, prompt in enumerate(tokens.items[:, PROMPT]) if prompt + new_tokens <= context]


def gather(tokens: Tokens, numbers: Sequence[int], crowd: Crowd, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """A batch of examples, prompt and answer, padded on the right; cut where the backbone's context ends."""
    rows = TextRows(tokens, [[number] for number in numbers], crowd.backbone.context_tokens or UNBOUNDED)
    batch = join_rows([rows[index] for index in range(len(rows))], tokenizer.pad_id)
    return {name: value.to(crowd.device) for name, value in batch.items()}


@torch.no_grad()
def score(
    crowd: Crowd,
    batch: Mapping[str, Tensor],
    aggregators: Mapping[str, Aggregator],
    seeds: Sequence[int],
    layers: Sequence[int] = (-1,),
) -> Scores:
    """Score the labelled tokens of a batch; the scores are on the CPU.

    Args:
        batch: `input_ids`, `attention_mask` and `labels` (B, T).
        aggregators: rules by name; one that learns along a text also reads its prompt, as when it writes.
        seeds: one per text, of the weights that a rule draws.
        layers: of the hidden states that are kept as clouds; -1 after the closing norm.
    """
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    if len(seeds) != len(ids):
        raise ValueError(f"{len(seeds)} seeds for {len(ids)} texts: give one per text")
    output = crowd.outputs(ids, mask, hidden=True, layer=layers[0])
    goals = learned(labels)
    chosen = goals != IGNORED
    log_probs = output.logits[:, chosen].float().log_softmax(-1)
    follows = torch.where(mask.bool(), ids, IGNORED)
    token_log_probs = -token_losses(output.logits, follows)
    scored = learned(follows) != IGNORED
    uniforms = sample_uniforms(seeds, crowd.count)
    tokens = {}
    for name, rule in aggregators.items():
        weights = rule.start(crowd.count, len(ids), uniforms).to(ids.device)
        if rule.learns:
            before = rule.along(weights, token_log_probs, scored)[:-1].transpose(0, 1)[chosen]
        else:
            before = weights[:, None].expand(-1, ids.shape[1], -1)[chosen]
        found = token_scores(log_probs, rule.combine(log_probs, before), goals[chosen])
        tokens[name] = {key: values.cpu() for key, values in found.items()}
    clouds = {}
    for layer in layers:
        hidden = output.hidden if layer == layers[0] else crowd.outputs(ids, mask, hidden=True, layer=layer).hidden
        assert hidden is not None
        for strategy in CLOUDS:
            clouds[f"{strategy}/{layer}"] = representations(hidden, mask, labels, strategy).float().cpu()
    return Scores(tokens, chosen.nonzero()[:, 0].cpu(), clouds)


def score_all(
    crowd: Crowd,
    tokenizer: Tokenizer,
    template: Template,
    examples: Sequence[Example],
    aggregators: Mapping[str, Aggregator],
    seed: int = 0,
    batch_size: int = 16,
) -> dict[str, CrowdScores]:
    """Score the right answers of examples, by rule; those whose prompt leaves no room for an answer are left out."""
    tokens = tokenise(examples, tokenizer, template)
    kept = {name: CrowdScores() for name in aggregators}
    numbers = usable(tokens, crowd)
    for first in range(0, len(numbers), batch_size):
        together = numbers[first : first + batch_size]
        seeds = [item_seed(seed, 0, number) for number in together]
        found = score(crowd, gather(tokens, together, crowd, tokenizer), aggregators, seeds)
        texts = torch.tensor(together)[found.texts]
        for name, each in kept.items():
            each.add(found.tokens[name], texts)
    return kept


def fit_weights(
    crowd: Crowd,
    tokenizer: Tokenizer,
    template: Template,
    examples: Sequence[Example],
    alpha: float = 1.0,
    batch_size: int = 16,
) -> tuple[list[float], list[float]]:
    """Fit the agents' weights to examples that neither training nor the test holds; `alpha` is the prior's.

    Returns:
        The posterior's alpha_k, see `fit_dirichlet`, and each agent's NLL, in nats per token.

    Raises:
        ValueError: when no prompt leaves room for an answer, or alpha is not above 0.
    """
    tokens = tokenise(examples, tokenizer, template)
    parts = []
    numbers = usable(tokens, crowd)
    for first in range(0, len(numbers), batch_size):
        batch = gather(tokens, numbers[first : first + batch_size], crowd, tokenizer)
        positions, wanted = targets(batch)
        with torch.no_grad():
            logits = crowd.outputs(batch["input_ids"], batch["attention_mask"], logits_at=positions).logits
        parts.append(-target_losses(logits, wanted).cpu())
    if not parts:
        raise ValueError(f"no prompt of {len(examples)} leaves room for an answer in the backbone's context")
    log_probs = torch.cat(parts, 1)
    return fit_dirichlet(log_probs, alpha).tolist(), (-log_probs.double().mean(1)).tolist()
