"""Tabular Q-learning of many tasks at once: every stream learns alone, from its own steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from zoo.common.draws import GOLDEN, seeded_uniforms
from zoo.common.ranges import at_least, below, positive, within
from zoo.compressed_ad.collecting.base import Algorithm
from zoo.compressed_ad.data.history import COLUMNS, Recorder
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.schema import Discrete
from zoo.training.data import item_seed

DRAWS = 2  # random numbers that a step takes
STREAMS = 1  # number of a task's draws


@dataclass(frozen=True)
class QLearning(Algorithm):
    """Learns a table of action values, and keeps what it did meanwhile.

    A table's rows are the cells; where goals pay once an episode, there is one for each cell and number of goals found
    so far, without which no table can distinguish the way to the key from that to the door. The end of an episode does
    not change values: the cell does not show the time.

    Of other environments, states and actions must be Discrete; nothing is expected behind a state that terminates an
    episode, and what is behind one that its limit truncates is.

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
    epsilon: float = 1.0
    last_epsilon: float = 0.05
    explored: float = 0.7
    bonus: float = 0.0

    def __post_init__(self) -> None:
        within(0, 1, rate=self.rate, epsilon=self.epsilon, last_epsilon=self.last_epsilon, explored=self.explored)
        at_least(0, discount=self.discount, bonus=self.bonus)
        below(1, discount=self.discount)
        positive(explored=self.explored)

    def check(self, env: Env, steps: int) -> None:
        """It learns grids, and what has Discrete states and actions."""
        spaces = (env.schema.observation, env.schema.action)
        if not isinstance(env, GridEnv) and not all(isinstance(space, Discrete) for space in spaces):
            raise ValueError(f"q_learning learns Discrete states and actions; {env.name} has {env.schema.describe()}")

    def histories(
        self,
        env: Env,
        tasks: Tensor,
        seeds: Sequence[int],
        streams: int,
        steps: int,
        advance: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Learn tasks from scratch, each stream for itself."""
        if not isinstance(env, GridEnv):
            return self._tabular(env, tasks, seeds, streams, steps, advance)
        stream_seeds = [item_seed(seed, STREAMS, stream) for seed in seeds for stream in range(streams)]
        envs = env.start(tasks.repeat_interleave(streams, dim=0), stream_seeds)
        count = len(stream_seeds)
        levels = 1 if env.repeats else env.goals(tasks[:1]).shape[1] + 1
        highest = self.bonus / (1 - self.discount)
        values = torch.full((count * env.grid_size**2 * levels, env.num_actions), highest)
        visits = torch.zeros_like(values)
        first_rows = torch.arange(count) * env.grid_size**2 * levels
        found = torch.zeros(count, dtype=torch.int64)
        histories = np.zeros((count, steps, len(COLUMNS)), dtype=np.int8)
        generators = np.array(stream_seeds, dtype=np.uint64)
        ahead = np.array([DRAWS], dtype=np.uint64) * GOLDEN  # an array may overflow silently, which is meant

        def rows(states: Tensor) -> Tensor:
            cells = states[:, 0] * env.grid_size + states[:, 1]
            return first_rows + cells * levels + (0 if env.repeats else found)

        for step in range(steps):
            uniforms = seeded_uniforms(generators.tolist(), DRAWS)
            generators += ahead
            states, here = envs.states, rows(envs.states)
            actions = self._choose(values[here], uniforms, self.epsilon_at(step / steps))
            taken = envs.step(actions)
            found = found + taken.rewards
            visits[here, actions] += 1
            imagined = self.bonus / visits[here, actions].sqrt()
            target = taken.rewards + imagined + self.discount * values[rows(taken.next_states)].amax(dim=1)
            values[here, actions] += self.rate * (target - values[here, actions])
            columns = [states, actions[:, None], taken.rewards[:, None], taken.next_states]
            histories[:, step, :6] = torch.cat(columns, dim=1).numpy()
            histories[:, step, 6] = taken.done
            if taken.done:
                found = torch.zeros_like(found)
                if advance:
                    advance(count * env.horizon)
        return histories.reshape(len(tasks), streams, steps, len(COLUMNS))

    def _tabular(
        self,
        env: Env,
        tasks: Tensor,
        seeds: Sequence[int],
        streams: int,
        steps: int,
        advance: Callable[[int], object] | None,
    ) -> np.ndarray:
        """The same where states and actions are Discrete and each episode has an end of its own."""
        space, action = env.schema.observation, env.schema.action
        assert isinstance(space, Discrete) and isinstance(action, Discrete)
        stream_seeds = [item_seed(seed, STREAMS, stream) for seed in seeds for stream in range(streams)]
        envs = env.start(tasks.repeat_interleave(streams, dim=0), stream_seeds)
        count = len(stream_seeds)
        highest = self.bonus / (1 - self.discount)
        values = torch.full((count, space.n, action.n), highest)
        visits = torch.zeros_like(values)
        row = torch.arange(count)
        recorder = Recorder(env.schema, count, steps)
        generators = np.array(stream_seeds, dtype=np.uint64)
        ahead = np.array([DRAWS], dtype=np.uint64) * GOLDEN
        for step in range(steps):
            uniforms = seeded_uniforms(generators.tolist(), DRAWS)
            generators += ahead
            states = envs.states
            actions = self._choose(values[row, states], uniforms, self.epsilon_at(step / steps))
            taken = envs.step(actions)
            recorder.add(step, states, actions, taken)
            visits[row, states, actions] += 1
            imagined = self.bonus / visits[row, states, actions].sqrt()
            later = values[row, taken.next_states].amax(dim=1) * ~taken.terminated
            target = taken.rewards + imagined + self.discount * later
            values[row, states, actions] += self.rate * (target - values[row, states, actions])
            if advance:
                advance(count)
        return recorder.histories.reshape(len(tasks), streams, steps)

    def epsilon_at(self, progress: float) -> float:
        """Share of random actions after a share of the history."""
        return self.epsilon + (self.last_epsilon - self.epsilon) * min(1.0, progress / self.explored)

    def _choose(self, values: Tensor, uniforms: Tensor, epsilon: float) -> Tensor:
        """Actions (B,) by values (B, A): one of the best, or any with probability epsilon; `uniforms` is (2, B)."""
        allowed = (values == values.amax(dim=1, keepdim=True)) | (uniforms[0] < epsilon)[:, None]
        rank = (uniforms[1] * allowed.sum(dim=1)).long()
        return (allowed.cumsum(dim=1) > rank[:, None]).int().argmax(dim=1)
