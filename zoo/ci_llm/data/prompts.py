"""Token numbers of prompts and continuations, as lm-eval counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.ci_llm.data.tokenizers import Tokenizer


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
