"""A crowd as a model of lm-eval (EleutherAI's harness): its tasks, our agents, one figure.

Needs the extra `lm_eval`. `crowd_model` gives what `lm_eval.simple_evaluate(model=...)` takes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

from zoo.ci_llm.aggregation.aggregator import Aggregator, Mean
from zoo.ci_llm.data.prompts import chat_text, context_ids, pair_ids
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.evaluation.likelihoods import likelihoods
from zoo.ci_llm.evaluation.scoring import rules
from zoo.ci_llm.evaluation.trained import load_crowd
from zoo.ci_llm.inference.generate import cut, write_answers
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.common.environment import local_device
from zoo.training.resume import item_seed

NEW_TOKENS = 256  # lm-eval's default of an answer
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_KNOWN = ("until", "do_sample", "temperature", "top_k", "top_p", "min_p", *_LENGTHS)


class CrowdRequests:
    """Answers lm-eval's three kinds of requests; contexts and continuations are tokenised as its `hf` model does.

    Args:
        crowd: in evaluation mode.
        voice: who answers: a rule (`mean`, `geometric`, `bma`, ...), `agent-<k>`, or `backbone`.
        mixture: how a rule's likelihood of a sequence is formed: of each token, sum_t log sum_k w_k p_k(t), as the
            crowd writes; or of whole sequences, log sum_k w_k prod_t p_k(t).
        seed: of texts that are drawn.

    Source: `TemplateLM` and `HFLM` of lm-eval 0.4.13.
    """

    def __init__(
        self,
        crowd: Crowd,
        tokenizer: Tokenizer,
        voice: str = "mean",
        mixture: Literal["tokens", "sequences"] = "tokens",
        batch_size: int = 16,
        seed: int = 0,
    ) -> None:
        known = [*rules(crowd.count), *(f"agent-{k}" for k in range(crowd.count)), "backbone"]
        if voice not in known:
            raise ValueError(f"voice is {voice!r}, expected one of {', '.join(known)}")
        self.crowd, self.tokenizer, self.voice = crowd, tokenizer, voice
        self.mixture, self.batch_size, self.seed = mixture, batch_size, seed

    @property
    def rule(self) -> Aggregator:
        """That joins those who answer."""
        return rules(self.crowd.agents.count).get(self.voice, Mean())

    def _answering(self) -> AbstractContextManager[None]:
        if self.voice == "backbone":
            return self.crowd.without_agents()
        if self.voice.startswith("agent-"):
            return self.crowd.only(int(self.voice.removeprefix("agent-")))
        return nullcontext()

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether it is the likeliest; `args` (context, continuation)."""
        return self._scored([pair_ids(self.tokenizer, *request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of whole texts, each token once, in windows of the backbone's context; `args` (text,)."""
        windows = [list(self._windows(request.args[0])) for request in requests]
        scores = iter(self._scored([pair for each in windows for pair in each]))
        return [sum(next(scores)[0] for _ in each) for each in windows]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts behind contexts, cut at a stop string; `args` (context, what to do: `until`, `max_gen_toks`, ...)."""
        texts = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        for numbers in groups.values():
            wanted = requests[numbers[0]].args[1]
            unknown = sorted(set(wanted) - set(_KNOWN))
            if unknown:
                raise ValueError(f"generation of a crowd knows no {', '.join(unknown)}; leave it out of gen_kwargs")
            numbers.sort(key=lambda number: len(requests[number].args[0]))
            for first in range(0, len(numbers), self.batch_size):
                together = numbers[first : first + self.batch_size]
                found = self._written([requests[number].args[0] for number in together], together, wanted)
                for number, text in zip(together, found, strict=True):
                    texts[number] = text
        return texts

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as text, see `zoo.ci_llm.data.prompts.chat_text`."""
        return chat_text(self.tokenizer, chat_history)

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache of requests."""
        return self.tokenizer.fingerprint

    def _scored(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        with self._answering():
            found = likelihoods(
                self.crowd, pairs, {self.voice: self.rule}, self.tokenizer.pad_id, self.batch_size, self.seed
            )
        whole = self.mixture == "sequences"
        return [
            (each.whole[self.voice] if whole else each.sums()[self.voice], each.greedy[self.voice]) for each in found
        ]

    def _windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        """Context and continuation of each window; the context is at least one token."""
        tokens = context_ids(self.tokenizer, text)
        begin = (self.tokenizer.prefix or [self.tokenizer.eos_id])[0]
        most = self.crowd.backbone.context_tokens or len(tokens)
        yield [begin], tokens[:most]
        for start in range(most, len(tokens), most):
            end = min(start + most, len(tokens))
            yield tokens[end - most - 1 : start], tokens[start:end]

    def _written(self, contexts: Sequence[str], numbers: Sequence[int], wanted: Mapping[str, Any]) -> list[str]:
        until = wanted.get("until") or []
        stop = [each for each in ([until] if isinstance(until, str) else until) if each]
        length = next((int(wanted[name]) for name in _LENGTHS if wanted.get(name)), NEW_TOKENS)
        heat = float(wanted.get("temperature") or 0.0) if wanted.get("do_sample", True) else 0.0
        filters = {name: wanted[name] for name in ("top_k", "top_p", "min_p") if wanted.get(name) is not None}
        limit = self.crowd.backbone.context_tokens
        room = None if limit is None else limit - length
        if room is not None and room < 1:
            raise ValueError(f"max_gen_toks is {length}, and the backbone's context {limit}: lower it")
        prompts = [context_ids(self.tokenizer, text) for text in contexts]
        prompts = [ids if room is None else ids[-room:] for ids in prompts]
        seeds = [item_seed(self.seed, 0, number) for number in numbers]
        with self._answering():
            found = write_answers(
                self.crowd, self.tokenizer, prompts, self.rule, length, Sampling(heat, **filters), seeds, stop
            )
        return [cut(text, stop) for (text,) in found]


def crowd_model(
    run: Path | str, voice: str = "mean", mixture: Literal["tokens", "sequences"] = "tokens",
    batch_size: int = 16, device: str = "cpu",
) -> Any:  # fmt: skip
    """A run, checkpoint or export as a model of lm-eval; arguments as those of `CrowdRequests`.

    Raises:
        ImportError: the extra `lm_eval` is not installed.
    """
    trained, _, _ = load_crowd(Path(run), local_device(device))
    return as_model(CrowdRequests(trained.crowd.eval(), trained.tokenizer, voice, mixture, batch_size))


def as_model(requests: CrowdRequests) -> Any:
    """An object of lm-eval's class `LM` that answers as `requests` does."""
    try:
        base = importlib.import_module("lm_eval.api.model").LM
    except ImportError as error:
        raise ImportError("the harness needs lm-eval: pip install 'zoo[lm_eval]'") from error
    kind = type("CrowdModel", (CrowdRequests, base), {"__init__": base.__init__})
    model = kind()
    vars(model).update(vars(requests))
    return model
