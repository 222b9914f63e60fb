"""A crowd writes: one cache of K * B rows, and at every step one token chosen from the joined prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.ci_llm.aggregation.aggregator import Aggregator
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import left_padded
from zoo.ci_llm.losses.metrics import taken
from zoo.ci_llm.nets.agents import SEEDS
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.common.checks import check_at_least
from zoo.common.tensors import sample_uniforms


@torch.no_grad()
def generate(
    crowd: Crowd,
    input_ids: Tensor,
    attention_mask: Tensor,
    aggregator: Aggregator,
    max_new_tokens: int,
    eos: int | Sequence[int] = (),
    sampling: Sampling | None = None,
    pad: int | None = None,
    seeds: Sequence[int] | None = None,
    ended: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Continue prompts.

    A row's text depends on its prompt and its seed, not on the rows beside it.

    Args:
        input_ids: prompts (B, T), int64, padded on the left.
        attention_mask: (B, T), 1 for real tokens.
        aggregator: joins the agents' predictions; with one that is not `joint` every agent writes a text of its own.
        max_new_tokens: at most so many are added; fewer where all rows end before.
        eos: ids that end a text; the text keeps its EOS.
        sampling: how tokens are chosen; the likeliest by default.
        pad: follows behind an EOS; the first of `eos` by default.
        seeds: one per row, 0 to 2**64 - 1; from the global generator by default.
        ended: tells by the new tokens (..., L) which texts (...) end here, beside those with an EOS.

    Returns:
        Prompts and continuations (B, T + new), int64; (K, B, T + new) where each agent writes its own.

    Raises:
        ValueError: when shapes differ, a prompt is empty or padded on the right, or a text would not fit into the
            backbone's context.
    """
    check_prompts(crowd, input_ids, attention_mask, max_new_tokens)
    sampling = sampling or Sampling()
    ends = torch.tensor([eos] if isinstance(eos, int) else list(eos), dtype=torch.long, device=input_ids.device)
    filler = pad if pad is not None else int(ends[0]) if len(ends) else 0
    count, rows = crowd.count, len(input_ids)
    uniforms = uniform_numbers(seeds, count, rows, max_new_tokens, aggregator.joint).to(input_ids.device)
    start, members, choices = uniforms.tensor_split((count, count + max_new_tokens))

    learned = aggregator.learns and aggregator.joint
    log_weights = aggregator.start(count, rows, start[:, :rows]).to(input_ids.device)
    texts = input_ids if aggregator.joint else input_ids.expand(count, -1, -1)
    mask = attention_mask if aggregator.joint else attention_mask.expand(count, -1, -1)
    read = Reader(crowd, mask)
    with evaluating(crowd):
        log_probs = read(texts, 0 if learned else 1)
        if learned:
            given = taken(log_probs[:, :, :-1], input_ids[:, 1:])
            log_weights = aggregator.along(log_weights, given, attention_mask[:, :-1])[-1]
        done = torch.zeros(texts.shape[:-1], dtype=torch.bool, device=texts.device)
        for number in range(max_new_tokens):
            last = log_probs[:, :, -1]
            joined = aggregator.combine(last, log_weights, members[number]) if aggregator.joint else last.flatten(0, 1)
            chosen = sampling.choose(joined, choices[number]).reshape(done.shape).masked_fill(done, filler)
            texts = torch.cat([texts, chosen[..., None]], dim=-1)
            done = done | torch.isin(chosen, ends)
            if ended is not None:
                done = done | ended(texts[..., input_ids.shape[1] :]).to(done.device)
            if number + 1 == max_new_tokens or done.all():
                break
            if learned:
                log_weights = aggregator.update(log_weights, taken(last, chosen))
            log_probs = read(chosen[..., None], 1)
    return texts


class Reader:
    """Appends tokens to all texts and keeps their keys and values.

    Args:
        attention_mask: of the prompts, (B, T), or (K, B, T) where each agent has texts of its own.
    """

    def __init__(self, crowd: Crowd, attention_mask: Tensor) -> None:
        from transformers import DynamicCache

        self.crowd = crowd
        self.cache = DynamicCache(config=crowd.backbone.model.config)
        self.mask = attention_mask

    def __call__(self, tokens: Tensor, keep: int) -> Tensor:
        """Log-probabilities (K, B, kept, V) behind tokens (..., L); the first call is given the prompts."""
        beyond = self.cache.get_seq_length() + tokens.shape[-1] - self.mask.shape[-1]
        self.mask = F.pad(self.mask, (0, beyond), value=1)
        output = self.crowd.outputs(tokens, self.mask, cache=self.cache, logits_to_keep=keep)
        return output.logits.float().log_softmax(-1)


