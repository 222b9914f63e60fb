"""A crowd as a model of lm-eval (EleutherAI's harness); needs the extra `lm_eval`.

`lm_eval.simple_evaluate(model=CrowdLM.from_run("RUN"), tasks=["gsm8k"])`
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.aggregation import Aggregator, Mean
from zoo.ci_llm.data.datamodule import UNLIMITED
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.evaluation.scoring import token_rules
from zoo.ci_llm.evaluation.trained import load_crowd
from zoo.ci_llm.inference.generate import generate_texts, length_error
from zoo.ci_llm.losses.metrics import gather_log_probs
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.common.environment import local_device
from zoo.common.tensors import sample_uniforms
from zoo.training.resume import item_seed

try:
    from lm_eval.api.model import LM
except ImportError:
    LM = object

log = logging.getLogger(__name__)

NEW_TOKENS = 256  # lm-eval's default of an answer
_LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_FILTER_KEYS = ("top_k", "top_p", "min_p")
_GENERATION_KEYS = ("until", "do_sample", "temperature", *_FILTER_KEYS, *_LENGTH_KEYS)


class CrowdLM(LM):
    """Answers the requests of lm-eval's tasks; contexts and continuations are tokenised as by its `hf` model.

    A request that does not fit into the backbone's context fails: its text is empty, its log-likelihood -inf. The
    number of these is logged.

    Args:
        crowd: in evaluation mode.
        decoding_mode: a rule (`mean`, `geometric`, `bma`, ...), `agent-<k>`, or `backbone`.
        seed: of sampled texts.
        aggregator: of the run, see `token_rules`.

    Source: `TemplateLM` and `HFLM` of lm-eval 0.4.13.
    """

    def __init__(
        self,
        crowd: Crowd,
        tokenizer: Tokenizer,
        decoding_mode: str = "mean",
        batch_size: int = 16,
        seed: int = 0,
        aggregator: Aggregator | None = None,
    ) -> None:
        if LM is object:
            raise ImportError("benchmarks need lm-eval: pip install 'zoo[lm_eval]'")
        super().__init__()
        rules = token_rules(crowd.count, aggregator=aggregator)
        modes = [*rules, *(f"agent-{k}" for k in range(crowd.count)), "backbone"]
        if decoding_mode not in modes:
            raise ValueError(f"decoding_mode is {decoding_mode!r}, expected one of {', '.join(modes)}")
        self.crowd, self.tokenizer, self.decoding_mode = crowd, tokenizer, decoding_mode
        self.batch_size, self.seed = batch_size, seed
        self.rule = rules.get(decoding_mode, Mean())

    @classmethod
    def from_run(cls, run: Path | str, device: str = "cpu", **options: Any) -> CrowdLM:
        """Load a run, checkpoint or export; options are those of the constructor."""
        trained, _, _ = load_crowd(Path(run), local_device(device))
        return cls(trained.crowd.eval(), trained.tokenizer, aggregator=trained.aggregator, **options)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether it is the likeliest; `args` (context, continuation)."""
        return self._score([prompt_pair_ids(self.tokenizer, *request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of texts, each token once, in windows of the backbone's context; `args` (text,)."""
        windows = [list(self._windows(request.args[0])) for request in requests]
        scores = iter(self._score([pair for each in windows for pair in each]))
        return [sum(next(scores)[0] for _ in each) for each in windows]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts after contexts, cut at a stop string; `args` (context, options: `until`, `max_gen_toks`, ...)."""
        texts = [""] * len(requests)
        by_options: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            by_options.setdefault(repr(request.args[1]), []).append(number)
        failed = 0
        for numbers in by_options.values():
            options = requests[numbers[0]].args[1]
            if unknown := sorted(set(options) - set(_GENERATION_KEYS)):
                raise ValueError(f"generation by a crowd has no option {', '.join(unknown)}; remove it from gen_kwargs")
            prompts = {number: context_ids(self.tokenizer, requests[number].args[0]) for number in numbers}
            length = _max_new_tokens(options)
            fitting = [number for number in numbers if not length_error(self.crowd, len(prompts[number]), length)]
            failed += len(numbers) - len(fitting)
            fitting.sort(key=lambda number: len(prompts[number]))
            for first in range(0, len(fitting), self.batch_size):
                batch = fitting[first : first + self.batch_size]
                answers = self._generate([prompts[number] for number in batch], batch, options)
                for number, text in zip(batch, answers, strict=True):
                    texts[number] = text
        _warn_of_failures(failed, len(requests))
        return texts

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as text, by the tokenizer's template."""
        return str(
            self.tokenizer.backend.apply_chat_template(
                chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's cache of requests."""
        return self.tokenizer.fingerprint()

    def _select_agents(self) -> AbstractContextManager[None]:
        if self.decoding_mode == "backbone":
            return self.crowd.without_agents()
        if self.decoding_mode.startswith("agent-"):
            return self.crowd.select_agents(int(self.decoding_mode.removeprefix("agent-")))
        return nullcontext()

    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        limit = (self.crowd.backbone.context_tokens or UNLIMITED) + 1  # the last token is no input
        lengths = [len(context) + len(continuation) for context, continuation in pairs]
        fitting = sorted((n for n in range(len(pairs)) if lengths[n] <= limit), key=lambda n: -lengths[n])
        _warn_of_failures(len(pairs) - len(fitting), len(pairs))
        scores = [(-math.inf, False)] * len(pairs)
        for first in range(0, len(fitting), self.batch_size):
            batch = fitting[first : first + self.batch_size]
            with self._select_agents():
                results = log_likelihoods(
                    self.crowd, [pairs[n] for n in batch], self.rule, self.tokenizer.pad_id,
                    [self.seed + n for n in batch],
                )  # fmt: skip
            for number, result in zip(batch, results, strict=True):
                scores[number] = result
        return scores

    def _windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        """Context and continuation of each window; the context is at least one token."""
        tokens = context_ids(self.tokenizer, text)
        begin = (self.tokenizer.prefix or [self.tokenizer.eos_id])[0]
        size = self.crowd.backbone.context_tokens or len(tokens)
        yield [begin], tokens[:size]
        for start in range(size, len(tokens), size):
            end = min(start + size, len(tokens))
            yield tokens[end - size - 1 : start], tokens[start:end]

    def _generate(self, prompts: Sequence[list[int]], numbers: Sequence[int], options: Mapping[str, Any]) -> list[str]:
        until = options.get("until") or []
        stop = [each for each in ([until] if isinstance(until, str) else until) if each]
        temperature = float(options.get("temperature") or 0.0) if options.get("do_sample", True) else 0.0
        filters = {name: options[name] for name in _FILTER_KEYS if options.get(name) is not None}
        seeds = [item_seed(self.seed, 0, number) for number in numbers]
        with self._select_agents():
            texts = generate_texts(
                self.crowd, self.tokenizer, prompts, self.rule, _max_new_tokens(options),
                Sampling(temperature, **filters), seeds, stop,
            )  # fmt: skip
        return [text for (text,) in texts]


def _max_new_tokens(options: Mapping[str, Any]) -> int:
    return next((int(options[name]) for name in _LENGTH_KEYS if options.get(name)), NEW_TOKENS)


def _warn_of_failures(failed: int, count: int) -> None:
    if failed:
        log.warning("%d of %d requests do not fit into the backbone's context and fail", failed, count)


def context_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a context, without a second BOS where the text begins with one, as a chat does."""
    bos = tokenizer.backend.bos_token
    prefix = [] if bos and text.startswith(bos) else tokenizer.prefix
    return [*prefix, *tokenizer.encode(text)]


def prompt_pair_ids(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Token ids of a context and its continuation, tokenised as one text.

    Spaces at the end of the context belong to the continuation; an empty context is the tokenizer's prefix, or EOS.

    Source: `TemplateLM._encode_pair` of lm-eval 0.4.13.
    """
    spaces = len(context) - len(context.rstrip())
    if spaces:
        continuation, context = context[-spaces:] + continuation, context[:-spaces]
    if not context:
        return tokenizer.prefix[:1] or [tokenizer.eos_id], tokenizer.encode(continuation)
    ids = context_ids(tokenizer, context)
    return ids, context_ids(tokenizer, context + continuation)[len(ids) :]


@torch.no_grad()
def log_likelihoods(
    crowd: Crowd, pairs: Sequence[tuple[list[int], list[int]]], rule: Aggregator, pad_id: int, seeds: Sequence[int]
) -> list[tuple[float, bool]]:
    """Log-probability of each continuation, and whether its tokens are the likeliest, in one batch.

    Args:
        pairs: token ids of context and continuation, at least one of each.
        rule: combines the agents token by token.
        seeds: one per pair, of the weights that a rule samples.
    """
    rows = [[*context, *continuation] for context, continuation in pairs]
    length = max(map(len, rows)) - 1
    sizes = [len(continuation) for _, continuation in pairs]
    padded = torch.tensor([row + [pad_id] * (length + 1 - len(row)) for row in rows], device=crowd.device)
    ids, next_ids = padded[:, :-1], padded[:, 1:]
    ends = torch.tensor([len(row) - 1 for row in rows], device=crowd.device)
    index, firsts = torch.arange(length, device=crowd.device), ends - torch.tensor(sizes, device=crowd.device)
    mask = (index < ends[:, None]).long()
    selected = (index >= firsts[:, None]) & mask.bool()  # position t predicts token t + 1
    log_weights = rule.start(crowd.count, len(rows), sample_uniforms(seeds, crowd.count)).to(crowd.device)
    if rule.learns:
        every = crowd.outputs(ids, mask).logits.float().log_softmax(-1)  # (K, B, T, V)
        path = rule.weights_along_text(log_weights, gather_log_probs(every, next_ids), mask)[:-1].transpose(0, 1)
        log_probs, log_weights = every[:, selected], path[selected]
    else:
        positions = selected.flatten().nonzero()[:, 0]
        log_probs = crowd.outputs(ids, mask, logits_at=positions).logits.float().log_softmax(-1)  # (K, M, V)
        log_weights = log_weights.repeat_interleave(torch.tensor(sizes, device=crowd.device), 0)
    joint: Tensor = rule.combine(log_probs, log_weights)
    scores, hits = gather_log_probs(joint, next_ids[selected]), joint.argmax(-1) == next_ids[selected]
    pieces = zip(scores.double().split(sizes), hits.split(sizes), strict=True)
    return [(float(score.sum()), bool(hit.all())) for score, hit in pieces]
