"""What makes crowds help: ways to part the agents against one LoRA of their size and compute, on two exact tasks.

For each seed a tiny backbone learns what is near (sums, and how far it is from one number up to another; copies of
words); agents then learn another task from 200 examples (differences, reversals). An answer is right when every
character of it, end included, is the likeliest behind the right ones before it, which is when greedy writing gives it.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.ci_llm.losses.distances import pairwise_kl
from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.likelihood import IGNORED, losses, shifted_labels
from zoo.ci_llm.losses.metrics import gather_log_probs
from zoo.ci_llm.nets.agents import Agents
from zoo.ci_llm.nets.backbone import LearningBackbone
from zoo.ci_llm.nets.crowd import Crowd

COUNT, RANK = 4, 4
TRAIN, TEST = 200, 280
BATCH, STEPS, RATE, DECAY = 16, 300, 0.005, 0.01
NEAR_STEPS, NEAR_BATCH, NEAR_RATE = 1800, 64, 0.003
PROMPTS = "ABCD"  # put before the prompts, one for each agent, where these part them
CHARACTERS = "\0\n0123456789+-=abcdefgh<>" + PROMPTS  # 0 fills up, a line break ends an answer
WORD, LARGEST = 4, 30  # letters of a word; numbers are 0 to this one
Pairs = list[tuple[str, str]]


def arithmetic(draws: random.Random) -> tuple[Pairs, Pairs]:
    """Sums and distances from a number up to another; and the same distances as differences, in random order."""
    numbers = list(itertools.product(range(LARGEST + 1), repeat=2))
    rising = [(a, b) for a, b in numbers if a >= b]
    near = [(f"{a}+{b}=", f"{a + b}\n") for a, b in numbers] + [(f"{b}<{a}=", f"{a - b}\n") for a, b in rising]
    new = [(f"{a}-{b}=", f"{a - b}\n") for a, b in rising]
    draws.shuffle(new)
    return near, new


def reversals(draws: random.Random) -> tuple[Pairs, Pairs]:
    """Words to be copied, and others to be reversed."""
    words = ["".join(each) for each in itertools.product("abcdefgh", repeat=WORD)]
    draws.shuffle(words)
    near = [(f"{word}>", f"{word}\n") for word in words[TRAIN + TEST :]]
    return near, [(f"{word}<", f"{word[::-1]}\n") for word in words[: TRAIN + TEST]]


TASKS: dict[str, Callable[[random.Random], tuple[Pairs, Pairs]]] = {"differences": arithmetic, "reversals": reversals}


class Arm(NamedTuple):
    """A way to train.

    Attributes:
        agents: how many.
        rank: of each.
        batch: examples of each agent in a step.
        steps: of training.
        data: "shared" (the same batches for all), "own" (batches of their own), "splits" (parts of the data).
        prompts: each agent reads other prompts.
        weight: of the diversity term.
    """

    agents: int = COUNT
    rank: int = RANK
    batch: int = BATCH
    steps: int = STEPS
    data: str = "own"
    prompts: bool = False
    weight: float = 0.0


ONE = Arm(1, COUNT * RANK)
ARMS = {
    "seeds": Arm(data="shared"),
    "seeds and order": Arm(),
    "splits": Arm(data="splits"),
    "prompts": Arm(prompts=True),
    "diversity": Arm(data="shared", weight=0.03),
    "one, equal size": ONE,
    "one, larger batches": ONE._replace(batch=COUNT * BATCH),
    "one, more steps": ONE._replace(steps=COUNT * STEPS),
}
EQUAL_COMPUTE = ("one, larger batches", "one, more steps")


@dataclass
class Texts:
    """Examples as rows of one width.

    Attributes:
        ids: (..., N, T) int64.
        labels: likewise, -100 outside answers.
    """

    ids: Tensor
    labels: Tensor = field(repr=False)

    @classmethod
    def from_pairs(cls, pairs: Pairs, prompt: str = "") -> Texts:
        """Rows of characters' numbers, padded on the right."""
        rows = [([*map(CHARACTERS.index, prompt + one)], [*map(CHARACTERS.index, other)]) for one, other in pairs]
        width = max(len(one) + len(other) for one, other in rows)
        ids = torch.tensor([[*one, *other, *[0] * (width - len(one) - len(other))] for one, other in rows])
        answers = torch.tensor([[0] * len(one) + [1] * len(other) + [0] * (width - len(one) - len(other))
                                for one, other in rows])  # fmt: skip
        return cls(ids, ids.masked_fill(answers == 0, IGNORED))

    def __getitem__(self, index: Any) -> Texts:
        """Some of the rows."""
        return Texts(self.ids[index], self.labels[index])

    @property
    def mask(self) -> Tensor:
        """1 for characters."""
        return (self.ids != 0).long()


def pretrained(pairs: Pairs, seed: int, steps: int) -> LearningBackbone:
    """A small Llama that has learnt pairs."""
    config = {
        "model_type": "llama", "vocab_size": len(CHARACTERS), "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32,
        "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
    }  # fmt: skip
    backbone, texts = LearningBackbone(config, seed), Texts.from_pairs(pairs)
    optimizer = torch.optim.AdamW(backbone.parameters(), NEAR_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, NEAR_RATE, steps)
    for numbers in _orders(len(pairs), NEAR_BATCH, steps, seed):
        part = texts[numbers]
        logits = backbone(input_ids=part.ids, attention_mask=part.mask).logits
        loss = losses(logits[None], part.labels).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return backbone.requires_grad_(False).eval()


