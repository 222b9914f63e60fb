"""Text generation by a crowd: one cache of K * B rows, and at every step one token chosen from the joint prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.ci_llm.aggregation import Aggregator
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import pad_left
from zoo.ci_llm.losses.metrics import gather_log_probs
from zoo.ci_llm.nets.agents import SEEDS
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.common.checks import check_at_least
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms

StopCriterion = Callable[[Tensor], Tensor]  # of new tokens (..., L): which texts (...) end


@torch.no_grad()
def generate(
    crowd: Crowd,
    input_ids: Tensor,
    attention_mask: Tensor,
    aggregator: Aggregator,
    max_new_tokens: int,
    eos: Sequence[int] = (),
    sampling: Sampling | None = None,
    pad: int = 0,
    seeds: Sequence[int] | None = None,
    stop: StopCriterion | None = None,
) -> Tensor:
    """Continue prompts (B, T), padded on the left; a row depends on its prompt and seed, not on other rows.

    Args:
        aggregator: combines the agents' predictions; if it is not `joint`, every agent generates a text.
        eos: ids that end a text; the text keeps its EOS, `pad` follows.
        seeds: one per row, 0 to 2**64 - 1; from the global generator by default.

    Returns:
        Prompts and continuations (B, T + new), int64; (K, B, T + new) where each agent generates a text.
    """
    check_prompts(crowd, input_ids, attention_mask, max_new_tokens)
    sampling, count, joint = sampling or Sampling(), crowd.count, aggregator.joint
    start, choices = sample_generation_uniforms(seeds, count, len(input_ids), max_new_tokens, joint)
    learns = aggregator.learns and joint
    log_weights = aggregator.start(count, len(input_ids), start).to(input_ids.device)
    texts, mask = (x if joint else x.expand(count, -1, -1) for x in (input_ids, attention_mask))
    scorer = PrefixScorer(crowd, mask)
    with evaluation_mode(crowd):
        log_probs = scorer(texts, 0 if learns else 1)
        if learns:
            prompt_log_probs = gather_log_probs(log_probs[:, :, :-1], input_ids[:, 1:])
            log_weights = aggregator.weights_along_text(log_weights, prompt_log_probs, attention_mask[:, :-1])[-1]
        finished = torch.zeros(texts.shape[:-1], dtype=torch.bool, device=texts.device)
        for step in range(max_new_tokens):
            last = log_probs[:, :, -1]
            prediction = aggregator.combine(last, log_weights) if joint else last.flatten(0, 1)
            tokens = sampling.choose(prediction, choices[step])
            tokens = tokens.reshape(finished.shape).masked_fill(finished, pad)
            texts = torch.cat([texts, tokens[..., None]], dim=-1)
            finished = finished | torch.isin(tokens, torch.tensor(list(eos), device=tokens.device))
            if stop is not None:
                finished = finished | stop(texts[..., input_ids.shape[1] :]).to(finished.device)
            if step + 1 == max_new_tokens or finished.all():
                break
            if learns:
                log_weights = aggregator.update(log_weights, gather_log_probs(last, tokens))
            log_probs = scorer(tokens[..., None], 1)
    return texts


class PrefixScorer:
    """Log-probabilities of the next tokens, with a cache of the keys and values of all tokens so far.

    Args:
        attention_mask: of the prompts, (B, T), or (K, B, T) with texts for each agent.
    """

    def __init__(self, crowd: Crowd, attention_mask: Tensor) -> None:
        from transformers import DynamicCache

        self.crowd = crowd
        self.cache = DynamicCache(config=crowd.backbone.model.config)
        self.mask = attention_mask
        self.is_padded = not bool(attention_mask.all())

    @torch.inference_mode()
    def __call__(self, tokens: Tensor, keep: int) -> Tensor:
        """Append tokens (..., L), first the prompts; return log-probabilities (K, B, L, V), or of the last `keep`."""
        new = self.cache.get_seq_length() + tokens.shape[-1] - self.mask.shape[-1]
        self.mask = F.pad(self.mask, (0, new), value=1)
        output = self.crowd.outputs(tokens, self.mask, cache=self.cache, logits_to_keep=keep, is_padded=self.is_padded)
        return output.logits.float().log_softmax(-1)


@contextmanager
def evaluation_mode(crowd: Crowd) -> Iterator[None]:
    """Turn dropout and DropConnect off within."""
    training = crowd.agents.training
    crowd.agents.eval()
    try:
        yield
    finally:
        crowd.agents.train(training)


def sample_generation_uniforms(
    seeds: Sequence[int] | None, count: int, rows: int, steps: int, joint: bool = True
) -> tuple[Tensor, Tensor]:
    """Random numbers for the weights (K, B) and for the choice of each token (steps, texts)."""
    if seeds is None:
        seeds = torch.randint(SEEDS, (rows,), device="cpu").tolist()
    if len(seeds) != rows:
        raise ValueError(f"{len(seeds)} seeds for {rows} prompts: give one per prompt")
    if not joint:
        seeds = (sample_uniforms(seeds, count) * SEEDS).long().flatten().tolist()
    skipped = count * int(SPLITMIX_INCREMENT)  # of each seed's numbers
    choices = sample_uniforms([(seed + skipped) % 2**64 for seed in seeds], steps)
    return sample_uniforms(seeds, count)[:, :rows], choices


def check_prompts(crowd: Crowd, input_ids: Tensor, attention_mask: Tensor, max_new_tokens: int) -> None:
    """Refuse prompts that are empty, padded on the right, or too long."""
    if input_ids.dim() != 2 or input_ids.shape != attention_mask.shape:
        raise ValueError(
            "generation needs input_ids and attention_mask of one shape (B, T), "
            f"found {tuple(input_ids.shape)} and {tuple(attention_mask.shape)}"
        )
    check_at_least(1, max_new_tokens=max_new_tokens)
    if not input_ids.numel() or not attention_mask[:, -1].all():
        raise ValueError("a prompt is empty or padded on the right: pad on the left, so that all rows end together")
    if error := length_error(crowd, int(attention_mask.sum(1).max()), max_new_tokens):
        raise ValueError(error)


def length_error(crowd: Crowd, prompt_tokens: int, max_new_tokens: int) -> str | None:
    """Why a prompt cannot be continued within the backbone's context; None where it can."""
    context = crowd.backbone.context_tokens
    if context is None or prompt_tokens + max_new_tokens <= context:
        return None
    return (
        f"a prompt of {prompt_tokens} tokens and {max_new_tokens} new ones do not fit into the backbone's context of "
        f"{context}: shorten the prompt or lower max_new_tokens"
    )


