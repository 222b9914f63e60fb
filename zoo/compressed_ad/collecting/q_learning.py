"""Tabular Q-learning of many tasks at once: every stream learns alone, from its own steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from zoo.common.checks import check_at_least, check_below, check_within
from zoo.compressed_ad.collecting.base import STREAMS, EpsilonGreedy, HistoryRequest, StateIndex, StepRandoms
from zoo.compressed_ad.data.history import Recorder
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.spaces import Discrete


@dataclass(frozen=True)
class QLearning(EpsilonGreedy):
    """Learns a table of action values, and records what it does meanwhile.

    A table's rows are the states' numbers (`StateIndex`). The end of an episode of a grid does not change values: the
    cell does not show the time. Of other environments, states and actions must be Discrete; values after a
    state that terminates an episode are 0, after one that its limit truncates they count.

    Args:
        rate: share of an error that is corrected at once, 0 to 1.
        discount: of later rewards, 0 to below 1.
        epsilon: share of random actions at the beginning.
        last_epsilon: the same after `explored`.
        explored: share of the history in which epsilon falls linearly.
        bonus: added reward of an action taken in a state for the first time, falling with the root of the count (UCB);
            values begin as high as that allows, so that untried actions are tried. 0 for none. With it, `epsilon` and
            `last_epsilon` of 0 are usual.

    Source: Watkins and Dayan, "Q-learning" (1992); the bonus as in Jin et al., "Is Q-learning Provably Efficient?"
    (2018), algorithm 1.
    """

    name: ClassVar[str] = "q_learning"

    rate: float = 0.5
    discount: float = 0.9
    bonus: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(0, 1, rate=self.rate)
        check_at_least(0, discount=self.discount, bonus=self.bonus)
        check_below(1, discount=self.discount)

    def check(self, env: Env, steps: int) -> None:
        """Refuse what is no grid and has other than Discrete states and actions."""
        spaces = (env.schema.observation, env.schema.action)
        if not isinstance(env, GridEnv) and not all(isinstance(space, Discrete) for space in spaces):
            raise ValueError(f"q_learning learns Discrete states and actions; {env.name} has {env.schema.describe()}")

    def make(self, request: HistoryRequest) -> np.ndarray:
        """Learn tasks from scratch, each stream for itself."""
        env, action = request.env, request.env.schema.action
        assert isinstance(action, Discrete)
        seeds = request.stream_seeds(STREAMS)
        envs, randoms = env.start(request.rows(), seeds), StepRandoms(seeds, 2)
        index, recorder = StateIndex(env, request.size), Recorder(env.schema, request.size, request.steps)
        values = torch.full((request.size * index.count, int(action.n)), self.bonus / (1 - self.discount))
        visits = torch.zeros_like(values)
        first_rows = torch.arange(request.size) * index.count
        for step in range(request.steps):
            states = envs.states
            rows = first_rows + index.of_states(states)
            actions = self.choose(values[rows], randoms.next(), self.epsilon_at(step / request.steps))
            transition = envs.step(actions)
            recorder.add(states, actions, transition)
            visits[rows, actions] += 1
            bonus = self.bonus / visits[rows, actions].sqrt()
            later = values[first_rows + index.advance(transition)].amax(dim=1) * ~transition.terminated
            target = transition.rewards + bonus + self.discount * later
            values[rows, actions] += self.rate * (target - values[rows, actions])
            request.advance(request.size)
        return request.by_task(recorder.histories)
