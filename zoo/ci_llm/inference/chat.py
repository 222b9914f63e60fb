"""Chats as an OpenAI-compatible endpoint puts them: who answers, how tokens are chosen, and the text while it grows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.ci_llm.data.prompts import chat_text, context_ids
from zoo.ci_llm.data.text_data import Template
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.inference.continuous import BACKBONE, Wanted
from zoo.ci_llm.inference.generate import before, cut
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

    def __post_init__(self) -> None:
        path = self.ask.folder / CHAT_STREAM
        if path.is_file():  # the process that began it was lost
            self.told = "".join(map(json.loads, path.read_text(encoding="utf-8").splitlines()))

    @property
    def wanted(self) -> Wanted:
        """What a running batch is asked."""
        ask = self.ask
        special: dict[str, int | None] = {CROWD: None, BASE: BACKBONE}
        agent = special[ask.voice] if ask.voice in special else int(ask.voice.removeprefix("agent-"))
        sampling = Sampling(ask.temperature, top_p=ask.top_p)
        return Wanted(ask.ids, ask.max_tokens, agent, sampling, ask.seed, self.take)

    def take(self, tokens: list[int]) -> bool:
        """Tell what is new in so many tokens; whether the text ends here, or nobody reads it any more."""
        if self.over or not self.ask.folder.is_dir() or (self.ask.folder / CHAT_GONE).exists():
            return True
        whole = before(tokens, self.ends)
        text = self.tokenizer.decode(whole)
        self.over = len(whole) < len(tokens) or cut(text, self.ask.stop) != text
        self._tell(shown(text, self.ask.stop, self.over))
        return self.over

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
