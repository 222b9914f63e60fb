"""Tabular Q-learning of many tasks at once: every stream learns alone, from its own steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from zoo.common.checks import check_at_least, check_below, check_within
from zoo.compressed_ad.collecting.base import STREAMS, EpsilonGreedy, Request, StateNumbers, StepDraws
from zoo.compressed_ad.data.history import recorder_of
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.schema import Discrete

DRAWS = 2  # random numbers that a step takes


@dataclass(frozen=True)
class QLearning(EpsilonGreedy):
    """Learns a table of action values, and keeps what it did meanwhile.

    A table's rows are the states' numbers (`StateNumbers`). The end of an episode of a grid does not change values: the
    cell does not show the time. Of other environments, states and actions must be Discrete; nothing is expected behind
    a state that terminates an episode, and what is behind one that its limit truncates is.

    Args:
        rate: share of an error that is corrected at once, 0 to 1.
        discount: of later rewards, 0 to below 1.
        epsilon: share of random actions at the beginning.
        last_epsilon: the same after `explored`.
        explored: share of the history in which epsilon falls linearly.
        bonus: reward that a learner imagines for an action taken in a cell for the first time, falling with the root of
            the count (UCB); values begin as high as that allows, so that what is untried is tried. 0 for none. With
            it, `epsilon` and `last_epsilon` of 0 are usual.

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
        """It learns grids, and what has Discrete states and actions."""
        spaces = (env.schema.observation, env.schema.action)
        if not isinstance(env, GridEnv) and not all(isinstance(space, Discrete) for space in spaces):
            raise ValueError(f"q_learning learns Discrete states and actions; {env.name} has {env.schema.describe()}")

    def make(self, request: Request) -> np.ndarray:
        """Learn tasks from scratch, each stream for itself."""
        env, action = request.env, request.env.schema.action
        assert isinstance(action, Discrete)
        seeds = request.stream_seeds(STREAMS)
        envs, draws = env.start(request.rows(), seeds), StepDraws(seeds, DRAWS)
        numbers, recorder = StateNumbers(env, request.size), recorder_of(env, request.size, request.steps)
        highest = self.bonus / (1 - self.discount)
        values = torch.full((request.size * numbers.count, action.n), highest)
        visits = torch.zeros_like(values)
        first_rows = torch.arange(request.size) * numbers.count
        for step in range(request.steps):
            states = envs.states
            here = first_rows + numbers.look(states)
            actions = self.choose(values[here], draws.next(), self.epsilon_at(step / request.steps))
            taken = envs.step(actions)
            recorder.add(step, states, actions, taken)
            visits[here, actions] += 1
            imagined = self.bonus / visits[here, actions].sqrt()
            later = values[first_rows + numbers.follow(taken)].amax(dim=1) * ~taken.terminated
            target = taken.rewards + imagined + self.discount * later
            values[here, actions] += self.rate * (target - values[here, actions])
            request.advance(request.size)
        return request.by_task(recorder.histories)
