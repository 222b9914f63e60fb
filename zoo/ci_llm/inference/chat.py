"""Chats as an OpenAI-compatible endpoint puts them: who answers, how tokens are chosen, and the text while it grows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.aggregation.aggregator import Aggregator
from zoo.ci_llm.data.prompts import chat_text, context_ids
from zoo.ci_llm.data.text_data import Template
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import left_padded
from zoo.ci_llm.inference.generate import before, cut, ends_of, generate
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.runs.interactive import CHAT_GONE, CHAT_STREAM

CROWD, BASE = "crowd", "base"
UNFINISHED = "\ufffd"  # what a decoder makes of the first bytes of a letter


def voices(count: int) -> tuple[str, ...]:
    """Who can answer: all agents together, each of them, the backbone."""
    return (CROWD, *(f"agent-{number}" for number in range(count)), BASE)


@dataclass(frozen=True)
class Ask:
    """A request that was checked.

    Attributes:
        ids: numbers of the prompt's tokens.
        voice: see `voices`.
        folder: where the growing text is written, and where a file tells that nobody reads it any more.
    """

    ids: list[int]
    voice: str
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    seed: int
    folder: Path

    @property
    def group(self) -> tuple[Any, ...]:
        """Requests of one group are computed together."""
        return self.voice, self.max_tokens, self.temperature, self.top_p


def read_ask(
    said: str, folder: Path, crowd: Crowd, tokenizer: Tokenizer, template: Template, most: int, known: Sequence[str]
) -> Ask:
    """Check a request: JSON with `messages`, maybe `model`, `max_tokens`, `temperature`, `top_p`, `stop`, `seed`.

    Raises:
        ValueError: when there is no such voice, or the chat does not fit into the backbone's context.
    """
    given: dict[str, Any] = json.loads(said)
    voice = given.get("model", known[0])
    if voice not in known:
        raise ValueError(f"there is no model {str(voice)[:60]!r}; there are {', '.join(known)}")
    ids = prompt_ids(tokenizer, given["messages"], template)
    context = crowd.backbone.context_tokens
    room = most if context is None else min(most, context - len(ids))
    if room < 1:
        raise ValueError(f"a chat of {len(ids)} tokens leaves no room in the backbone's context of {context}")
    return Ask(
        ids, voice, min(int(given.get("max_tokens") or most), room), float(given.get("temperature") or 0.0),
        float(given.get("top_p") or 1.0), tuple(given.get("stop") or ()), int(given.get("seed") or 0), folder,
    )  # fmt: skip


def prompt_ids(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], template: Template) -> list[int]:
    """Numbers of a chat by the tokenizer's chat template; without one, questions and answers by the run's template."""
    if getattr(tokenizer.backend, "chat_template", None):
        return context_ids(tokenizer, chat_text(tokenizer, messages), chat=True)
    text = ""
    for message in messages:
        if message["role"] == "assistant":
            text += template.answer_text(message["content"])
        else:
            own = message["content"] if message["role"] == "system" else template.prompt_text(message["content"])
            text += f"\n\n{own}" if text else own
    return context_ids(tokenizer, text)


def shown(text: str, stop: Sequence[str], ended: bool) -> str:
    """What of a growing text cannot change any more: no unfinished letter, no beginning of a stop string."""
    found = cut(text, stop)
    if ended or len(found) < len(text):
        return found
    found = found.rstrip(UNFINISHED)
    held = max((size for each in stop for size in range(1, len(each)) if found.endswith(each[:size])), default=0)
    return found[: len(found) - held]


@dataclass
class Growing:
    """The text of one request while it is written."""

    ask: Ask
    tokenizer: Tokenizer
    ends: Sequence[int]
    told: str = ""
    over: bool = field(default=False)

    def take(self, tokens: list[int]) -> bool:
        """Tell what is new in so many tokens; whether the text ends here, or nobody reads it any more."""
        if self.over:
            return True
        whole = before(tokens, self.ends)
        text = self.tokenizer.decode(whole)
        self.over = len(whole) < len(tokens) or cut(text, self.ask.stop) != text
        self._tell(shown(text, self.ask.stop, self.over))
        return self.over or (self.ask.folder / CHAT_GONE).exists()

    def finish(self, tokens: list[int]) -> dict[str, Any]:
        """The answer as the endpoint is given it."""
        whole = before(tokens, self.ends)
        text = cut(self.tokenizer.decode(whole), self.ask.stop)
        stopped = len(whole) < len(tokens) or self.over
        self._tell(text)
        counts = {"prompt_tokens": len(self.ask.ids), "completion_tokens": min(len(whole) + 1, len(tokens))}
        return {"text": text, "finish_reason": "stop" if stopped else "length", **counts}

    def _tell(self, text: str) -> None:
        if text.startswith(self.told) and len(text) > len(self.told):
            with (self.ask.folder / CHAT_STREAM).open("a", encoding="utf-8") as file:
                file.write(json.dumps(text[len(self.told) :]) + "\n")
            self.told = text


def converse(crowd: Crowd, tokenizer: Tokenizer, rule: Aggregator, asks: Sequence[Ask]) -> list[dict[str, Any]]:
    """Answer requests of one group together.

    Each answer is that of the request alone, up to the rounding of floats.

    Returns:
        For each `text`, `finish_reason` ("stop" or "length"), `prompt_tokens` and `completion_tokens`.
    """
    first, ends = asks[0], ends_of(crowd, tokenizer)
    growing = [Growing(ask, tokenizer, ends) for ask in asks]

    def ended(new: Tensor) -> Tensor:
        return torch.tensor([each.take(row) for each, row in zip(growing, new.tolist(), strict=True)])

    ids, mask = (each.to(crowd.device) for each in left_padded([ask.ids for ask in asks], tokenizer.pad_id))
    sampling, seeds = Sampling(first.temperature, top_p=first.top_p), [ask.seed for ask in asks]
    with _answering(crowd, first.voice):
        found = generate(
            crowd,
            ids,
            mask,
            rule,
            first.max_tokens,
            ends,
            sampling,
            tokenizer.pad_id,
            seeds,
            ended,
        )
    return [each.finish(row) for each, row in zip(growing, found[:, ids.shape[1] :].tolist(), strict=True)]


def together(asks: Sequence[Ask], answer: Callable[[Sequence[Ask]], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Answer requests group by group."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, ask in enumerate(asks):
        groups.setdefault(ask.group, []).append(number)
    found: dict[int, dict[str, Any]] = {}
    for numbers in groups.values():
        found |= dict(zip(numbers, answer([asks[number] for number in numbers]), strict=True))
    return [found[number] for number in range(len(asks))]


def _answering(crowd: Crowd, voice: str) -> AbstractContextManager[None]:
    if voice == BASE:
        return crowd.without_agents()
    return nullcontext() if voice == CROWD else crowd.only(int(voice.removeprefix("agent-")))