@torch.no_grad()
def exact(backbone: LearningBackbone, pairs: Pairs) -> float:
    """The share of pairs that a backbone answers rightly."""
    texts = Texts.from_pairs(pairs)
    targets = shifted_labels(texts.labels)
    predicted = backbone(input_ids=texts.ids, attention_mask=texts.mask).logits.argmax(-1)
    return float(((predicted == targets) | (targets == IGNORED)).all(-1).float().mean())


def _orders(count: int, batch: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Numbers of each batch; every example once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        while len(left) < batch:
            left = torch.cat([left, torch.randperm(count, generator=generator)])
        yield left[:batch]
        left = left[batch:]


def trained(backbone: LearningBackbone, arm: Arm, pairs: Pairs, seed: int) -> Crowd:
    """Agents that have learnt pairs the arm's way."""
    agents = Agents(arm.agents, arm.rank, 2 * arm.rank, "all-linear", dropout=0.0, seed=seed)
    crowd = Crowd(copy.deepcopy(backbone), agents).train()
    texts = _read(arm, pairs)
    apart = len(pairs) // arm.agents if arm.data == "splits" else 0
    count, orders = apart or len(pairs), 1 if arm.data == "shared" else arm.agents
    batches = [_orders(count, arm.batch, arm.steps, seed * 10 + number) for number in range(orders)]
    diversity = Diversity(arm.weight, strategy="answer_mean") if arm.weight else None
    optimizer = torch.optim.AdamW(agents.parameters(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, arm.steps)
    for step in range(arm.steps):
        numbers = [next(each) for each in batches]
        if orders == 1:
            part = texts[0][numbers[0]]
        else:
            parts = [texts[agent][each + agent * apart] for agent, each in enumerate(numbers)]
            part = Texts(torch.stack([each.ids for each in parts]), torch.stack([each.labels for each in parts]))
        output = crowd.outputs(part.ids, part.mask, hidden=diversity is not None)
        loss = losses(output.logits, part.labels).sum()
        if diversity is not None:
            assert output.hidden is not None
            points = diversity.represent(output.hidden, part.mask, part.labels)
            loss = loss + arm.agents * diversity.loss(diversity.value(points, step), step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agents.parameters(), float(arm.agents))
        optimizer.step()
        schedule.step()
    return crowd.eval()


def _read(arm: Arm, pairs: Pairs) -> list[Texts]:
    """The texts as each agent reads them."""
    if not arm.prompts:
        return [Texts.from_pairs(pairs)] * arm.agents
    return [Texts.from_pairs(pairs, PROMPTS[agent]) for agent in range(arm.agents)]


@torch.no_grad()
def scores(crowd: Crowd, arm: Arm, pairs: Pairs) -> dict[str, float]:
    """NLL in nats a character and the share of right answers: of the mean of the predictions, and of the agents."""
    texts = _read(arm, pairs)
    ids = torch.stack([each.ids for each in texts])  # (K, N, T)
    targets = shifted_labels(texts[0].labels)
    counted = targets != IGNORED
    log_probs = crowd(ids, (ids != 0).long()).float().log_softmax(-1)
    mixture = log_probs.logsumexp(0, keepdim=True) - math.log(len(log_probs))
    everyone = torch.cat([mixture, log_probs])  # the crowd, then the agents
    nll = -gather_log_probs(everyone, targets.clamp(min=0))[:, counted].mean(-1)
    right = ((everyone.argmax(-1) == targets) | ~counted).all(-1).float().mean(-1)  # (1 + K,)
    kl = pairwise_kl(log_probs[:, counted]).mean() if len(log_probs) > 1 else torch.zeros(())
    return {
        "NLL": float(nll[0]),
        "best agent's NLL": float(nll[1:].min()),
        "agents' mean NLL": float(nll[1:].mean()),
        "exact": float(right[0]),
        "agents' mean exact": float(right[1:].mean()),
        "pair KL": float(kl),
    }


def compare(seed: int, quick: bool = False) -> dict[str, float]:
    """Every arm's scores on both tasks, as `<task>, <arm>: <score>`."""
    results: dict[str, float] = {}
    for task, make in TASKS.items():
        near, new = make(random.Random(seed))
        backbone = pretrained(near, seed, 2 if quick else NEAR_STEPS)
        results[f"{task}, backbone on what is near: exact"] = exact(backbone, near)
        for name, arm in ARMS.items():
            taught = arm._replace(steps=2) if quick else arm
            crowd = trained(backbone, taught, new[:TRAIN], seed)
            selected = scores(crowd, arm, new[TRAIN : TRAIN + TEST])
            results |= {f"{task}, {name}: {score}": value for score, value in selected.items()}
        best = min(results[f"{task}, {name}: NLL"] for name in EQUAL_COMPUTE)
        results[f"{task}, one LoRA of equal size and compute: NLL"] = best
    return results
