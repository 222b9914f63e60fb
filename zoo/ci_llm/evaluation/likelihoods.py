"""How likely a crowd finds given continuations: by every agent and by every rule that joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.ci_llm.aggregation.aggregator import Aggregator
from zoo.ci_llm.losses.metrics import taken
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.tensors import sample_uniforms

Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Likelihood:
    """Of one continuation of n tokens.

    Attributes:
        agents: log-probability of each token by each agent (K, n), float32, in nats.
        rules: of each token by each rule (n,), by name: the mixture token by token, as the crowd writes.
        greedy: whether each agent's, and each rule's, likeliest tokens are these: "agent_<k>" or the rule's name.
        confidence: probability of each rule's likeliest token (n,), and whether that is the right one (n,).
        whole: log-probability of the mixture of whole sequences, log sum_k w_k prod_t p_k, by rule.
    """

    agents: Tensor
    rules: dict[str, Tensor]
    greedy: dict[str, bool]
    confidence: dict[str, tuple[Tensor, Tensor]]
    whole: dict[str, float]

    def sums(self) -> dict[str, float]:
        """Log-probability of the continuation, by agent and by rule."""
        each = {f"agent_{number}": row for number, row in enumerate(self.agents)}
        return {name: float(row.double().sum()) for name, row in {**each, **self.rules}.items()}


@torch.no_grad()
def likelihoods(
    crowd: Crowd,
    pairs: Sequence[Pair],
    rules: Mapping[str, Aggregator],
    pad: int = 0,
    batch_size: int = 16,
    seed: int = 0,
) -> list[Likelihood]:
    """Score continuations of contexts, both as numbers of tokens.

    What is longer than the backbone's context and one token loses its left end.

    Args:
        rules: joint ones that draw nothing by token, by name; one that learns along the text reads its context, too.
        pad: fills rows.
        seed: of weights that a rule draws for a text.

    Raises:
        ValueError: when a context or a continuation has no tokens, or a continuation is longer than the context.
    """
    limit = crowd.backbone.context_tokens or 2**30
    for number, (context, continuation) in enumerate(pairs):
        if not context or not continuation or len(continuation) > limit:
            raise ValueError(
                f"pair {number}: a context of {len(context)} and a continuation of {len(continuation)} tokens; both "
                f"need one, and the continuation at most {limit}"
            )
    lengths = [len(context) + len(continuation) for context, continuation in pairs]
    order = sorted(range(len(pairs)), key=lambda number: -lengths[number])
    found: dict[int, Likelihood] = {}
    for first in range(0, len(order), batch_size):
        together = order[first : first + batch_size]
        rows = [[*pairs[number][0], *pairs[number][1]][-(limit + 1) :] for number in together]
        sizes = [len(pairs[number][1]) for number in together]
        seeds = [seed + number for number in together]
        found |= dict(zip(together, _scored(crowd, rows, sizes, rules, pad, seeds), strict=True))
    return [found[number] for number in range(len(pairs))]


def _scored(
    crowd: Crowd, rows: list[list[int]], sizes: list[int], rules: Mapping[str, Aggregator], pad: int, seeds: list[int]
) -> list[Likelihood]:
    """One batch of texts whose last `sizes` tokens are scored."""
    longest = max(map(len, rows)) - 1
    ids = torch.tensor([[*row[:-1], *[pad] * (longest + 1 - len(row))] for row in rows], device=crowd.device)
    lengths = torch.tensor([len(row) - 1 for row in rows], device=crowd.device)
    mask = (torch.arange(longest, device=crowd.device) < lengths[:, None]).long()
    # position t foretells token t + 1, so those of a continuation's n tokens are the last n
    places = [range(number * longest + len(row) - 1 - n, number * longest + len(row) - 1)
              for number, (row, n) in enumerate(zip(rows, sizes, strict=True))]  # fmt: skip
    at = torch.tensor([place for each in places for place in each], device=crowd.device)
    wanted = torch.tensor(
        [token for row, n in zip(rows, sizes, strict=True) for token in row[-n:]], device=crowd.device
    )
    learning = any(rule.learns for rule in rules.values())
    if learning:
        whole = crowd.outputs(ids, mask).logits.float().log_softmax(-1)  # (K, B, T, V)
        log_probs = whole.flatten(1, 2)[:, at]
    else:
        log_probs = crowd.outputs(ids, mask, logits_at=at).logits.float().log_softmax(-1)  # (K, M, V)
    agents = taken(log_probs, wanted)  # (K, M)
    by_agent = (log_probs.argmax(-1) == wanted).split(sizes, 1)
    uniforms = sample_uniforms(seeds, crowd.count)
    parts: dict[str, tuple[Tensor, ...]] = {}
    start: dict[str, Tensor] = {}
    for name, rule in rules.items():
        begin = start[name] = rule.start(crowd.count, len(rows), uniforms).to(ids.device)
        if rule.learns:
            follows = F.pad(taken(whole[:, :, :-1], ids[:, 1:]), (0, 1))
            path = rule.along(begin, _with_ends(follows, agents, places, longest), mask)[:-1]
            weights = path.transpose(0, 1).flatten(0, 1)[at]  # (M, K)
        else:
            weights = begin.repeat_interleave(torch.tensor(sizes, device=begin.device), 0)
        joined = rule.combine(log_probs, weights)
        top = joined.max(-1)
        parts[name] = (taken(joined, wanted), top.values.exp(), top.indices == wanted)
    results = []
    for number, of_agents in enumerate(agents.split(sizes, 1)):
        mine = {name: [each.split(sizes)[number].cpu() for each in part] for name, part in parts.items()}
        greedy = {f"agent_{k}": bool(hits.all()) for k, hits in enumerate(by_agent[number])}
        results.append(
            Likelihood(
                of_agents.cpu(),
                {name: part[0] for name, part in mine.items()},
                greedy | {name: bool(part[2].all()) for name, part in mine.items()},
                {name: (part[1], part[2]) for name, part in mine.items()},
                {
                    name: float((start[name][number].double() + of_agents.double().sum(1)).logsumexp(0))
                    for name in rules
                },
            )
        )
    return results


def _with_ends(follows: Tensor, agents: Tensor, places: Sequence[range], longest: int) -> Tensor:
    """What each agent gave every next token (K, B, T), those behind the rows' last positions included."""
    flat = follows.flatten(1)
    at = torch.tensor([place for each in places for place in each], device=flat.device)
    flat[:, at] = agents
    return flat.unflatten(1, (-1, longest))