def eos_ids(crowd: Crowd, tokenizer: Tokenizer) -> list[int]:
    """The ids that end a text: the tokenizer's EOS, and those of a backbone whose generation config has several."""
    ids = crowd.backbone.model.generation_config.eos_token_id
    return list(dict.fromkeys([tokenizer.eos_id, *(ids if isinstance(ids, list) else ())]))


def generate_texts(
    crowd: Crowd,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    aggregator: Aggregator,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seeds: Sequence[int] | None = None,
    stop: Sequence[str] = (),
) -> list[list[str]]:
    """Continue prompts, as token ids, up to EOS or the first of the texts `stop`; see `generate`.

    Returns:
        For each prompt its continuation, without special tokens, or one by each agent.
    """
    ids, mask = (x.to(crowd.device) for x in pad_left(prompts, tokenizer.pad_id))
    ends = eos_ids(crowd, tokenizer)
    criterion = _stop_criterion(tokenizer, stop) if stop else None
    texts = generate(
        crowd, ids, mask, aggregator, max_new_tokens, ends, sampling, tokenizer.pad_id, seeds, criterion
    )  # (B, T + new) or (K, B, T + new)
    new = texts.view(-1, len(ids), texts.shape[-1])[..., ids.shape[1] :].transpose(0, 1)  # (B, K or 1, new)
    return [[cut_at_end(row, tokenizer, ends, stop) for row in rows] for rows in new.tolist()]


def cut_at_end(row: Sequence[int], tokenizer: Tokenizer, ends: Sequence[int], stop: Sequence[str] = ()) -> str:
    """The text of tokens before the first that is in `ends`, up to the first stop string."""
    length = next((index for index, token in enumerate(row) if token in ends), len(row))
    text = tokenizer.decode(row[:length])
    for each in stop:
        text = text.partition(each)[0]
    return text


def _stop_criterion(tokenizer: Tokenizer, stop: Sequence[str]) -> StopCriterion:
    """Search stop strings in the last tokens; each token has a byte or more, and a character at most four."""
    if not all(stop):
        raise ValueError("stop strings are not empty")
    length = 4 * max(map(len, stop)) + 4

    def has_stop_string(new: Tensor) -> Tensor:
        rows = new[..., -length:].reshape(-1, min(length, new.shape[-1])).tolist()
        matches = [any(each in tokenizer.decode(row) for each in stop) for row in rows]
        return torch.tensor(matches).view(new.shape[:-1])

    return has_stop_string
