"""Simple learners that see the same history as an agent and no more: where they do as well, the tasks are trivial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.base import Env, random_actions, random_numbers, tensor_dtype
from zoo.compressed_ad.envs.schema import Discrete

DISCOUNT = 0.95  # of what an n-gram's action is followed by
GRAMS = {"bandit per state": 1, "2-gram": 2, "3-gram": 3}


class Learner(ABC):
    """One agent's way to choose by its own history. Actions are arrays; what it leaves open is drawn at random."""

    def __init__(self) -> None:
        self.episode: list[tuple[Any, Any, float]] = []  # observation, action, reward

    @abstractmethod
    def act(self, state: Any) -> Any | None:
        """The action in a state; None for a random one."""

    def observe(self, state: Any, action: Any, reward: float, done: bool) -> None:
        """Take in a step."""
        self.episode.append((state, action, reward))
        if done:
            self.learn([reward for *_, reward in self.episode])
            self.episode = []

    @abstractmethod
    def learn(self, rewards: Sequence[float]) -> None:
        """Take in the rewards of the episode that ended."""


class Replay(Learner):
    """Repeats the actions of an episode: of the last that succeeded, or of the best one.

    An episode succeeded when it earned more than the mean of those before it. Before the first success, and beyond the
    end of the episode that it repeats, it acts at random.

    Args:
        best: repeat the success that earned most, not the last one.
    """

    def __init__(self, best: bool) -> None:
        super().__init__()
        self.best = best
        self._returns: list[float] = []
        self._kept: list[Any] = []
        self._earned = -np.inf

    def act(self, state: Any) -> Any | None:
        """The action at the same step of the episode that is repeated."""
        time = len(self.episode)
        return self._kept[time] if time < len(self._kept) else None

    def learn(self, rewards: Sequence[float]) -> None:
        """Keep the episode where it succeeded."""
        earned = sum(rewards)
        better = (bool(self._returns) and earned > np.mean(self._returns)) or (not self._returns and earned > 0)
        if better and (not self.best or earned > self._earned):
            self._kept, self._earned = [action for _, action, _ in self.episode], earned
        self._returns.append(earned)


class Gram(Learner):
    """Takes what paid best so far after the same n - 1 last steps (observation, action, reward) in the same state.

    What an action paid is the mean of the discounted rewards that followed in the episode. An action that was not tried
    in that situation is tried first; with an n-gram that has not been seen, it falls back on the next shorter one.

    Args:
        length: n; 1 is a bandit for each state.
        actions: how many there are.
    """

    def __init__(self, length: int, actions: int) -> None:
        super().__init__()
        self.length, self.actions = length, actions
        self._sums: dict[tuple[Any, ...], np.ndarray] = defaultdict(lambda: np.zeros((2, actions)))

    def act(self, state: Any) -> Any | None:
        """The best action by the longest n-gram that is known; None where several are as good."""
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
        """Count what followed each action of the episode."""
        followed, later = [], 0.0
        for reward in reversed(rewards):
            later = reward + DISCOUNT * later
            followed.append(later)
        for time, ((state, action, _), value) in enumerate(zip(self.episode, reversed(followed), strict=True)):
            for length in range(1, self.length + 1):
                key = self._key(length, time, state)
                if key is not None:
                    self._sums[key][:, int(action)] += value, 1

    def _key(self, length: int, time: int, state: Any) -> tuple[Any, ...] | None:
        """The n-gram before a step of this episode; None where the episode is too young."""
        if time < length - 1:
            return None
        before = self.episode[time - length + 1 : time]
        return (*((np.asarray(s).tobytes(), int(a), r) for s, a, r in before), np.asarray(state).tobytes())


def simple_learners(env: Env) -> dict[str, Any]:
    """What makes each learner that an environment allows, by name: n-grams need Discrete actions."""
    found: dict[str, Any] = {"last success": lambda: Replay(False), "best of history": lambda: Replay(True)}
    space = env.schema.action
    if isinstance(space, Discrete):
        count = space.n
        found |= {name: (lambda n=length: Gram(n, count)) for name, length in GRAMS.items()}
    return found


def simple_returns(env: Env, name: str, tasks: Tensor, seeds: Sequence[int], episodes: int) -> np.ndarray:
    """Returns (B, episodes) float64 of a simple learner; those that end episodes sooner go on meanwhile.

    Args:
        name: of the learner, see `simple_learners`.
        tasks: (B, F) int64.
        seeds: (B,), 0 to 2**64 - 1, of the environments and of random actions.
    """
    check_at_least(1, episodes=episodes)
    space, envs = env.schema.action, env.start(tasks.cpu(), seeds)
    learners = [simple_learners(env)[name]() for _ in seeds]
    earned, finished = np.zeros(len(seeds)), [[] for _ in seeds]  # type: ignore[var-annotated]
    shifted, width = np.array(seeds, dtype=np.uint64), random_numbers(space)
    while min(map(len, finished)) < episodes:
        drawn = random_actions(space, sample_uniforms(shifted.tolist(), width)).numpy()
        shifted = shifted + np.array(width, dtype=np.uint64) * SPLITMIX_INCREMENT
        states = envs.states.numpy()
        chosen = [learner.act(state) for learner, state in zip(learners, states, strict=True)]
        actions = np.stack([drawn[row] if each is None else each for row, each in enumerate(chosen)])
        taken = envs.step(torch.from_numpy(actions).to(tensor_dtype(space)))
        rewards, dones = taken.rewards.double().numpy(), taken.dones.numpy()
        earned += rewards
        for row, learner in enumerate(learners):
            learner.observe(states[row], actions[row], float(rewards[row]), bool(dones[row]))
            if dones[row]:
                finished[row].append(earned[row])
                earned[row] = 0
    return np.array([row[:episodes] for row in finished])
