"""The recurrent policy of RL^2: a GRU that sees what it did and earned, its state kept over episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.ranges import at_least
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.schema import Box, Discrete, Space
from zoo.compressed_ad.nets.embedding import check_spaces
from zoo.compressed_ad.nets.heads import ActionHead, CategoricalHead
from zoo.compressed_ad.nets.policy import ActingPolicy
from zoo.compressed_ad.nets.steps import Steps

MOST_CLASSES = 64  # values that a whole number may have to be one-hot


@dataclass
class RecurrentState:
    """What an agent knows while it acts.

    Args:
        hidden: (layers, B, hidden), None at the beginning of a trial.
        last: the last transition, L = 1, None at the beginning of a trial.
    """

    hidden: Tensor | None = None
    last: Steps | None = None
    compressions: int = 0


class RecurrentPolicy(ActingPolicy):
    """A GRU over [observation, previous action, previous reward, end of the previous episode], with actor and critic.

    Its state begins at zero with a trial and is kept over the episodes of it. Discrete values and bounded whole numbers
    are one-hot; other numbers of a Box are scaled by their bounds where there are any, else taken as they are.

    Args:
        env: whose spaces it is for.
        hidden: width of the GRU.
        head: what it says of the next action; logits of a few actions by default. Of a Box, `BinsHead` is the one whose
            draws are within bounds with the density that it tells.

    Source: Duan et al., "RL^2: Fast Reinforcement Learning via Slow Reinforcement Learning" (2016), section 2.2.
    """

    def __init__(self, env: Env, hidden: int = 64, head: ActionHead | None = None) -> None:
        super().__init__()
        at_least(1, hidden=hidden)
        self.spaces = (env.schema.observation, env.schema.action)
        for what, space in zip(("observation", "action"), self.spaces, strict=True):
            if isinstance(space, Box) and space.is_image:
                raise ValueError(f"the {what} of {env.name} is a picture, which RecurrentPolicy does not take")
        widths = [_width(space) for space in self.spaces]
        self.gru = nn.GRU(sum(widths) + 2, hidden, batch_first=True)
        if head is None:
            if not isinstance(env.schema.action, Discrete):
                raise ValueError("actions in a Box need a head: BinsHead or GaussianHead (policy.head)")
            head = CategoricalHead(hidden, env.schema.action.n)
        if head.in_features != hidden:
            raise ValueError(f"the GRU has {hidden} channels, the head takes {head.in_features}")
        self.head = head
        self.critic = nn.Linear(hidden, 1)
        self.compressor = None

    def check(self, env: Env) -> None:
        """Refuse other spaces, and print both."""
        check_spaces(self.spaces, env)

    def forward(self, steps: Steps) -> tuple[Tensor, Tensor]:
        """Parameters of the next action (B, L, P) and values (B, L) at every step of whole trials."""
        first = _scaled(steps.actions[:, :1], self.spaces[1]) * 0
        actions = torch.cat([first, _scaled(steps.actions[:, :-1], self.spaces[1])], 1)
        rewards, ends = (F.pad(each[:, :-1].float(), (1, 0)) for each in (steps.rewards, steps.dones))
        values = [_scaled(steps.states, self.spaces[0]), actions, rewards[..., None], ends[..., None]]
        seen = self.gru(torch.cat(values, -1).to(self.critic.weight.dtype))[0]  # (B, L, hidden)
        return self.head(seen), self.critic(seen)[..., 0]

    def begin(self, cached: bool = True) -> RecurrentState:
        """The state of agents at the beginning of a trial."""
        return RecurrentState()

    def act(self, state: RecurrentState, queries: Tensor) -> Tensor:
        """Parameters of the next action (B, P) in states (B, ...); to be called once before each `observe`."""
        states, last = _scaled(queries, self.spaces[0]), state.last
        if last is None:
            before = states.new_zeros(len(states), self.gru.input_size - states.shape[1])
        else:
            rest = [last.rewards.float(), last.dones.float()]  # (B, 1) each
            before = torch.cat([_scaled(last.actions[:, 0], self.spaces[1]), *rest], 1)
        inputs = torch.cat([states, before], 1).to(self.critic.weight.dtype)
        seen, state.hidden = self.gru(inputs[:, None], state.hidden)
        return self.head(seen[:, 0])

    def observe(self, state: RecurrentState, step: Steps) -> None:
        """Take in the last transitions, L = 1, changing the state in place."""
        state.last = step


def _classes(space: Space) -> list[int] | None:
    """How many values each number of a space has, where they become one-hot."""
    if isinstance(space, Discrete):
        return [space.n]
    if space.dtype.kind not in "iub" or not space.bounded:
        return None
    counts = [int(high - low) + 1 for low, high in zip(*space.limits(), strict=True)]
    return counts if max(counts) <= MOST_CLASSES else None


def _width(space: Space) -> int:
    """Numbers that `_scaled` makes of a value."""
    classes = _classes(space)
    if classes is not None:
        return sum(classes)
    assert isinstance(space, Box)
    return math.prod(space.shape)


def _scaled(values: Tensor, space: Space) -> Tensor:
    """Values (..., *space) as the GRU sees them, (..., width) float32."""
    classes = _classes(space)
    if isinstance(space, Discrete):
        return F.one_hot(values, space.n).float()
    flat = values.reshape(*values.shape[: values.ndim - len(space.shape)], -1)
    low, high = (torch.tensor(each, device=values.device) for each in space.limits())
    if classes is not None:
        numbers = (flat - low).long().unbind(-1)
        return torch.cat([F.one_hot(each, n).float() for each, n in zip(numbers, classes, strict=True)], -1)
    return (flat.float() - (low + high) / 2) / ((high - low) / 2) if space.bounded else flat.float()