@contextmanager
def evaluating(crowd: Crowd) -> Iterator[None]:
    """Turn dropout and DropConnect off for a while."""
    training = crowd.agents.training
    crowd.agents.eval()
    try:
        yield
    finally:
        crowd.agents.train(training)


def uniform_numbers(seeds: Sequence[int] | None, count: int, rows: int, steps: int, joint: bool = True) -> Tensor:
    """Random numbers (K + 2 * steps, texts): for the weights, then each step's member, then each step's token."""
    if seeds is None:
        seeds = torch.randint(SEEDS, (rows,), device="cpu").tolist()
    if len(seeds) != rows:
        raise ValueError(f"{len(seeds)} seeds for {rows} prompts: give one per prompt")
    if not joint:
        seeds = (sample_uniforms(seeds, count) * SEEDS).long().flatten().tolist()
    return sample_uniforms(seeds, count + 2 * steps)


def check_prompts(crowd: Crowd, input_ids: Tensor, attention_mask: Tensor, max_new_tokens: int) -> None:
    """Refuse prompts that are empty, padded on the right, or leave too little room in the backbone's context."""
    if input_ids.dim() != 2 or input_ids.shape != attention_mask.shape:
        raise ValueError(
            "generation needs input_ids and attention_mask of one shape (B, T), "
            f"found {tuple(input_ids.shape)} and {tuple(attention_mask.shape)}"
        )
    check_at_least(1, max_new_tokens=max_new_tokens)
    if not input_ids.numel() or not attention_mask[:, -1].all():
        raise ValueError("a prompt is empty or padded on the right: pad on the left, so that all rows end together")
    longest, context = int(attention_mask.sum(1).max()), crowd.backbone.context_tokens
    if context is not None and longest + max_new_tokens > context:
        raise ValueError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones do not fit into the backbone's context of "
            f"{context}: shorten the prompt or lower max_new_tokens"
        )


def ends_of(crowd: Crowd, tokenizer: Tokenizer) -> list[int]:
    """The tokens that end a text: the tokenizer's EOS, and those of a backbone whose generation config has several."""
    also = crowd.backbone.model.generation_config.eos_token_id
    return list(dict.fromkeys([tokenizer.eos_id, *(also if isinstance(also, list) else ())]))


def write_answers(
    crowd: Crowd,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    aggregator: Aggregator,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seeds: Sequence[int] | None = None,
    stop: Sequence[str] = (),
) -> list[list[str]]:
    """The text behind each prompt (numbers of its tokens), up to EOS; one per agent where each writes its own.

    Arguments and errors as those of `generate`.

    Args:
        stop: texts before the first of which an answer ends, wherever they lie among the tokens.
    """
    ids, mask = (each.to(crowd.device) for each in left_padded(prompts, tokenizer.pad_id))
    ends = ends_of(crowd, tokenizer)
    ended = _stopping(tokenizer, stop) if stop else None
    found = generate(crowd, ids, mask, aggregator, max_new_tokens, ends, sampling, tokenizer.pad_id, seeds, ended)
    new = found.view(-1, len(ids), found.shape[-1])[..., ids.shape[1] :].transpose(0, 1)  # (B, K or 1, new)
    return [[cut(tokenizer.decode(before(row, ends)), stop) for row in of_prompt] for of_prompt in new.tolist()]


def before(row: list[int], ends: Sequence[int]) -> list[int]:
    """Tokens up to the first that ends a text."""
    return row[: next((place for place, token in enumerate(row) if token in ends), len(row))]


def cut(text: str, stop: Sequence[str]) -> str:
    """A text up to the first stop string in it."""
    for each in stop:
        text = text.partition(each)[0]
    return text


def _stopping(tokenizer: Tokenizer, stop: Sequence[str]) -> Callable[[Tensor], Tensor]:
    """Which texts hold a stop string: looked for behind the last tokens, since each token has a byte or more."""
    if not all(stop):
        raise ValueError("stop strings are not empty")
    reach = 4 * max(map(len, stop)) + 4

    def ended(new: Tensor) -> Tensor:
        rows = new[..., -reach:].reshape(-1, min(reach, new.shape[-1])).tolist()
        found = [any(each in tokenizer.decode(row) for each in stop) for row in rows]
        return torch.tensor(found).view(new.shape[:-1])

    return ended
