"""Environments that count: what the tests register as a user's own package."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

MODES = {mode.value: mode for mode in AutoresetMode}


class Counter(gymnasium.Env[np.ndarray, np.ndarray]):
    """Observation: steps since the reset, and the first one's start; reward: the action's first number.

    Terminates after `length` steps, is truncated after `cut`.
    """

    def __init__(self, length: int = 3, cut: int = 100) -> None:
        self.observation_space = spaces.Box(0, 1000, (2,), np.float32)
        self.action_space = spaces.Box(-2, 2, (2,), np.float32)
        self.length, self.cut = length, cut
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._seen(), float(action[0]), self.count == self.length, self.count == self.cut, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.count, self.length], dtype=np.float32)


class SyncCounters(SyncVectorEnv):
    """Counters of different lengths, one after the other."""

    def __init__(self, num_envs: int, length: list[int], mode: str, cut: int = 100) -> None:
        super().__init__([_made(each, cut) for each in length], autoreset_mode=MODES[mode])


class AsyncCounters(AsyncVectorEnv):
    """The same in processes."""

    def __init__(self, num_envs: int, length: list[int], mode: str, cut: int = 100) -> None:
        super().__init__([_made(each, cut) for each in length], autoreset_mode=MODES[mode])


class Stubborn(VectorEnv):
    """Resets in the next step and knows no mask."""

    def __init__(self, num_envs: int, length: list[int]) -> None:
        self.inner = SyncCounters(num_envs, length, "NextStep", 5)
        self.num_envs, self.metadata = num_envs, self.inner.metadata
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.inner.reset(seed=seed)

    def step(self, actions: np.ndarray) -> Any:
        return self.inner.step(actions)


class Corridor(gymnasium.Env[int, int]):
    """States 5 to 8, actions 1 (left) and 2 (right); begins where the seed says, pays at the right end."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(4, start=5)
        self.action_space = spaces.Discrete(2, start=1)
        self.mirrored = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(3))
        return 5 + self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        right = (action == 2) != self.mirrored
        self.place = min(max(self.place + (1 if right else -1), 0), 3)
        return 5 + self.place, float(self.place == 3), self.place == 3, False, {}


def rightward(states: Tensor, tasks: Tensor) -> Tensor:
    """The best actions in a corridor whose actions are swapped (first feature 1) or not."""
    return torch.where(tasks[:, 0] == 1, 0, 1).expand(len(states))


def _made(length: int, cut: int) -> Any:
    return lambda: Counter(length, cut)


def forward(states: Tensor, tasks: Tensor) -> Tensor:
    """The best actions of counters, whose first number may be flipped (first feature 1)."""
    return torch.stack([2.0 - 4.0 * tasks[:, 0], torch.zeros(len(tasks))], 1)
