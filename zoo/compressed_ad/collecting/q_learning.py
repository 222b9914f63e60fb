"""Tabular Q-learning of many tasks at once: every stream learns alone, from its own steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_at_least, check_below, check_positive, check_within
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.collecting.base import Algorithm, HistoryRequest
from zoo.compressed_ad.data.history_writer import Recorder
from zoo.compressed_ad.envs.base import Env, Transition
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.spaces import Discrete

STREAMS = 1  # number of a task's seeds of its streams


@dataclass(frozen=True)
class QLearning(Algorithm):
    """Learns a table of action values, and records what it does meanwhile.

    A table's rows are the states' numbers (`StateIndex`). The end of an episode of a grid does not change values: the
    cell does not show the time. Of other environments, states and actions must be Discrete; values after a
    state that terminates an episode are 0, after one that its limit truncates they count.

    Args:
        rate: share of an error that is corrected at once, 0 to 1.
        discount: of later rewards, 0 to below 1.
        epsilon: share of random actions at the beginning.
        last_epsilon: the same after `explored`.
        explored: share of the history in which epsilon falls linearly, above 0.
        bonus: added reward of an action taken in a state for the first time, falling with the root of the count (UCB);
            values begin as high as that allows, so that untried actions are tried. 0 for none. With it, `epsilon` and
            `last_epsilon` of 0 are usual.

    Source: Watkins and Dayan, "Q-learning" (1992); the bonus as in Jin et al., "Is Q-learning Provably Efficient?"
    (2018), algorithm 1.
    """

    name: ClassVar[str] = "q_learning"

    epsilon: float = 1.0
    last_epsilon: float = 0.05
    explored: float = 0.7
    rate: float = 0.5
    discount: float = 0.9
    bonus: float = 0.0

    def __post_init__(self) -> None:
        check_within(0, 1, epsilon=self.epsilon, last_epsilon=self.last_epsilon, rate=self.rate)
        check_within(0, 1, explored=self.explored)
        check_positive(explored=self.explored)
        check_at_least(0, discount=self.discount, bonus=self.bonus)
        check_below(1, discount=self.discount)

    def check(self, env: Env, steps: int) -> None:
        """Refuse what is no grid and has other than Discrete states and actions."""
        spaces = (env.schema.observation, env.schema.action)
        if not isinstance(env, GridEnv) and not all(isinstance(space, Discrete) for space in spaces):
            raise ValueError(f"q_learning learns Discrete states and actions; {env.name} has {env.schema.describe()}")

    def histories(self, request: HistoryRequest) -> np.ndarray:
        """Learn tasks from scratch, each stream for itself."""
        env, action = request.env, request.env.schema.action
        assert isinstance(action, Discrete)
        seeds = request.stream_seeds(STREAMS)
        envs, generators = env.start(request.rows(), seeds), np.array(seeds, dtype=np.uint64)
        index, recorder = StateIndex(env, request.size), Recorder(env.schema, request.size, request.steps)
        values = torch.full((request.size * index.count, int(action.n)), self.bonus / (1 - self.discount))
        visits = torch.zeros_like(values)
        first_rows = torch.arange(request.size) * index.count
        for step in range(request.steps):
            states = envs.states
            rows = first_rows + index.of_states(states)
            uniforms = sample_uniforms((generators + np.uint64(2 * step * int(SPLITMIX_INCREMENT) % 2**64)).tolist(), 2)
            actions = self.choose(values[rows], uniforms, step / request.steps)
            transition = envs.step(actions)
            recorder.add(states, actions, transition)
            visits[rows, actions] += 1
            bonus = self.bonus / visits[rows, actions].sqrt()
            later = values[first_rows + index.advance(transition)].amax(dim=1) * ~transition.terminated
            target = transition.rewards + bonus + self.discount * later
            values[rows, actions] += self.rate * (target - values[rows, actions])
            request.advance(request.size)
        return request.by_task(recorder.histories)

    def choose(self, values: Tensor, uniforms: Tensor, progress: float) -> Tensor:
        """Choose actions (B,) by values (B, A) and random numbers (2, B), after a share of the history."""
        epsilon = self.epsilon + (self.last_epsilon - self.epsilon) * min(1.0, progress / self.explored)
        allowed = (values == values.amax(dim=1, keepdim=True)) | (uniforms[0] < epsilon)[:, None]
        rank = (uniforms[1] * allowed.sum(dim=1)).long()
        return (allowed.cumsum(dim=1) > rank[:, None]).int().argmax(dim=1)


class StateIndex:
    """Numbers of the states of B environments: Discrete ones as they are, of grids the cells.

    Where the goals of a grid pay once an episode, there is a number for each cell and count of goals reached.
    """

    def __init__(self, env: Env, histories: int) -> None:
        self._size, self._levels = 0, 1
        self._reached = torch.zeros(histories, dtype=torch.int64)
        if isinstance(env, GridEnv):
            self._size = env.grid_size
            self._levels = 1 if env.repeats else env.goals(env.tasks()[:1]).shape[1] + 1
            self.count = env.grid_size**2 * self._levels
        else:
            assert isinstance(env.schema.observation, Discrete)
            self.count = int(env.schema.observation.n)

    def of_states(self, states: Tensor) -> Tensor:
        """Return numbers (B,) int64 of states (B, ...)."""
        if not self._size:
            return states
        cells = states[:, 0] * self._size + states[:, 1]
        return cells if self._levels == 1 else cells * self._levels + self._reached

    def advance(self, transition: Transition) -> Tensor:
        """Return numbers (B,) of the next states, and reset the counts where an episode ended."""
        if self._levels > 1:
            self._reached = self._reached + transition.rewards.long()
        numbers = self.of_states(transition.next_states)
        self._reached = self._reached.masked_fill(transition.dones, 0)
        return numbers
