"""A trained crowd at work: prompts in, texts out."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch

from zoo.ci_llm.aggregation.aggregator import Aggregator, Mean, Vote
from zoo.ci_llm.aggregation.answers import flexible_answer
from zoo.ci_llm.data.text_data import Template, json_rows
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import left_padded
from zoo.ci_llm.inference.generate import write_answers
from zoo.ci_llm.losses.distances import pairwise_divergences
from zoo.ci_llm.losses.metrics import taken
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import Backbone
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least
from zoo.runs.export import CALL_USAGE
from zoo.runs.inference.base import Inference
from zoo.runs.inference.forms import InputField, Output, Progress
from zoo.training.resume import item_seed

MAX_TOKENS, MAX_CHARACTERS = 256, 4000  # of one answer, of a question
FIELDS = ("prompt", "question")  # of a line that is an object


class Writer(Inference):
    """Lets a crowd answer prompts, token by token together or by a vote.

    Args:
        crowd: the backbone with its trained agents.
        tokenizer: that they were trained with.
        template: what turns a prompt into the text that the model continues, with `{prompt}`.
        aggregator: joins the agents; their mean by default. With `Vote` each agent writes alone, and the text of the
            first that gives the most frequent answer is taken.
        max_new_tokens: most tokens of an answer, >= 1.
        sampling: how tokens are chosen; the likeliest by default.
        prompt_batch: prompts that are answered together, >= 1.
        answer_seed: of answers that are drawn; an answer depends on it, its prompt and its place among them.
    """

    input_suffixes: ClassVar[tuple[str, ...]] = (".jsonl",)
    output_suffix: ClassVar[str] = ".jsonl"

    def __init__(
        self,
        crowd: Crowd,
        tokenizer: Tokenizer,
        template: str = Template.prompt,
        aggregator: Aggregator | None = None,
        max_new_tokens: int = 128,
        sampling: Sampling | None = None,
        prompt_batch: int = 8,
        answer_seed: int = 0,
    ) -> None:
        check_at_least(1, max_new_tokens=max_new_tokens, prompt_batch=prompt_batch)
        self.crowd = crowd
        self.tokenizer = tokenizer
        self.template = Template(template)
        self.aggregator = aggregator or Mean()
        self.max_new_tokens = max_new_tokens
        self.sampling = sampling
        self.prompt_batch = prompt_batch
        self.answer_seed = answer_seed

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """Answer prompts; answers come without the prompt and without white space around them.

        Raises:
            ValueError: when a prompt is empty or does not fit into the backbone's context.
        """
        if isinstance(prompts, str):
            raise ValueError("prompts is a list of texts, found one text: put it into a list")
        return self.answers([self._encoded(number, prompt) for number, prompt in enumerate(prompts)])

    def answers(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """Answer prompts that are given as the numbers of their tokens."""
        written = self.written(prompts, self.aggregator)
        if isinstance(self.aggregator, Vote):
            return [self.aggregator.winning_text(texts) for texts in written]
        return [text for (text,) in written]

    def written(self, rows: Sequence[Sequence[int]], aggregator: Aggregator) -> list[list[str]]:
        """The answer to each prompt as the aggregator joins the agents; by `Vote`, that of each agent."""
        texts: list[list[str]] = [[]] * len(rows)
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        for first in range(0, len(order), self.prompt_batch):
            together = order[first : first + self.prompt_batch]
            seeds = [item_seed(self.answer_seed, 0, number) for number in together]
            found = write_answers(
                self.crowd, self.tokenizer, [rows[number] for number in together], aggregator, self.max_new_tokens,
                self.sampling, seeds,
            )  # fmt: skip
            for number, of_prompt in zip(together, found, strict=True):
                texts[number] = [text.strip() for text in of_prompt]
        return texts

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Answer the prompts of a file.

        Args:
            source: JSON lines: each a text, or an object with `prompt` (or `question`).
            target: JSON lines to write: the objects, and `text`, the answer.

        Returns:
            `prompts`, how many they are, and `characters` of the answers.

        Raises:
            ValueError: when a line is no prompt, or one does not fit into the backbone's context.
        """
        rows = [_row(line, content, source) for line, content in json_rows(source)]
        if not rows:
            raise ValueError(f"{source} holds no prompts")
        texts = self([_prompt(row) for row in rows])
        lines = [json.dumps({**row, "text": text}, ensure_ascii=False) for row, text in zip(rows, texts, strict=True)]
        write_atomic(target, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))
        return {"prompts": len(rows), "characters": sum(map(len, texts))}

    def fields(self) -> tuple[InputField, ...]:
        """A question, what was said before, and how tokens are chosen."""
        temperature = 0.0 if self.sampling is None else self.sampling.temperature
        before = "what was said so far; it stands in front of the question"
        return (
            InputField("question", "Question", "text", bounds=(None, MAX_CHARACTERS)),
            InputField(
                "history",
                "Before it",
                "text",
                bounds=(None, MAX_CHARACTERS),
                optional=True,
                help=before,
                advanced=True,
            ),
            InputField(
                "max_new_tokens", "Tokens", "int", min(self.max_new_tokens, 64), (1, MAX_TOKENS), help="at most"
            ),
            InputField("temperature", "Temperature", "float", temperature, (0, 2), help="0 takes the likeliest token"),
            InputField("seed", "Seed", "int", self.answer_seed, (0, 2**31), help="of tokens that are drawn"),
        )

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Let the crowd answer, and each agent beside it; tell how far they agree and how likely they find it."""
        writer = copy.copy(self)
        writer.max_new_tokens, writer.answer_seed = values["max_new_tokens"], values["seed"]
        writer.sampling = copy.copy(self.sampling or Sampling())
        writer.sampling.temperature = values["temperature"]
        prompt = "\n".join(filter(None, (values["history"], values["question"])))
        row = self._encoded(0, prompt)
        several = len(self._speaking()) > 1
        progress(0.0, "the crowd writes" if several else "writing")
        (joined,) = writer.answers([row])
        texts = {"Crowd" if several else "Answer": joined}
        if several:
            progress(0.4, "each agent writes")
            (own,) = writer.written([row], Vote())
            texts |= dict(zip(self._speaking(), own, strict=True))
        progress(0.8, "comparing")
        parts = [Output("text", title, data=text, group="answers") for title, text in texts.items()]
        agreement = [self._agreement(prompt, texts)] if several else []
        return [*parts, *agreement, self._likelihoods(row, texts)]

    def _speaking(self) -> list[str]:
        """Names of the agents that answer."""
        with self._answering():
            return [f"Agent {number + 1}" for number in self.crowd.everyone()]

    @torch.no_grad()
    def _likelihoods(self, row: list[int], texts: Mapping[str, str]) -> Output:
        """How likely the crowd's mean and each agent find a token of each text, in nats."""
        rows: list[list[Any]] = []
        for title, text in texts.items():
            tokens = self.tokenizer.encode(text)
            if not tokens:
                continue
            ids = torch.tensor([[*row, *tokens]], device=self.crowd.device)
            with self._answering():
                logits = self.crowd.outputs(ids, torch.ones_like(ids), logits_to_keep=len(tokens) + 1).logits
            scores = taken(logits[:, 0, :-1].float().log_softmax(-1), ids[0, -len(tokens) :])  # (K, tokens)
            both = [scores.logsumexp(0) - math.log(len(scores)), *scores] if len(scores) > 1 else [*scores]
            rows.append([title, *(round(float(each.mean()), 3) for each in both)])
        agents = self._speaking()
        columns = ["Answer of", *(["the mean", *agents] if len(agents) > 1 else ["the model"])]
        return Output("table", "Likelihood of each answer, nats a token", data={"columns": columns, "rows": rows})

    def _agreement(self, prompt: str, texts: Mapping[str, str]) -> Output:
        """Which number each answers, how many of the agents do, and how far their first tokens are apart."""
        answers = [flexible_answer(text) for text in texts.values()]
        agents = answers[1:]
        rows = [
            [title, *(("", "") if answer is None else (str(answer), f"{agents.count(answer)} of {len(agents)}"))]
            for title, answer in zip(texts, answers, strict=True)
        ]
        rows.append(["Divergence of the first token (KL)", f"{self.divergence([prompt]):.4g} nats", ""])
        columns = ["Answer of", "last number in the answer", "agents that give it"]
        return Output("table", "Agreement", data={"columns": columns, "rows": rows})

    def _answering(self) -> AbstractContextManager[None]:
        """Within it the crowd predicts as when it writes."""
        return nullcontext()

    @torch.no_grad()
    def divergence(self, prompts: Sequence[str]) -> float:
        """How differently two agents continue prompts: mean Kullback-Leibler divergence, in nats; 0 for one agent."""
        rows = [self._encoded(number, prompt) for number, prompt in enumerate(prompts)]
        ids, mask = (each.to(self.crowd.device) for each in left_padded(rows, self.tokenizer.pad_id))
        log_probs = self.crowd.outputs(ids, mask, logits_to_keep=1).logits[:, :, -1].float().log_softmax(-1)
        return float(pairwise_divergences(log_probs, "kl").mean()) if len(log_probs) > 1 else 0.0

    @property
    def usage(self) -> str:
        """Python lines that ask a question."""
        return CALL_USAGE.format('["How much is 2 + 3?"]')

    def dry_run(self) -> str:
        """Answer a made-up prompt and compare the agents on it."""
        prompt = "2 + 2"
        (text,) = self([prompt])
        kl = self.divergence([prompt])
        return f"1 text of {len(text)} characters by {self.crowd.count} agents, whose KL is {kl:.3g}"

    def write_example(self, stem: Path) -> Path:
        """Write a file of two prompts."""
        path = stem.with_name(f"{stem.name}.jsonl")
        lines = [json.dumps({"prompt": prompt}) for prompt in ("How much is 2 + 3?", "How much is 7 - 4?")]
        write_atomic(path, lambda file: file.write("\n".join(lines).encode()))
        return path

    def _encoded(self, number: int, prompt: str) -> list[int]:
        if not prompt.strip():
            raise ValueError(f"prompt {number} is empty")
        return [*self.tokenizer.prefix, *self.tokenizer.encode(self.template.prompt_text(prompt))]


