"""Simple learners that see the same history as an agent and no more: where they do as well, the tasks are trivial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.spaces import Discrete, count_random_numbers, random_actions, tensor_dtype

DISCOUNT = 0.95  # of what an n-gram's action is followed by
GRAMS = {"bandit per state": 1, "2-gram": 2, "3-gram": 3}


class Learner(ABC):
    """Chooses actions, as arrays, by its own history."""

    def __init__(self) -> None:
        self.episode: list[tuple[Any, Any, float]] = []  # observation, action, reward

    @abstractmethod
    def act(self, state: Any) -> Any | None:
        """Return the action in a state; None for a random one."""

    def observe(self, state: Any, action: Any, reward: float, done: bool) -> None:
        """Append a step, and learn from an episode that ended."""
        self.episode.append((state, action, reward))
        if done:
            self.learn([reward for *_, reward in self.episode])
            self.episode = []

    @abstractmethod
    def learn(self, rewards: Sequence[float]) -> None:
        """Learn from `episode` and its rewards."""


class Replay(Learner):
    """Repeats the actions of the last episode that succeeded, or with `best` of the one that earned most.

    An episode succeeded when it earned more than the mean of those before it. Before the first success, and after the
    end of the episode that it repeats, it acts at random.
    """

    def __init__(self, best: bool) -> None:
        super().__init__()
        self.best = best
        self._returns: list[float] = []
        self._actions: list[Any] = []
        self._highest = -np.inf

    def act(self, state: Any) -> Any | None:
        """Return the action at the same step of the episode that is repeated."""
        time = len(self.episode)
        return self._actions[time] if time < len(self._actions) else None

    def learn(self, rewards: Sequence[float]) -> None:
        """Save the episode where it succeeded."""
        total = sum(rewards)
        better = (bool(self._returns) and total > np.mean(self._returns)) or (not self._returns and total > 0)
        if better and (not self.best or total > self._highest):
            self._actions, self._highest = [action for _, action, _ in self.episode], total
        self._returns.append(total)


class Gram(Learner):
    """Takes the best action so far after the same n - 1 last steps (observation, action, reward) in the same state.

    An action's value is the mean of the discounted rewards that followed in the episode. Untried actions come first; a
    new n-gram falls back on the next shorter one. A `length` n of 1 is a bandit for each state.
    """

    def __init__(self, length: int, actions: int) -> None:
        super().__init__()
        self.length, self.actions = length, actions
        self._sums: dict[tuple[Any, ...], np.ndarray] = defaultdict(lambda: np.zeros((2, actions)))

    def act(self, state: Any) -> Any | None:
        """Return the best action by the longest n-gram so far; None where several are equal."""
        for length in range(self.length, 0, -1):
            key = self._key(length, len(self.episode), state)
            if key is None or key not in self._sums:
                continue
            total, count = self._sums[key]
            if not count.all():
                return None if not count.any() else int(count.argmin())
            means = total / count
            best = np.flatnonzero(means == means.max())
            return int(best[0]) if len(best) == 1 else None
        return None

    def learn(self, rewards: Sequence[float]) -> None:
        """Add the discounted rewards after each action of the episode."""
        values, later = [], 0.0
        for reward in reversed(rewards):
            later = reward + DISCOUNT * later
            values.append(later)
        for time, ((state, action, _), value) in enumerate(zip(self.episode, reversed(values), strict=True)):
            for length in range(1, self.length + 1):
                key = self._key(length, time, state)
                if key is not None:
                    self._sums[key][:, int(action)] += value, 1

    def _key(self, length: int, time: int, state: Any) -> tuple[Any, ...] | None:
        """The n-gram before a step of this episode; None where the episode is too short."""
        if time < length - 1:
            return None
        before = self.episode[time - length + 1 : time]
        return (*((np.asarray(s).tobytes(), int(a), r) for s, a, r in before), np.asarray(state).tobytes())


def simple_learners(env: Env) -> dict[str, Callable[[], Learner]]:
    """Return constructors of the learners for an environment, by name: n-grams need Discrete actions."""
    learners: dict[str, Callable[[], Learner]] = {
        "last success": lambda: Replay(False),
        "best of history": lambda: Replay(True),
    }
    if isinstance(env.schema.action, Discrete):
        learners |= {name: partial(Gram, length, int(env.schema.action.n)) for name, length in GRAMS.items()}
    return learners


def simple_returns(env: Env, name: str, tasks: Tensor, seeds: Sequence[int], episodes: int) -> np.ndarray:
    """Return what a learner of `simple_learners` earns in tasks (B, F) with seeds (B,), (B, episodes) float64."""
    check_at_least(1, episodes=episodes)
    space, envs = env.schema.action, env.start(tasks.cpu(), seeds)
    learners = [simple_learners(env)[name]() for _ in seeds]
    sums, finished = np.zeros(len(seeds)), [[] for _ in seeds]  # type: ignore[var-annotated]
    shifted, width = np.array(seeds, dtype=np.uint64), count_random_numbers(space)
    while min(map(len, finished)) < episodes:
        random = random_actions(space, sample_uniforms(shifted.tolist(), width)).numpy()
        shifted = shifted + np.array(width, dtype=np.uint64) * SPLITMIX_INCREMENT
        states = envs.states.numpy()
        choices = [learner.act(state) for learner, state in zip(learners, states, strict=True)]
        actions = np.stack([random[row] if each is None else each for row, each in enumerate(choices)])
        transition = envs.step(torch.from_numpy(actions).to(tensor_dtype(space)))
        rewards, dones = transition.rewards.double().numpy(), transition.dones.numpy()
        sums += rewards
        for row, learner in enumerate(learners):
            learner.observe(states[row], actions[row], float(rewards[row]), bool(dones[row]))
            if dones[row]:
                finished[row].append(sums[row])
                sums[row] = 0
    return np.array([row[:episodes] for row in finished])
