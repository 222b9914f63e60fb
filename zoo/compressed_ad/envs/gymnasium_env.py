"""Environments that gymnasium or a package of the user registers, as families of tasks."""

from __future__ import annotations

import difflib
import importlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.registry import allowed_packages, component_names
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.base import Env, Transition
from zoo.compressed_ad.envs.spaces import Box, Discrete, Schema, Space, tensor_dtype

SEEDS = 2**31  # environments are reset with seeds below
RESET_STREAM = np.uint64(0xD1B54A32D192ED03)  # separates seeds of resets from random actions of the same seed
_TEXT = re.compile(r"[\w +-]{0,64}")  # no path, no dotted name, no address
_NAME = re.compile(r"[A-Za-z]\w*")


class GymnasiumEnv(Env):
    """An environment of gymnasium; a task is a set of keyword arguments of `gymnasium.make`.

    Each episode begins by a reset with a seed made of the history's seed and the number of the episode. An environment
    that draws from elsewhere than this seed (`self.np_random`) gives other histories each time.

    Args:
        id: registered with gymnasium, or by a package of yours that `--allow-import` names.
        tasks: keyword arguments of each task, e.g. `[{"goal": 1}, {"goal": 2}]`; one task without any by default.
            Values are numbers, booleans, null and texts of at most 64 letters, digits, spaces, "_", "+" and "-", or
            lists and mappings of them: no path and no dotted name. A number n stands for `{"seed": 0}` to
            `{"seed": n - 1}`, where the environment samples its task by an argument `seed`.
        arguments: keyword arguments of every task.
        limit: most steps of an episode; that of the registration by default.
        oracle: best return, for reports; by default the highest reward in all steps.
        reward: lowest and highest reward of a step, where they are known.

    Raises:
        ValueError: for an id that is not registered, other spaces than Discrete (from 0) and Box (actions in one are
            floats), arguments that the environment does not take, a task that is there twice, or a missing limit.
    """

    def __init__(
        self,
        id: str,
        tasks: list[dict[str, Any]] | int | None = None,
        arguments: dict[str, Any] | None = None,
        limit: int | None = None,
        oracle: float | None = None,
        reward: list[float] | None = None,
    ) -> None:
        _import_registration(id)
        self.name = self.id = id
        each_task = [{"seed": seed} for seed in range(tasks)] if isinstance(tasks, int) else tasks
        self.task_arguments = [{}] if each_task is None else [dict(each) for each in each_task]
        self.described_tasks = tasks if isinstance(tasks, int) else self.task_arguments
        self.shared_arguments = dict(arguments or {})
        self.oracle, self.reward = oracle, reward
        check_at_least(1, tasks=len(self.task_arguments))
        _check_values(self.task_arguments, f"tasks of {id}")
        texts = [json.dumps(each, sort_keys=True) for each in self.task_arguments]
        if len(set(texts)) < len(texts):
            raise ValueError(f"tasks of {id} has {max(texts, key=texts.count)} twice: it would be trained and held out")
        _check_values(self.shared_arguments, f"arguments of {id}")
        self.task_sizes = (len(self.task_arguments),)
        self.limit = gymnasium.spec(id).max_episode_steps if limit is None else limit
        if self.limit is None:
            raise ValueError(f"{id} has no limit of steps: give the environment's limit")
        check_at_least(1, limit=self.limit)
        if reward is not None and len(reward) != 2:
            raise ValueError(f"reward of {id} is the lowest and the highest of a step, found {reward}")
        env = self.make(0)
        env.close()
        bounds = (-math.inf, math.inf) if reward is None else (float(reward[0]), float(reward[1]))
        observation, action = _check_space(env.observation_space, id), _check_space(env.action_space, id)
        if isinstance(action, Box) and action.dtype.kind != "f":
            raise ValueError(f"actions of {id} are whole numbers in a Box ({action}): a wrapper makes them Discrete")
        self.schema = Schema(observation, action, self.limit, reward=bounds)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        return {
            "id": self.id,
            "tasks": self.described_tasks,
            "arguments": self.shared_arguments,
            "limit": self.limit,
            "oracle": self.oracle,
            "reward": self.reward,
        }

    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> SeededVectorEnv:
        """Build environments of these tasks; seeds are needed."""
        rows = self.check_tasks(tasks)
        if seeds is None or len(seeds) != len(rows):
            raise ValueError(f"{len(rows)} environments of {self.id} need as many seeds: env.start(tasks, seeds)")
        return SeededVectorEnv(self, rows, seeds)

    def oracle_returns(self, tasks: Tensor) -> Tensor:
        """Return `oracle` (B,) float64, or the most that rewards allow, NaN where that is unknown."""
        if self.oracle is None:
            return super().oracle_returns(tasks)
        return torch.full((len(tasks),), self.oracle, dtype=torch.float64)

    def make(self, task: int) -> gymnasium.Env[Any, Any]:
        """Build the environment of a task."""
        arguments = {**self.shared_arguments, **self.task_arguments[task]}
        try:
            return gymnasium.make(self.id, max_episode_steps=self.limit, **arguments)
        except (TypeError, KeyError, gymnasium.error.Error) as error:
            raise ValueError(f"{self.id} cannot be made with {arguments}: {error}") from error