def _row(line: int, content: Any, source: Path) -> dict[str, Any]:
    row = {"prompt": content} if isinstance(content, str) else content
    if not isinstance(row, dict) or not isinstance(_prompt(row), str) or not _prompt(row).strip():
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise ValueError(
            f"{source}, line {line}: expected a text, or an object with a text {' or '.join(FIELDS)}; found {found}"
        )
    return row


def _prompt(row: dict[str, Any]) -> Any:
    return next((row[field] for field in FIELDS if field in row), None)


class Speaker(Writer):
    """Lets a language model without agents answer prompts.

    Args:
        backbone: the language model.
        tokenizer: that it was trained with.
        template: what turns a prompt into the text that the model continues, with `{prompt}`.
        max_new_tokens: most tokens of an answer, >= 1.
        targets: a linear layer of its blocks. One agent that adds nothing sits there, so that it is a crowd of one.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        template: str = Template.prompt,
        max_new_tokens: int = 128,
        targets: Sequence[str] = ("q_proj",),
    ) -> None:
        self.backbone = backbone
        crowd = Crowd(backbone, Agents(1, rank=1, targets=tuple(targets))).to(next(backbone.parameters()).device)
        super().__init__(crowd, tokenizer, template, max_new_tokens=max_new_tokens)

    def written(self, rows: Sequence[Sequence[int]], aggregator: Aggregator) -> list[list[str]]:
        """The backbone's own answer to each prompt."""
        with self._answering():
            return super().written(rows, aggregator)

    def _answering(self) -> AbstractContextManager[None]:
        """Within it the backbone alone predicts."""
        return self.crowd.without_agents()
