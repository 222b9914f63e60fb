"""One agent drafts for the crowd: several tokens are proposed by one, and read by all in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.ci_llm.aggregation.aggregator import Aggregator
from zoo.ci_llm.inference.generate import Reader, check_prompts, evaluating, windowed
from zoo.ci_llm.nets.agents import SEEDS
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling, draw
from zoo.common.checks import check_at_least
from zoo.common.tensors import sample_uniforms


class Speculated(NamedTuple):
    """A text, and how it came about.

    Attributes:
        ids: prompt and continuation (1, T + new), int64.
        proposed: tokens that the draft proposed.
        accepted: of them.
        passes: of all agents together.
    """

    ids: Tensor
    proposed: int
    accepted: int
    passes: int


@torch.no_grad()
def speculate(
    crowd: Crowd,
    input_ids: Tensor,
    aggregator: Aggregator,
    max_new_tokens: int,
    eos: Sequence[int] = (),
    sampling: Sampling | None = None,
    draft: int = 0,
    ahead: int = 4,
    seed: int | None = None,
) -> Speculated:
    """Continue one prompt; the text has the distribution of `generate`, and is the same where nothing is drawn.

    A proposed token stays with probability min(1, p / q), p of the crowd and q of the draft, both after temperature and
    filters; the first that does not is drawn anew from (p - q)+.

    Args:
        input_ids: (1, T), int64.
        aggregator: joint; none that draws or learns along the text.
        draft: the agent that proposes.
        ahead: tokens that it proposes at once, >= 1.
        seed: of the draws; from the global generator by default.

    Raises:
        ValueError: when the prompt, the rule or a number cannot be used, or a sliding window is shorter than the text:
            what left it cannot be taken back.

    Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), algorithm 1.
    """
    mask = torch.ones_like(input_ids)
    check_prompts(crowd, input_ids, mask, max_new_tokens)
    check_at_least(1, ahead=ahead)
    if len(input_ids) != 1:
        raise ValueError(f"speculation continues one prompt at a time, found {len(input_ids)}")
    if not aggregator.joint or aggregator.learns or aggregator.stochastic:
        raise ValueError(
            f"{type(aggregator).__name__} cannot check proposals: take a rule of fixed weights, such as Mean"
        )
    if windowed(crowd, input_ids.shape[1] + max_new_tokens):
        raise ValueError(
            "the text is longer than the backbone's sliding window, which cannot be taken back: use generate"
        )
    sampling = sampling or Sampling()
    seed = int(torch.randint(SEEDS, (), device="cpu")) if seed is None else seed
    device, end = input_ids.device, input_ids.shape[1] + max_new_tokens
    numbers = iter(sample_uniforms([seed], crowd.count + 2 * (ahead + 1) * (max_new_tokens + 1))[:, 0].to(device))
    start = torch.stack([next(numbers) for _ in range(crowd.count)])[:, None]
    log_weights = aggregator.start(crowd.count, 1, start.cpu()).to(device)
    everyone, alone = Reader(crowd, mask), Reader(crowd, mask)
    ids, proposed, accepted, passes = input_ids, 0, 0, 0
    unread = {"all": input_ids, "draft": input_ids}
    with evaluating(crowd):
        while ids.shape[1] < end and not (passes and int(ids[0, -1]) in eos):
            count = min(ahead, end - ids.shape[1] - 1)
            drafts: list[Tensor] = []
            guesses: list[Tensor] = []
            with crowd.only(draft):
                text = unread["draft"]
                for _ in range(count):
                    guess = _spread(alone(text, 1)[0, :, -1], sampling)
                    text = _chosen(guess, sampling, next(numbers))[:, None]
                    drafts.append(text)
                    guesses.append(guess)
            new = torch.cat([unread["all"], *drafts], 1)
            log_probs = everyone(new, count + 1)  # (K, 1, count + 1, V)
            passes += 1
            joined = [
                _spread(aggregator.combine(log_probs[:, :, at], log_weights), sampling) for at in range(count + 1)
            ]
            kept = 0
            while kept < count and _stays(joined[kept], guesses[kept], drafts[kept], sampling, next(numbers)):
                kept += 1
                if int(drafts[kept - 1]) in eos:
                    break
            found = drafts[:kept]
            if not (found and int(found[-1]) in eos):
                rest = joined[kept] if kept == count else residual(joined[kept], guesses[kept], sampling)
                found.append(_chosen(rest, sampling, next(numbers))[:, None])
            ids = torch.cat([ids, *found], 1)
            proposed, accepted = proposed + count, accepted + kept
            everyone.forget(count - kept)
            unread["all"] = found[-1]
            # the draft has read all but its last proposal
            read = max(count - 1, 0)
            alone.forget(max(read - kept, 0))
            unread["draft"] = torch.cat([*([] if kept < count or not count else drafts[-1:]), found[-1]], 1)
            if not count:
                break
    return Speculated(ids, proposed, accepted, passes)


def _spread(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities (1, V) that tokens are drawn from."""
    return log_probs if sampling.greedy else sampling.filtered(log_probs)


def _chosen(log_probs: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    return log_probs.argmax(-1) if sampling.greedy else draw(log_probs, uniform[None])


def _stays(crowd: Tensor, draft: Tensor, token: Tensor, sampling: Sampling, uniform: Tensor) -> bool:
    """Whether a proposed token (1, 1) stays."""
    if sampling.greedy:
        return bool(crowd.argmax(-1) == token[0])
    return bool(uniform < (crowd.gather(-1, token) - draft.gather(-1, token)).exp())


def residual(crowd: Tensor, draft: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of (p - q)+, normalised, for where a proposal did not stay; p's where nothing is drawn."""
    if sampling.greedy:
        return crowd
    return (crowd.exp() - draft.exp()).clamp(min=0).log().log_softmax(-1)
