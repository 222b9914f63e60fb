"""Continuous batching: texts of several requests and agents that grow together, and join and leave between tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.ci_llm.aggregation.aggregator import Aggregator, Mean
from zoo.ci_llm.data.tokens import left_padded
from zoo.ci_llm.inference.generate import check_prompts, evaluating, uniform_numbers
from zoo.ci_llm.losses.metrics import taken
from zoo.ci_llm.nets.backbone import positions
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.common.ranges import at_least

BACKBONE = -1  # in the place of an agent


@dataclass(frozen=True, eq=False)
class Wanted:
    """A text to be written.

    Args:
        ids: numbers of the prompt's tokens.
        max_new_tokens: at most so many are added, >= 1.
        agent: who writes: an agent's number, `BACKBONE`, or None for all agents together.
        sampling: how tokens are chosen.
        seed: of what is drawn, 0 to 2**64 - 1.
        ended: told the new tokens before the first and after each; whether the text ends here.
    """

    ids: Sequence[int]
    max_new_tokens: int
    agent: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    ended: Callable[[list[int]], bool] | None = None

    @property
    def length(self) -> int:
        """Tokens at most."""
        return len(self.ids) + self.max_new_tokens


class RunningBatch:
    """Writes many texts at a time, a token of each in a pass, whoever writes them.

    A text is that of `generate` for the request alone, up to the rounding of floats. A row is a pair of text and agent;
    rows lie sorted by agent, padded on the left, so that all end together. Prompts that join are read in a pass of
    their own.

    Args:
        rule: joins the agents where all write together; one that is `joint`.
        eos: ids that end a text; it keeps its EOS.
        most_tokens: that the rows may cache together; texts wait, in their order, until there is room. One that alone
            needs more is written alone.

    Raises:
        ValueError: when the agents write texts of their own by this rule, or the backbone caches otherwise than by keys
            and values, whole or in a sliding window.
    """

    def __init__(
        self, crowd: Crowd, rule: Aggregator | None = None, eos: Sequence[int] = (), most_tokens: int = 2**17
    ) -> None:
        at_least(1, most_tokens=most_tokens)
        self.crowd, self.rule, self.most_tokens = crowd, rule or Mean(), most_tokens
        if not self.rule.joint:
            raise ValueError(f"{type(self.rule).__name__} lets each agent write a text of its own: ask agent by agent")
        self.eos = frozenset(eos)
        self._waiting: deque[Wanted] = deque()
        self._rows = _Rows(crowd)

    def __bool__(self) -> bool:
        """Whether a text waits or is being written."""
        return bool(self._waiting or self._rows.texts)

    @property
    def cached_tokens(self) -> int:
        """Tokens that the rows cache together, padding included."""
        return len(self._rows.agents) * self._rows.width

    def add(self, wanted: Wanted) -> None:
        """Let a text wait for its turn.

        Raises:
            ValueError: when there is no such agent, the prompt is empty, or the text does not fit into the context.
        """
        count = self.crowd.agents.count
        if wanted.agent is not None and not BACKBONE <= wanted.agent < count:
            raise ValueError(f"agent {wanted.agent} does not exist: there are agents 0 to {count - 1}")
        ids = torch.tensor([list(wanted.ids)])
        check_prompts(self.crowd, ids, torch.ones_like(ids), wanted.max_new_tokens)
        self._waiting.append(wanted)

    @torch.no_grad()
    def step(self) -> list[tuple[Wanted, list[int]]]:
        """Add a token to every text that runs, after those that have room have joined.

        Returns:
            The texts that ended, as their new tokens.
        """
        over = [(each, list[int]()) for each in self._left()]
        joining = [_Text(each, self.crowd.agents.count, self.rule) for each in self._admitted()]
        with evaluating(self.crowd):
            if self._rows.texts:
                self._rows.advance()
            if joining:
                self._rows.join(joining, self.rule)
        texts = self._rows.texts
        if not texts:
            return over
        for text, token in zip(texts, self._choose(texts), strict=True):
            text.tokens.append(token)
            ended = token in self.eos or len(text.tokens) == text.wanted.max_new_tokens
            told = text.wanted.ended is not None and text.wanted.ended(text.tokens)
            text.over = ended or told
        over += [(text.wanted, text.tokens) for text in texts if text.over]
        if any(text.over for text in texts):
            self._rows.keep([not text.over for text in texts])
        return over

    def _left(self) -> Iterator[Wanted]:
        """Texts that nobody wants any more before they began."""
        for each in tuple(self._waiting):
            if each.ended is not None and each.ended([]):
                self._waiting.remove(each)
                yield each

    def _admitted(self) -> list[Wanted]:
        """The first of those that wait, as many as there is room for until all have ended."""
        found: list[Wanted] = []
        running = [text.wanted for text in self._rows.texts]
        while self._waiting:
            together = [*running, *found, self._waiting[0]]
            rows = sum(self.crowd.agents.count if each.agent is None else 1 for each in together)
            if len(together) > 1 and rows * max(each.length for each in together) > self.most_tokens:
                break
            found.append(self._waiting.popleft())
        return found

    def _choose(self, texts: Sequence[_Text]) -> list[int]:
        """The next token of each text."""
        last = self._rows.last.float().log_softmax(-1)  # (R, V)
        joined = last.new_empty(len(texts), last.shape[-1])
        places = self._rows.places()
        alone = [number for number, rows in enumerate(places) if texts[number].wanted.agent is not None]
        if alone:
            joined[alone] = last[[places[number][0] for number in alone]]
        together = [number for number, rows in enumerate(places) if texts[number].wanted.agent is None]
        if together:
            own = last[torch.tensor([places[number] for number in together]).T]  # (K, texts, V)
            weights = torch.stack([texts[number].log_weights for number in together]).to(last.device)
            members = torch.stack([texts[number].member for number in together]).to(last.device)
            joined[together] = self.rule.combine(own, weights, members)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for number, text in enumerate(texts):
            groups.setdefault(tuple(vars(text.wanted.sampling).items()), []).append(number)
        chosen = torch.empty(len(texts), dtype=torch.long, device=last.device)
        for numbers in groups.values():
            uniforms = torch.stack([texts[number].choice for number in numbers]).to(last.device)
            chosen[numbers] = texts[numbers[0]].wanted.sampling.choose(joined[numbers], uniforms)
        if together and self.rule.learns:
            weights = self.rule.update(weights, taken(own, chosen[together]))
            for number, row in zip(together, weights, strict=True):
                texts[number].log_weights = row
        return list(map(int, chosen.tolist()))


class _Text:
    """A text that is being written."""

    def __init__(self, wanted: Wanted, agents: int, rule: Aggregator) -> None:
        self.wanted = wanted
        self.tokens: list[int] = []
        self.over = False
        count, steps = agents if wanted.agent is None else 1, wanted.max_new_tokens
        uniforms = uniform_numbers([wanted.seed], count, 1, steps)
        start, self._members, self._choices = uniforms.tensor_split((count, count + steps))
        self.log_weights = rule.start(count, 1, start)[0] if wanted.agent is None else torch.zeros(1)

    @property
    def agents(self) -> range | tuple[int]:
        """Who writes; all of the crowd's where it is more than one."""
        return range(len(self.log_weights)) if self.wanted.agent is None else (self.wanted.agent,)

    @property
    def member(self) -> Tensor:
        """The number that chooses an agent now."""
        return self._members[len(self.tokens), 0]

    @property
    def choice(self) -> Tensor:
        """The number that chooses a token now."""
        return self._choices[len(self.tokens), 0]

    @property
    def newest(self) -> int:
        """The token that was chosen last."""
        return self.tokens[-1]


