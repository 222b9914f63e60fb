"""Environments that the tests register with gymnasium as a user's package does, and demonstrators."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

PACKAGE = __name__  # for --allow-import


class Counter(gymnasium.Env[np.ndarray, np.ndarray]):
    """Observation: steps since the reset, and the length; reward: the action's first number, with a sign.

    Terminates after `length` steps.
    """

    def __init__(self, length: int = 3, sign: int = 1, dtype: str = "float32", render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, 1000, (2,), np.float32)
        self.action_space = spaces.Box(-2, 2, (2,), np.dtype(dtype).type)
        self.length, self.sign = length, sign
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observation(), self.sign * float(action[0]), self.count == self.length, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.count, self.length], dtype=np.float32)


class Corridor(gymnasium.Env[int, int]):
    """States 0 to 3, actions 0 (left) and 1 (right); begins where the seed says, pays at the right end."""

    def __init__(self, mirrored: bool = False, start: int = 0, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Discrete(4, start=start)
        self.action_space = spaces.Discrete(2)
        self.mirrored = mirrored

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(3))
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        right = (action == 1) != self.mirrored
        self.place = min(max(self.place + (1 if right else -1), 0), 3)
        return self.place, float(self.place == 3), self.place == 3, False, {}


gymnasium.register("Counter-v0", entry_point=Counter)
gymnasium.register("Sampled-v0", entry_point=lambda seed, render_mode=None: Counter(seed + 1))
gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=6)


def forward(states: Tensor, tasks: Tensor) -> Tensor:
    """The best actions of counters, of which the later half has a negative sign."""
    return torch.stack([torch.where(tasks[:, 0] >= 4, -2.0, 2.0), torch.zeros(len(tasks))], 1)
