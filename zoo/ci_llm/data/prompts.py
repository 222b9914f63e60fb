"""What stands before an answer: a template, examples with answers, a system prompt, a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zoo.ci_llm.data.text_data import Example, Template
from zoo.ci_llm.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Prompting:
    """How a question becomes the text that the model continues.

    Args:
        template: of each question and each answer.
        shots: questions with answers that stand before it.
        system: what stands before all; a message of its own in a chat.
        chat: let the tokenizer's chat template put the text together: examples are turns of user and assistant.
    """

    template: Template = field(default_factory=Template)
    shots: tuple[Example, ...] = ()
    separator: str = "\n\n"
    system: str | None = None
    chat: bool = False

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """The turns of a chat that ends with the question."""
        turns = [{"role": "system", "content": self.system}] if self.system else []
        for shot in self.shots:
            turns.append({"role": "user", "content": self.template.prompt_text(shot.prompt)})
            turns.append({"role": "assistant", "content": self.template.answer_text(shot.answer).strip()})
        return [*turns, {"role": "user", "content": self.template.prompt_text(prompt)}]

    def context(self, tokenizer: Tokenizer, prompt: str) -> str:
        """The text before the answer, with special tokens written out in a chat."""
        if self.chat:
            return chat_text(tokenizer, self.messages(prompt))
        form = self.template
        parts = [form.prompt_text(shot.prompt) + form.answer_text(shot.answer) for shot in self.shots]
        text = self.separator.join([*parts, form.prompt_text(prompt)])
        return f"{self.system}\n\n{text}" if self.system else text

    def answer(self, text: str) -> str:
        """An answer as it follows the context."""
        shown = self.template.answer_text(text)
        return shown.lstrip() if self.chat else shown


def chat_text(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> str:
    """A chat as the text that the model continues as the assistant.

    Raises:
        ValueError: when the tokenizer has no chat template, or its template refuses the messages.
    """
    if not getattr(tokenizer.backend, "chat_template", None):
        raise ValueError(
            f"{type(tokenizer).__name__} has no chat template: leave chat out, or take an instruct model's tokenizer"
        )
    try:
        text = tokenizer.backend.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "jinja2":
            raise
        raise ValueError(f"the chat template of {tokenizer!r} refuses these messages: {error}") from error
    return str(text)


def context_ids(tokenizer: Tokenizer, text: str, chat: bool = False) -> list[int]:
    """Numbers of a context, without another BOS in front of one that is written out, as in a chat."""
    own = tokenizer.backend.bos_token
    plain = chat or bool(own and text.startswith(own))
    return tokenizer.encode(text) if plain else [*tokenizer.prefix, *tokenizer.encode(text)]


def pair_ids(tokenizer: Tokenizer, context: str, continuation: str, chat: bool = False) -> tuple[list[int], list[int]]:
    """Numbers of a context and of what follows it, tokenised as one text.

    Spaces at the end of the context belong to the continuation; an empty context is what begins a text, or EOS.

    Source: `TemplateLM._encode_pair` of lm-eval 0.4.13, whose figures need the same.
    """
    spaces = len(context) - len(context.rstrip())
    if spaces:
        continuation, context = context[-spaces:] + continuation, context[:-spaces]
    if not context:
        return tokenizer.prefix[:1] or [tokenizer.eos_id], tokenizer.encode(continuation)
    before = context_ids(tokenizer, context, chat)
    return before, context_ids(tokenizer, context + continuation, chat)[len(before) :]