class _Rows:
    """Keys, values and mask of the running texts, one row for each text and agent.

    Attributes:
        texts: in the order in which they came: rows of the mask, and of the cache below the first adapted block.
        agents: of the rows, in ascending order.
        last: logits (R, V) behind the newest token.
    """

    def __init__(self, crowd: Crowd) -> None:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        self.crowd = crowd
        self.texts: list[_Text] = []
        self.agents: list[int] = []
        self._of: list[int] = []  # the text of each row
        self.mask = torch.zeros(0, 0, dtype=torch.long, device=crowd.device)
        self.last = torch.zeros(0, 0, device=crowd.device)
        self._new_cache = lambda: DynamicCache(config=crowd.backbone.model.config)
        self.cache: Any = self._new_cache()
        if odd := {type(each).__name__ for each in self.cache.layers} - {
            DynamicLayer.__name__,
            DynamicSlidingWindowLayer.__name__,
        }:
            raise ValueError(
                f"the backbone caches in {', '.join(sorted(odd))}; texts join a batch where keys and values are cached"
            )
        below = min(crowd.backbone.block_of(name) for name in crowd.agents.names) if crowd.trunk.shared else 0
        self._by_text = [number < below for number in range(len(self.cache.layers))]

    @property
    def width(self) -> int:
        """Tokens of the longest text that were read."""
        return self.mask.shape[1]

    def places(self) -> list[list[int]]:
        """The rows of each text, by agent."""
        found: list[list[int]] = [[] for _ in self.texts]
        for row, text in enumerate(self._of):
            found[text].append(row)
        return found

    def advance(self) -> None:
        """Read the newest token of every text."""
        tokens = torch.tensor([[text.newest] for text in self.texts], device=self.mask.device)
        places = self.mask.sum(-1, keepdim=True)
        self.mask = F.pad(self.mask, (0, 1), value=1)
        of = torch.tensor(self._of, device=self.mask.device)
        self.last = self.crowd.mixed(self.agents, of, tokens, self.mask, places, self.cache)[:, -1]

    def join(self, texts: Sequence[_Text], rule: Aggregator) -> None:
        """Read the prompts of texts, and let them run with the others."""
        ids, mask = (each.to(self.mask.device) for each in left_padded([text.wanted.ids for text in texts], 0))
        rows = sorted((agent, number) for number, text in enumerate(texts) for agent in text.agents)
        of = torch.tensor([number for _, number in rows], device=ids.device)
        cache, agents = self._new_cache(), [agent for agent, _ in rows]
        learns = rule.learns and any(text.wanted.agent is None for text in texts)
        logits = self.crowd.mixed(agents, of, ids, mask, positions(mask), cache, 0 if learns else 1)
        if learns:
            for number, text in enumerate(texts):
                if text.wanted.agent is None:
                    log_probs = logits[of == number].float().log_softmax(-1)[:, None]  # (K, 1, T, V)
                    given = taken(log_probs[:, :, :-1], ids[number : number + 1, 1:])
                    weights = text.log_weights[None].to(ids.device)
                    text.log_weights = rule.along(weights, given, mask[number : number + 1, :-1])[-1][0]
        self._merge(texts, agents, [len(self.texts) + number for _, number in rows], cache, mask, logits[:, -1])

    def _merge(
        self, texts: Sequence[_Text], agents: list[int], of: list[int], cache: Any, mask: Tensor, last: Tensor
    ) -> None:
        if not self.texts:
            self.texts, self.agents, self._of = list(texts), agents, of
            self.cache, self.mask, self.last = cache, mask, last
            return
        width = max(self.width, mask.shape[1])
        both_agents, both_of = [*self.agents, *agents], [*self._of, *of]
        rows = sorted(zip(both_agents, both_of, range(len(both_of)), strict=True))
        order = torch.tensor([row for _, _, row in rows], device=mask.device)
        for ours, theirs, by_text in zip(self.cache.layers, cache.layers, self._by_text, strict=True):
            for layer in (ours, theirs):
                _widen(layer, width)
            for name in ("keys", "values"):
                both = torch.cat([getattr(ours, name), getattr(theirs, name)])
                setattr(ours, name, both if by_text else both[order])
        self.mask = torch.cat([F.pad(each, (width - each.shape[1], 0)) for each in (self.mask, mask)])
        self.last = torch.cat([self.last, last])[order]
        self.texts += texts
        self.agents, self._of = [agent for agent, _, _ in rows], [text for _, text, _ in rows]

    def keep(self, kept: Sequence[bool]) -> None:
        """Let texts leave, and with them the columns that no other needs."""
        numbers = [number for number, each in enumerate(kept) if each]
        if not numbers:
            self.texts, self.agents, self._of = [], [], []
            self.cache, self.mask, self.last = self._new_cache(), self.mask[:0, :0], self.last[:0]
            return
        rows = [row for row, text in enumerate(self._of) if kept[text]]
        by_row, by_text = (torch.tensor(each, device=self.mask.device) for each in (rows, numbers))
        self.mask = self.mask[by_text]
        spare = self.width - int(self.mask.sum(-1).max())
        self.mask = self.mask[:, spare:]
        for layer, shared in zip(self.cache.layers, self._by_text, strict=True):
            for name in ("keys", "values"):
                setattr(layer, name, getattr(layer, name)[by_text if shared else by_row])
            _widen(layer, self.width)
        self.last = self.last[by_row]
        self.texts = [self.texts[number] for number in numbers]
        self.agents = [self.agents[row] for row in rows]
        renamed = {number: place for place, number in enumerate(numbers)}
        self._of = [renamed[self._of[row]] for row in rows]


def _widen(layer: Any, width: int) -> None:
    """Pad or cut a layer's cached columns on the left, as for texts of so many tokens."""
    held = width
    if layer.is_sliding:
        layer.cumulative_length = width
        held = min(width, layer.sliding_window - 1)
    for name in ("keys", "values"):
        cached = getattr(layer, name)
        more = held - cached.shape[-2]
        setattr(layer, name, F.pad(cached, (0, 0, more, 0)) if more > 0 else cached[..., -more:, :])
