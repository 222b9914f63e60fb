"""Tasks of AnyMDP (package xenoverse) as an environment of gymnasium: `--allow-import scripts.evidence.anymdp`.

The id is `AnyMDP-v0`, a task is `{seed: n}`, the seed of the package's sampler. Tasks are read from the file of
`scripts/prepare_anymdp.py`, without the package. Its own environment draws from the clock; this one draws from the seed
of `reset`, so that histories can be made again.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ID, LIMIT, NAME = "AnyMDP-v0", 20, "tasks.npz"
FIELDS = ("transition", "reward", "noise", "start")
LEARNER = {"bonus": 0.3, "epsilon": 0.0, "last_epsilon": 0.0, "rate": 0.7, "discount": 0.8}
SOURCE = ["--algorithm=q_learning", *(f"--q_learning.{key}={value}" for key, value in LEARNER.items()), "--steps=400"]
WARM_UP, STEPS = 1000, 2500  # of the net with a sliding window; then of that and of the one with latents
SPLIT = ["--train_share=0.9", "--shard_size=128"]


def folder() -> Path:
    """Return the folder of the tasks below ZOO_DATA."""
    return Path(os.environ.get("ZOO_DATA", "data")) / "anymdp"


@cache
def load_tasks() -> dict[str, np.ndarray]:
    """Return the fields of all N tasks with S states and A actions, float64.

    `transition` (N, S, A, S): probability of the next state, 0 in states that end the episode. `reward`, `noise`, of
    the same shape: mean and standard deviation of the reward. `start` (N, S): probability of the first state.
    """
    with np.load(folder() / NAME, allow_pickle=False) as file:
        return {name: file[name] for name in FIELDS}


def returns(transition: np.ndarray, reward: np.ndarray, start: np.ndarray, limit: int = LIMIT) -> tuple[Any, Any]:
    """Return the expected return of an episode of random actions and of the best ones, (...), by dynamic programming.

    The best ones know how many of `limit` steps are left, which no state shows: an upper bound. Arrays (..., S, A, S),
    the same, (..., S).
    """
    expected = (transition * reward).sum(-1)  # (..., S, A)
    random, best = np.zeros_like(start), np.zeros_like(start)
    for _ in range(limit):
        random = (expected + np.einsum("...ijk,...k->...ij", transition, random)).mean(-1)
        best = (expected + np.einsum("...ijk,...k->...ij", transition, best)).max(-1)
    return (random * start).sum(-1), (best * start).sum(-1)


class AnyMDP(gymnasium.Env[Any, Any]):
    """The task of a seed; IndexError when the file has none."""

    def __init__(self, seed: int, render_mode: str | None = None) -> None:
        transition, self.reward, self.noise, start = (load_tasks()[name][seed] for name in FIELDS)
        self.ends = transition.sum((1, 2)) == 0
        self.next, self.first = transition.cumsum(-1), start.cumsum()
        self.observation_space = gymnasium.spaces.Discrete(len(start))
        self.action_space = gymnasium.spaces.Discrete(transition.shape[1])
        self.state = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.state = self._draw(self.first)
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Act; an episode ends in a state that ends it, or by gymnasium's limit of steps."""
        before, self.state = self.state, self._draw(self.next[self.state, action])
        place = before, action, self.state
        reward = self.reward[place] + self.noise[place] * self.np_random.standard_normal()
        return self.state, float(reward), bool(self.ends[self.state]), False, {}

    def _draw(self, cumulative: np.ndarray) -> int:
        return int(cumulative.searchsorted(self.np_random.random() * cumulative[-1], side="right"))


gymnasium.register(ID, f"{__name__}:AnyMDP", max_episode_steps=LIMIT, disable_env_checker=True, order_enforce=False)