class SeededVectorEnv:
    """Environments of gymnasium that step one after the other; see `BatchedEnvs`."""

    def __init__(self, env: GymnasiumEnv, tasks: Tensor, seeds: Sequence[int]) -> None:
        self.env = env
        self.tasks = tasks
        makers = [partial(env.make, task) for task in tasks[:, 0].tolist()]
        try:
            self.vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
        except RuntimeError as error:
            raise ValueError(f"tasks of {env.id} have different spaces ({error})") from error
        self._seeds = np.array(seeds, dtype=np.uint64) ^ RESET_STREAM
        self._episodes = np.zeros(len(tasks), dtype=np.uint64)
        self.states = self._reset(np.ones(len(tasks), dtype=bool))

    def _reset(self, ended: np.ndarray) -> Tensor:
        """Begin an episode where one ended; returns all observations."""
        uniforms = sample_uniforms((self._seeds + self._episodes * SPLITMIX_INCREMENT).tolist(), 1)[0]
        self._episodes[ended] += np.uint64(1)
        seeds: list[int | None] = [int(each * SEEDS) for each in uniforms.tolist()]
        observations, _ = self.vector.reset(seed=seeds, options={"reset_mask": ended})
        return torch.from_numpy(observations).to(self.tasks.device)

    def step(self, actions: Tensor) -> Transition:
        """Act in every environment, by (B, *action)."""
        space = self.env.schema.action
        expected = (len(self.tasks), *(space.shape or ()))
        if tuple(actions.shape) != expected:
            raise ValueError(f"{len(self.tasks)} environments take actions {expected}, found {tuple(actions.shape)}")
        values: Any = list(self.vector.step(actions.to(tensor_dtype(space)).cpu().numpy())[:4])
        device = self.tasks.device
        values[1] = values[1].astype(np.float32)  # some devices have no float64
        states, rewards, terminated, truncated = (torch.from_numpy(each).to(device) for each in values)
        ended = values[2] | values[3]
        self.states = self._reset(ended) if ended.any() else states
        return Transition(states, rewards, terminated, truncated)

    def optimal_actions(self) -> Tensor:
        """Refuse: they are unknown."""
        raise ValueError(f"the best actions of {self.env.id} are unknown: name a demonstrator (--epsilon.demonstrator)")


def _import_registration(id: str) -> None:
    """Find the registration of an id, in the admitted packages too; never by gymnasium's `module:id`, which imports."""
    for package in allowed_packages():
        if id not in gymnasium.registry:
            importlib.import_module(package)
    if id not in gymnasium.registry:
        names = [*gymnasium.registry, *(name.rpartition(".")[2] for name in component_names("zoo.compressed_ad"))]
        nearest = ", ".join(difflib.get_close_matches(str(id), names, n=3, cutoff=0.4))
        raise ValueError(
            f"id is {id!r}, which is not registered with gymnasium; nearest: {nearest or 'none'}. A package that "
            "registers its own is named by --allow-import"
        )


def _check_space(space: Any, id: str) -> Space:
    if isinstance(space, Box) or (isinstance(space, Discrete) and space.start == 0):
        return space
    raise ValueError(
        f"a space of {id} is {space}: expected Box, or Discrete from 0; gymnasium.wrappers, such as FlattenObservation,"
        " in an environment of yours make it one"
    )


def _check_values(values: Any, path: str) -> None:
    """Refuse what a constructor might take for a path, a module or an address."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            if not _NAME.fullmatch(str(key)):
                raise ValueError(f"{path}: the key {key!r} is no name of an argument")
            _check_values(value, f"{path}, {key}")
    elif isinstance(values, list | tuple):
        for value in values:
            _check_values(value, path)
    elif isinstance(values, str):
        if not _TEXT.fullmatch(values):
            raise ValueError(
                f"{path}: {values[:80]!r}, expected a text of at most 64 letters, digits, spaces, '_', '+' and '-'"
            )
    elif values is not None and not isinstance(values, bool | int | float):
        raise ValueError(f"{path}: {values!r}, expected numbers, booleans and short texts")
