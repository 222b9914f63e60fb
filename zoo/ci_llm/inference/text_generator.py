"""Inference of a trained crowd: prompts in, texts out."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch

from zoo.ci_llm.aggregation import Aggregator, Mean, Vote
from zoo.ci_llm.answers import flexible_answer
from zoo.ci_llm.data.text_files import TextFormat, read_json_lines, read_text
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import pad_left
from zoo.ci_llm.inference.generate import generate_texts, length_error
from zoo.ci_llm.losses.distances import pairwise_kl
from zoo.ci_llm.losses.metrics import gather_log_probs
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
FIELDS = ("prompt", "question")  # of a line that is an object, besides the field of training


class TextGenerator(Inference):
    """Answers prompts by a crowd, token by token together or by a vote.

    Args:
        crowd: the backbone with its trained agents.
        tokenizer: that of training.
        template: of the model's input, with `{prompt}`.
        prompt_field: of a line of a file of prompts, holds the prompt.
        aggregator: combines the agents; their mean by default. With `Vote` each agent answers alone, and the first text
            with the most frequent answer is taken.
        max_new_tokens: most tokens of an answer, >= 1.
        sampling: how tokens are chosen; the likeliest by default.
        prompt_batch: prompts that are answered together, >= 1.
        answer_seed: of sampled answers; an answer depends on it, its prompt and its index.
    """

    input_suffixes: ClassVar[tuple[str, ...]] = (".jsonl",)
    output_suffix: ClassVar[str] = ".jsonl"

    def __init__(
        self,
        crowd: Crowd,
        tokenizer: Tokenizer,
        template: str = TextFormat.template,
        prompt_field: str = TextFormat.prompt_field,
        aggregator: Aggregator | None = None,
        max_new_tokens: int = 128,
        sampling: Sampling | None = None,
        prompt_batch: int = 8,
        answer_seed: int = 0,
    ) -> None:
        check_at_least(1, max_new_tokens=max_new_tokens, prompt_batch=prompt_batch)
        self.crowd = crowd
        self.tokenizer = tokenizer
        self.text_format = TextFormat(prompt_field=prompt_field, template=template)
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
        encoded = []
        for number, prompt in enumerate(prompts):
            if not isinstance(prompt, str) or not prompt.strip():
                raise ValueError(f"prompts[{number}] is {prompt!r:.40}, expected a text that is not empty")
            encoded.append(self.encode(prompt))
            if error := length_error(self.crowd, len(encoded[-1]), self.max_new_tokens):
                raise ValueError(f"prompts[{number}]: {error}")
        return [text.strip() for text in self.generate_answers(encoded)]

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt in its template."""
        return [*self.tokenizer.prefix, *self.tokenizer.encode(self.text_format.format_prompt(prompt))]

    def generate_answers(self, prompts: Sequence[Sequence[int]], places: Sequence[int] | None = None) -> list[str]:
        """Answer prompts that are given as token ids, with the white space that was generated; see `generate_texts`."""
        texts = self.generate_texts(prompts, self.aggregator, places)
        if isinstance(self.aggregator, Vote):
            return [self.aggregator.winning_text(agent_texts) for agent_texts in texts]
        return [text for (text,) in texts]

    def generate_texts(
        self, prompts: Sequence[Sequence[int]], aggregator: Aggregator, places: Sequence[int] | None = None
    ) -> list[list[str]]:
        """The answer to each prompt by an aggregator; by `Vote`, that of each agent.

        `places` number the prompts for the seeds of their sampled tokens, from 0 on by default.
        """
        places = range(len(prompts)) if places is None else places
        texts: list[list[str]] = [[]] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        for first in range(0, len(order), self.prompt_batch):
            numbers = order[first : first + self.prompt_batch]
            seeds = [item_seed(self.answer_seed, 0, places[number]) for number in numbers]
            with self._select_agents():
                batch = generate_texts(
                    self.crowd, self.tokenizer, [prompts[number] for number in numbers], aggregator,
                    self.max_new_tokens, self.sampling, seeds,
                )  # fmt: skip
            for number, answers in zip(numbers, batch, strict=True):
                texts[number] = answers
        return texts

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Answer the prompts of a file.

        Args:
            source: JSON lines: each a text, or an object with the field of the run's prompts, `prompt` or `question`.
            target: JSON lines to write: the objects, with the answer as `text` (as `answer` where `text` is the
                prompt), or with `error` for a prompt that does not fit into the backbone's context.

        Returns:
            Counts: `prompts`, `failed`, and `characters` of the answers; `first_error`, where a prompt failed.

        Raises:
            ValueError: when a line is no prompt, or no prompt fits.
        """
        rows, names, prompts, places, errors = [], [], [], [], []
        for line, content in read_json_lines(source):
            row = {"prompt": content} if isinstance(content, str) else content
            if isinstance(row, dict):
                row.pop("error", None)  # of an earlier prediction
            fields = (self.text_format.prompt_field, *FIELDS)
            field = next((name for name in fields if isinstance(row, dict) and name in row), fields[0])
            ids = self.encode(read_text(row, field, f"{source}, line {line}"))
            if error := length_error(self.crowd, len(ids), self.max_new_tokens):
                errors.append(f"line {line}: {error}")
                rows.append({**row, "error": error})
                names.append("")
            else:
                prompts.append(ids)
                places.append(len(rows))
                rows.append(row)
                names.append("answer" if field == "text" else "text")
        if not prompts:
            raise ValueError(f"{source}, {errors[0]}" if errors else f"{source} holds no prompts")
        answers = iter(self.generate_answers(prompts, places))
        rows = [{**row, name: next(answers).strip()} if name else row for row, name in zip(rows, names, strict=True)]
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        content = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
        write_atomic(target, lambda file: file.write(content))
        facts: dict[str, Any] = {"prompts": len(rows), "failed": len(errors)}
        facts["characters"] = sum(len(row[name]) for row, name in zip(rows, names, strict=True) if name)
        return facts | ({"first_error": errors[0]} if errors else {})

    def fields(self) -> tuple[InputField, ...]:
        """A question, the length of the answer, and how tokens are chosen."""
        temperature = 0.0 if self.sampling is None else self.sampling.temperature
        tokens, limit = min(self.max_new_tokens, 64), (None, MAX_CHARACTERS)
        return (
            InputField("question", "Question", "text", bounds=limit),
            InputField("max_new_tokens", "Tokens", "int", tokens, (1, MAX_TOKENS), help="at most"),
            InputField("temperature", "Temperature", "float", temperature, (0, 2), help="0 takes the likeliest token"),
            InputField("seed", "Seed", "int", self.answer_seed, (0, 2**31), help="of sampled tokens"),
        )

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Answer by the crowd and by each agent; report how far they agree and how likely the answers are to them."""
        generator = copy.copy(self)
        generator.max_new_tokens, generator.answer_seed = values["max_new_tokens"], values["seed"]
        generator.sampling = copy.copy(self.sampling or Sampling())
        generator.sampling.temperature = values["temperature"]
        prompt = self.encode(values["question"])
        if error := length_error(self.crowd, len(prompt), generator.max_new_tokens):
            raise ValueError(error)
        agents = self._agent_names()
        progress(0.0, "generating")
        (joint,) = generator.generate_answers([prompt])
        texts = {"Crowd" if len(agents) > 1 else "Answer": joint}
        if len(agents) > 1:
            progress(0.4, "generating by each agent")
            (agent_texts,) = generator.generate_texts([prompt], Vote())
            texts |= dict(zip(agents, agent_texts, strict=True))
        progress(0.8, "comparing")
        outputs = [Output("text", title, data=text.strip(), group="answers") for title, text in texts.items()]
        agreement = [self._agreement_table(prompt, texts)] if len(agents) > 1 else []
        return [*outputs, *agreement, self._likelihood_table(prompt, texts)]

    def _agent_names(self) -> list[str]:
        with self._select_agents():
            return [f"Agent {number + 1}" for number in self.crowd.all_agents()]

    @torch.no_grad()
    def _likelihood_table(self, prompt: list[int], texts: Mapping[str, str]) -> Output:
        """Mean log-likelihood of a token of each text, by the crowd's mean and each agent, in nats."""
        rows: list[list[Any]] = []
        context = self.crowd.backbone.context_tokens
        room = None if context is None else context - len(prompt)  # encoded again, a text may have more tokens
        for title, text in texts.items():
            tokens = self.tokenizer.encode(text)[:room]
            if not tokens:
                continue
            ids = torch.tensor([[*prompt, *tokens]], device=self.crowd.device)
            with self._select_agents():
                logits = self.crowd.outputs(ids, torch.ones_like(ids), logits_to_keep=len(tokens) + 1).logits
            scores = gather_log_probs(logits[:, 0, :-1].float().log_softmax(-1), ids[0, -len(tokens) :])  # (K, tokens)
            mean = [scores.logsumexp(0) - math.log(len(scores))] if len(scores) > 1 else []
            rows.append([title, *(round(float(each.mean()), 3) for each in (*mean, *scores))])
        agents = self._agent_names()
        columns = ["Answer of", *(["the mean", *agents] if len(agents) > 1 else ["the model"])]
        return Output("table", "Likelihood of each answer, nats a token", data={"columns": columns, "rows": rows})

    def _agreement_table(self, prompt: list[int], texts: Mapping[str, str]) -> Output:
        """The number in each answer, how many agents agree with it, and the divergence of their first tokens."""
        answers = [flexible_answer(text) for text in texts.values()]
        agents = answers[1:]
        rows = [
            [title, *(("", "") if answer is None else (str(answer), f"{agents.count(answer)} of {len(agents)}"))]
            for title, answer in zip(texts, answers, strict=True)
        ]
        rows.append(["Divergence of the first token (KL)", f"{self.divergence([prompt]):.4g} nats", ""])
        columns = ["Answer of", "last number in the answer", "agents that give it"]
        return Output("table", "Agreement", data={"columns": columns, "rows": rows})

    def _select_agents(self) -> AbstractContextManager[None]:
        """Within it the crowd predicts as for answers."""
        return nullcontext()

    @torch.no_grad()
    def divergence(self, prompts: Sequence[Sequence[int]]) -> float:
        """Mean Kullback-Leibler divergence of two agents' next tokens after prompts, in nats; 0 for one agent."""
        ids, mask = (x.to(self.crowd.device) for x in pad_left(prompts, self.tokenizer.pad_id))
        log_probs = self.crowd.outputs(ids, mask, logits_to_keep=1).logits[:, :, -1].float().log_softmax(-1)
        return float(pairwise_kl(log_probs).mean()) if len(log_probs) > 1 else 0.0

    @property
    def usage(self) -> str:
        """Python lines that ask a question."""
        return CALL_USAGE.format('["How much is 2 + 3?"]')

    def dry_run(self) -> str:
        """Answer a generated prompt and compare the agents on it."""
        prompt = "2 + 2"
        (text,) = self([prompt])
        kl = self.divergence([self.encode(prompt)])
        return f"1 text of {len(text)} characters by {self.crowd.count} agents, whose KL is {kl:.3g}"

    def write_example(self, stem: Path) -> Path:
        """Write a file of two prompts."""
        path = stem.with_name(f"{stem.name}.jsonl")
        text = '{"prompt": "How much is 2 + 3?"}\n{"prompt": "How much is 7 - 4?"}\n'
        write_atomic(path, lambda file: file.write(text.encode()))
        return path


class LanguageModel(TextGenerator):
    """Answers prompts by a language model without agents.

    Args:
        backbone: the language model.
        tokenizer: that of training.
        template: of the model's input, with `{prompt}`.
        prompt_field: of a line of a file of prompts, holds the prompt.
        max_new_tokens: most tokens of an answer, >= 1.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer,
        template: str = TextFormat.template,
        prompt_field: str = TextFormat.prompt_field,
        max_new_tokens: int = 128,
    ) -> None:
        self.backbone = backbone
        crowd = Crowd(backbone, Agents(1, rank=1, targets="all-linear", top_layers=1))  # never active
        crowd = crowd.to(next(backbone.parameters()).device)
        super().__init__(crowd, tokenizer, template, prompt_field, max_new_tokens=max_new_tokens)

    def _select_agents(self) -> AbstractContextManager[None]:
        """Within it the backbone alone predicts."""
        return self.crowd.without_agents()
