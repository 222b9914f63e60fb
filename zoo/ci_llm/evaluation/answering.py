"""How an evaluated crowd answers: one agent, each agent, all together, many samples; and which answers are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import torch

from zoo.ci_llm.aggregation.aggregator import Aggregator, Mean, Vote
from zoo.ci_llm.aggregation.answers import flexible_answer, same_answer, strict_answer, vote
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.inference.generate import write_answers
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.training.resume import item_seed

EXTRACTORS = {"strict": strict_answer, "flexible": flexible_answer}
BACKBONE, AGENTS, ONE_SAMPLED, ALL_SAMPLED = "backbone", "agents", "self_consistency", "agents_sampled"
VOTE, ORACLE = "vote", "oracle"
Texts = dict[str, list[list[str]]]
Row = dict[str, Any]


@dataclass(frozen=True)
class AnswerSettings:
    """How questions are put.

    Attributes:
        samples: answers that one agent draws for self-consistency; each number is reported, and in all of them the
            first ones are the same. None where it is left out.
        all_samples: answers that every agent draws; 0 leaves it out.
        speaker: the agent that self-consistency asks.
        backbone: also ask the backbone alone.
    """

    max_new_tokens: int
    samples: tuple[int, ...] = ()
    all_samples: int = 0
    temperature: float = 0.7
    speaker: int = 0
    backbone: bool = True
    seed: int = 0


@torch.no_grad()
def ask(
    crowd: Crowd,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    numbers: Sequence[int],
    rules: Mapping[str, Aggregator],
    options: AnswerSettings,
) -> Texts:
    """Let a crowd answer prompts, as numbers of tokens, in every way.

    A text depends on its prompt and its number, not on the prompts beside it.

    Args:
        numbers: of the questions, of which the samples' seeds are made.
        rules: that join the agents token by token, by name; greedy.

    Returns:
        Texts without prompt, by way: of each question one text, or one per agent (`agents`), per sample
        (`self_consistency`), or per sample and agent (`agents_sampled`).
    """

    def write(rule: Aggregator, samples: int = 1, sampling: Sampling | None = None) -> list[list[str]]:
        repeated = [prompt for prompt in prompts for _ in range(samples)]
        seeds = [item_seed(options.seed, sample, number) for number in numbers for sample in range(samples)]
        found = write_answers(crowd, tokenizer, repeated, rule, options.max_new_tokens, sampling, seeds)
        several = (found[first : first + samples] for first in range(0, len(found), samples))
        return [[text for of_agent in zip(*each, strict=True) for text in of_agent] for each in several]

    texts: Texts = {}
    if options.backbone:
        with crowd.without_agents():
            texts[BACKBONE] = write(Mean())
    texts[AGENTS] = write(Vote())
    if crowd.count > 1:
        texts |= {name: write(rule) for name, rule in rules.items()}
    drawn = Sampling(options.temperature)
    if options.samples:
        with crowd.only(options.speaker):
            texts[ONE_SAMPLED] = write(Mean(), max(options.samples), drawn)
    if options.all_samples and crowd.count > 1:
        texts[ALL_SAMPLED] = write(Vote(), options.all_samples, drawn)
    return texts


def grade(texts: Mapping[str, Sequence[str]], gold: Decimal, samples: Sequence[int] = ()) -> Row:
    """Find the answers of a question and compare them with the right one.

    Args:
        texts: of the question, by way, as `ask` gives them; none for a question that failed.

    Returns:
        `parsed` and `correct`, each by extraction (strict, flexible) and system, and `agreement`, the part of the
        agents that gave the winning answer (flexible). Systems: `backbone`, `agent_<k>`, the rules, `vote` and
        `oracle` (any agent right; it gives no answer), `self_consistency_<m>`, `agents_sampled_<m>`.
    """
    row: Row = {"parsed": {}, "correct": {}, "agreement": 0.0}
    for kind, extract in EXTRACTORS.items():
        found = {way: [extract(text) for text in each] for way, each in texts.items()}
        agents = found.pop(AGENTS, [])
        drawn, all_drawn = found.pop(ONE_SAMPLED, None), found.pop(ALL_SAMPLED, None)
        answers = {f"agent_{number}": answer for number, answer in enumerate(agents)}
        answers |= {way: each[0] for way, each in found.items()}
        if len(agents) > 1:
            election = vote(agents)
            answers[VOTE] = election.answer
            row["agreement"] = election.agreement
        if drawn is not None:
            answers |= {f"{ONE_SAMPLED}_{count}": vote(drawn[:count]).answer for count in samples}
        if all_drawn is not None:
            answers[f"{ALL_SAMPLED}_{len(all_drawn)}"] = vote(all_drawn).answer
        row["parsed"][kind] = {system: None if each is None else str(each) for system, each in answers.items()}
        correct = {system: same_answer(each, gold) for system, each in answers.items()}
        if len(agents) > 1:
            correct[ORACLE] = any(correct[f"agent_{number}"] for number in range(len(agents)))
        row["correct"][kind] = correct
    return row


def gold_answer(answer: str, where: str) -> Decimal:
    """The number that an answer ends in, after `####` where there is one; one must be there."""
    found = strict_answer(answer)
    found = flexible_answer(answer) if found is None else found
    if found is None:
        raise ValueError(f"{where}: no number in the right answer {answer[-60:]!r}; exact match needs one")
    return found
