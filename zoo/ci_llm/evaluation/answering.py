"""Answers of an evaluated crowd: by one agent, each agent, all together, or many samples; and which are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import torch

from zoo.ci_llm.aggregation import Aggregator, Mean, Vote
from zoo.ci_llm.answers import flexible_answer, same_answer, strict_answer, vote
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.inference.generate import generate_texts
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.common.checks import check_at_least, check_positive
from zoo.training.resume import item_seed

EXTRACTORS = {"strict": strict_answer, "flexible": flexible_answer}
BACKBONE, AGENTS, SELF_CONSISTENCY = "backbone", "agents", "self_consistency"
VOTE, ORACLE = "vote", "oracle"
Texts = dict[str, list[list[str]]]
Row = dict[str, Any]


@dataclass(frozen=True)
class AnswerSettings:
    """How questions are answered.

    Args:
        max_new_tokens: most tokens of an answer; null for the run's own limit.
        samples: answers of one agent for each self-consistency vote; in all of them the first ones are the same. Null
            for as many as agents.
        temperature: of sampled answers.
        seed: of sampled answers.
    """

    max_new_tokens: int | None = None
    samples: tuple[int, ...] | None = None
    temperature: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, max_new_tokens=1 if self.max_new_tokens is None else self.max_new_tokens)
        check_at_least(1, samples=min(self.samples or (), default=1))
        check_positive(temperature=self.temperature)


@torch.no_grad()
def generate_all_answers(
    crowd: Crowd,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    numbers: Sequence[int],
    rules: Mapping[str, Aggregator],
    settings: AnswerSettings,
    sampled_agent: int = 0,
) -> Texts:
    """Answer prompts, given as token ids, by every system; a text depends on its prompt and its number only.

    Args:
        numbers: of the questions, for the seeds of samples.
        rules: that combine the agents token by token, by name; greedy.
        sampled_agent: the agent of self-consistency.

    Returns:
        Texts without prompt, by system: of each question one text, or one per agent (`agents`) or per sample
        (`self_consistency`).
    """

    def generate(rule: Aggregator, samples: int = 1, sampling: Sampling | None = None) -> list[list[str]]:
        repeated = [prompt for prompt in prompts for _ in range(samples)]
        seeds = [item_seed(settings.seed, sample, number) for number in numbers for sample in range(samples)]
        texts = []
        for first in range(0, len(repeated), len(prompts)):  # no more in memory than without samples
            part = slice(first, first + len(prompts))
            new_tokens = settings.max_new_tokens or 1
            texts += generate_texts(crowd, tokenizer, repeated[part], rule, new_tokens, sampling, seeds[part])
        by_question = (texts[first : first + samples] for first in range(0, len(texts), samples))
        return [[text for by_agent in zip(*each, strict=True) for text in by_agent] for each in by_question]

    with crowd.without_agents():
        texts = {BACKBONE: generate(Mean())}
    texts[AGENTS] = generate(Vote())
    if crowd.count > 1:
        texts |= {name: generate(rule) for name, rule in rules.items()}
    if settings.samples:
        with crowd.select_agents(sampled_agent):
            texts[SELF_CONSISTENCY] = generate(Mean(), max(settings.samples), Sampling(settings.temperature))
    return texts


def grade(texts: Mapping[str, Sequence[str]], gold: Decimal, samples: Sequence[int] = ()) -> Row:
    """Extract the answers to a question and compare them with the right one.

    Args:
        texts: of the question, by system, as `generate_all_answers` returns them; none for a question that failed.

    Returns:
        `parsed` and `correct`, each by extraction (strict, flexible) and system, and `agreement`, the share of the
        agents with the winning answer (flexible). Systems: `backbone`, `agent_<k>`, the rules, `vote` and `oracle` (any
        agent right; it has no answer), `self_consistency_<m>`.
    """
    row: Row = {"parsed": {}, "correct": {}, "agreement": 0.0}
    for kind, extract in EXTRACTORS.items():
        extracted = {system: [extract(text) for text in each] for system, each in texts.items()}
        agents = extracted.pop(AGENTS, [])
        samples_of_one = extracted.pop(SELF_CONSISTENCY, None)
        answers = {f"agent_{number}": answer for number, answer in enumerate(agents)}
        answers |= {system: each[0] for system, each in extracted.items()}
        if len(agents) > 1:
            election = vote(agents)
            answers[VOTE] = election.answer
            row["agreement"] = election.agreement
        if samples_of_one is not None:
            answers |= {f"{SELF_CONSISTENCY}_{count}": vote(samples_of_one[:count]).answer for count in samples}
        row["parsed"][kind] = {system: None if each is None else str(each) for system, each in answers.items()}
        correct = {system: same_answer(each, gold) for system, each in answers.items()}
        if len(agents) > 1:
            correct[ORACLE] = any(correct[f"agent_{number}"] for number in range(len(agents)))
        row["correct"][kind] = correct
    return row


def gold_answer(answer: str, where: str) -> Decimal:
    """The number of a right answer, after `####` where that is present; ValueError without a number."""
    number = strict_answer(answer)
    number = flexible_answer(answer) if number is None else number
    if number is None:
        raise ValueError(f"{where}: no number in the right answer {answer[-60:]!r}; exact match needs one")
    return number
