"""Environments of gymnasium and of the user's own package as families of tasks (extra `rl`)."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.registry import get_function
from zoo.common.tensors import SPLITMIX_INCREMENT, sample_uniforms
from zoo.compressed_ad.envs.base import Env, Transition, tensor_dtype
from zoo.compressed_ad.envs.schema import Discrete, Schema, Space, box

MAKE, SET, ACTIONS = "make.", "set.", "actions"
SEEDS = 2**31  # environments are reset with seeds below
RESET_STREAM = np.uint64(0xD1B54A32D192ED03)  # keeps seeds of resets apart from the actions' draws of the same seed
_TEXT = re.compile(r"[\w +-]{0,64}")  # no path, no dotted name, no address
_NAME = re.compile(r"[A-Za-z]\w*")


def require_gymnasium() -> Any:
    """The package gymnasium.

    Raises:
        ImportError: without the extra `rl`.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError("environments of gymnasium need the extra rl: pip install 'zoo[rl]'") from error
    return gymnasium


class GymnasiumEnv(Env):
    """A gymnasium environment, changed for each task.

    Features say what differs between tasks; every combination of their values is a task, whose numbers are those of
    the values, the features in alphabetical order. The key of a feature says what it changes:

        make.NAME   a keyword argument of the environment, e.g. `make.desc: [[SFF, FFF, FFG], [SHF, FFF, FFG]]`
        set.NAME    an attribute, set after creation, e.g. `set.length: [0.3, 0.5, 0.8]`; what CartPole derives from
                    its attributes is computed anew
        actions     Discrete: what each action really does, e.g. `[[0, 1], [1, 0]]`; Box: a factor for each number of
                    an action, e.g. `[[1, 1], [-1, 1]]`, between bounds that are the same on both sides

    Single environments are stepped one after the other. Each episode begins by a reset with a seed of its own, made of
    the pair's seed and the number of the episode, so histories are exact whatever runs beside them. A class that is a
    `gymnasium.vector.VectorEnv` is made with `num_envs` and, of features, lists of `num_envs` values, see `Vector`.

    Args:
        id: registered with gymnasium, or the dotted path of a class of an admitted package (`--allow-import`); never
            gymnasium's `module:id`, which would import the module.
        features: keys as above, each with the list of its values; at least one with two values. Values here and in
            `arguments` are numbers, booleans, null and texts of at most 64 letters, digits, spaces, "_", "+" and "-",
            or lists and mappings of them: no path and no dotted name.
        arguments: keyword arguments of every task.
        limit: most steps of an episode; that of the registered environment by default.
        oracle: return of who knows the task, for reports; by default the highest reward in all steps, where that is
            known.
        reward: lowest and highest reward of a step, where they are known.

    Raises:
        ImportError: without the extra `rl`.
        ValueError: for an id that is not registered, spaces other than Discrete and Box, a feature without a key or
            values as above, or a missing limit.
    """

    def __init__(
        self,
        id: str,
        features: dict[str, list[Any]],
        arguments: dict[str, Any] | None = None,
        limit: int | None = None,
        oracle: float | None = None,
        reward: list[float] | None = None,
    ) -> None:
        gymnasium = require_gymnasium()
        self.name = self.id = id
        self.features = dict(sorted(features.items()))  # files do not keep an order
        self.fixed = dict(arguments or {})
        self.limit, self.oracle, self.reward = limit, oracle, reward
        _check_features(self.features, id)
        _check_values(self.fixed, f"arguments of {id}")
        self.task_sizes = tuple(len(values) for values in self.features.values())
        if math.prod(self.task_sizes) < 2:
            raise ValueError(f"features of {id}: give at least two tasks, of which one can be held out")
        self._class = _find_class(id)
        self.vectorised = isinstance(self._class, type) and issubclass(self._class, gymnasium.vector.VectorEnv)
        first = self.check_tasks(torch.zeros(1, len(self.task_sizes), dtype=torch.int64))
        made = self.make_vector(first) if self.vectorised else self.make(first[0].tolist())
        spaces = ("single_observation_space", "single_action_space") if self.vectorised else (
            "observation_space", "action_space"
        )  # fmt: skip
        (state, self.first_state), (action, self.first_action) = (
            read_space(getattr(made, name), f"{name} of {id}") for name in spaces
        )
        spec = getattr(made, "spec", None)
        made.close()
        if limit is None:
            limit = getattr(spec, "max_episode_steps", None)
            if limit is None:
                raise ValueError(f"{id} has no limit of steps: give the environment's limit")
        check_at_least(1, limit=limit)
        bounds = (-math.inf, math.inf) if reward is None else (float(reward[0]), float(reward[1]))
        self.schema = Schema(state, action, limit, reward=bounds)
        self._meanings = None if ACTIONS not in self.features else _meanings(action, self.features[ACTIONS])

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values."""
        features = {key: list(values) for key, values in self.features.items()}
        return {
            "id": self.id,
            "features": features,
            "arguments": self.fixed,
            "limit": self.limit,
            "oracle": self.oracle,
            "reward": self.reward,
        }

    def task_names(self) -> list[str]:
        """The features' keys."""
        return list(self.features)

    def start(self, tasks: Tensor, seeds: Sequence[int] | None = None) -> Loop | Vector:
        """Environments of these tasks, seeded as the class says; seeds are needed."""
        rows = self.check_tasks(tasks)
        if seeds is None or len(seeds) != len(rows):
            raise ValueError(f"{len(rows)} environments of {self.id} need as many seeds: env.start(tasks, seeds)")
        return Vector(self, rows, seeds) if self.vectorised else Loop(self, rows, seeds)

    def oracle_returns(self, tasks: Tensor) -> Tensor:
        """The given return (B,) float64, or the most that rewards allow, NaN where that is unknown."""
        if self.oracle is None:
            return super().oracle_returns(tasks)
        return torch.full((len(tasks),), self.oracle, dtype=torch.float64)

    def make(self, task: Sequence[int]) -> Any:
        """One environment of a task, with its limit of steps."""
        changed = self._changes(task)
        wanted = {key.removeprefix(MAKE): value for key, value in changed.items() if key.startswith(MAKE)}
        arguments = {**self.fixed, **wanted}
        if self._class is None:
            made = require_gymnasium().make(self.id, **arguments)
        else:
            made = self._class(**arguments)
        if self.limit is not None:
            made = require_gymnasium().wrappers.TimeLimit(made, self.limit)
        inner = made.unwrapped
        for key, value in changed.items():
            if key.startswith(SET):
                name = key.removeprefix(SET)
                if not hasattr(inner, name):
                    raise ValueError(f"features: {self.id} has no attribute {name!r} to set")
                setattr(inner, name, value)
        if hasattr(inner, "polemass_length") and hasattr(inner, "total_mass"):  # CartPole's derived attributes
            inner.total_mass = inner.masspole + inner.masscart
            inner.polemass_length = inner.masspole * inner.length
        return made

    def make_vector(self, tasks: Tensor) -> Any:
        """The user's own vector environment for tasks (B, F)."""
        changed = [self._changes(task) for task in tasks.tolist()]
        if any(key.startswith(SET) for key in self.features):
            raise ValueError(f"{self.id} is a vector environment: set. features need single ones; use make.")
        wanted = {key.removeprefix(MAKE): [row[key] for row in changed] for key in self.features if key != ACTIONS}
        assert self._class is not None
        return self._class(num_envs=len(tasks), **self.fixed, **wanted)

    def meant(self, tasks: Tensor, actions: np.ndarray) -> np.ndarray:
        """What actions (B, *action), as the policy calls them, are to the environments of tasks (B, F)."""
        if self._meanings is None:
            return actions + self.first_action if isinstance(self.schema.action, Discrete) else actions
        meanings = self._meanings[tasks[:, list(self.features).index(ACTIONS)].numpy()]
        if isinstance(self.schema.action, Discrete):
            return meanings[np.arange(len(actions)), actions] + self.first_action
        return (actions * meanings).astype(actions.dtype)

    def _changes(self, task: Sequence[int]) -> dict[str, Any]:
        return {key: values[place] for (key, values), place in zip(self.features.items(), task, strict=True)}


def _find_class(id: str) -> Any:
    """The class of an admitted package that a dotted path names; None for an id that gymnasium has registered."""
    registered = require_gymnasium().registry
    if id in registered:
        return None
    if "." in id and ":" not in id:
        return get_function(id)
    nearest = ", ".join(difflib.get_close_matches(id, registered, n=3, cutoff=0.4))
    raise ValueError(
        f"id is {id!r}, which is not registered with gymnasium; nearest: {nearest or 'none'}. A package that registers "
        "its own is named by --allow-import"
    )


def _check_features(features: Mapping[str, Any], id: str) -> None:
    for key, values in features.items():
        kind, _, name = key.partition(".")
        if key != ACTIONS and f"{kind}." not in (MAKE, SET):
            raise ValueError(f"features of {id}: a key is make.NAME, set.NAME or actions, found {key!r}")
        if key != ACTIONS and not _NAME.fullmatch(name):
            raise ValueError(f"features of {id}: {key} names no argument or public attribute of the environment itself")
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(f"features of {id}: {key} needs a list of values, found {values!r}")
        _check_values(values, f"features of {id}: {key}")


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


class _Batch:
    """What both ways of stepping have in common."""

    def __init__(self, env: GymnasiumEnv, tasks: Tensor) -> None:
        self.env = env
        self.tasks = tasks
        self._cpu_tasks = tasks.cpu()

    def _tensor(self, values: Any) -> Tensor:
        space = self.env.schema.observation
        array = np.asarray(values, dtype=space.dtype) - (self.env.first_state if isinstance(space, Discrete) else 0)
        return torch.from_numpy(np.array(array, dtype=space.dtype)).to(self.tasks.device)

    def _meant(self, actions: Tensor) -> np.ndarray:
        space = self.env.schema.action
        expected = (len(self.tasks), *space.shape)
        if tuple(actions.shape) != expected:
            raise ValueError(f"{len(self.tasks)} environments take actions {expected}, found {tuple(actions.shape)}")
        given = actions.to(tensor_dtype(space)).cpu().numpy()
        return self.env.meant(self._cpu_tasks, given)

    def _transition(self, states: Any, rewards: Any, terminated: Any, truncated: Any) -> Transition:
        device = self.tasks.device
        flags = [torch.from_numpy(np.array(flag, dtype=bool)).to(device) for flag in (terminated, truncated)]
        earned = torch.from_numpy(np.array(rewards, dtype=np.float32)).to(device)
        return Transition(self._tensor(states), earned, *flags)

    def optimal_actions(self) -> Tensor:
        """Refused: nobody knows them."""
        raise ValueError(
            f"nobody knows the best actions of {self.env.id}: name a demonstrator (--epsilon.demonstrator)"
        )


class Loop(_Batch):
    """Single environments in lock-step; one whose episode ends is reset in the same step."""

    def __init__(self, env: GymnasiumEnv, tasks: Tensor, seeds: Sequence[int]) -> None:
        super().__init__(env, tasks)
        self._envs = [env.make(task) for task in tasks.tolist()]
        self._seeds = [int(seed) ^ int(RESET_STREAM) for seed in seeds]
        self._episodes = [0] * len(self._envs)
        self.states = self._tensor(np.stack([self._reset(number) for number in range(len(self._envs))]))

    def _reset(self, number: int) -> Any:
        seed = (self._seeds[number] + self._episodes[number] * int(SPLITMIX_INCREMENT)) % 2**64
        self._episodes[number] += 1
        observation, _ = self._envs[number].reset(seed=int(sample_uniforms([seed], 1)[0, 0] * SEEDS))
        return np.array(observation)

    def step(self, actions: Tensor) -> Transition:
        """Act in every environment, by (B, *action)."""
        reached, begun, rewards, flags = [], [], [], []
        for number, (env, action) in enumerate(zip(self._envs, self._meant(actions), strict=True)):
            observation, reward, terminated, truncated, _ = env.step(action)
            reached.append(np.array(observation))
            rewards.append(reward)
            flags.append((terminated, truncated))
            begun.append(self._reset(number) if terminated or truncated else reached[-1])
        self.states = self._tensor(np.stack(begun))
        return self._transition(np.stack(reached), rewards, *np.array(flags, dtype=bool).T)


class Vector(_Batch):
    """A vector environment of gymnasium; no step is without effect, whatever its mode of autoreset.

    Environments that reset in the step after an episode, or not at all, are reset at once by `reset_mask`, with a seed
    for each episode. Those that reset in the same step have their true successors in `final_obs`.
    """

    def __init__(self, env: GymnasiumEnv, tasks: Tensor, seeds: Sequence[int]) -> None:
        super().__init__(env, tasks)
        gymnasium = require_gymnasium()
        modes = gymnasium.vector.AutoresetMode
        self._vector = env.make_vector(self._cpu_tasks)
        mode = self._vector.metadata.get("autoreset_mode", modes.NEXT_STEP)
        self._same_step = modes(mode) is modes.SAME_STEP
        loops = (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv)
        self._takes_mask = modes(mode) is modes.DISABLED or isinstance(self._vector, loops)
        self._seeds = np.array(seeds, dtype=np.uint64) ^ RESET_STREAM
        self._episodes = np.zeros(len(tasks), dtype=np.uint64)
        self.states = self._tensor(self._reset(np.ones(len(tasks), dtype=bool)))

    def _reset(self, ended: np.ndarray) -> Any:
        """Begin an episode where one ended; returns all observations."""
        drawn = sample_uniforms((self._seeds + self._episodes * SPLITMIX_INCREMENT).tolist(), 1)[0]
        seeds = [int(each * SEEDS) for each in drawn.tolist()]
        self._episodes[ended] += np.uint64(1)
        if ended.all():
            return self._vector.reset(seed=seeds)[0]
        if not self._takes_mask:
            raise ValueError(
                f"{self.env.id} resets in the step after an episode, and its episodes end apart: give it autoreset "
                "SAME_STEP, or DISABLED with reset_mask (gymnasium.vector.AutoresetMode)"
            )
        return self._vector.reset(seed=seeds, options={"reset_mask": ended})[0]

    def step(self, actions: Tensor) -> Transition:
        """Act in every environment, by (B, *action)."""
        observations, rewards, terminated, truncated, infos = self._vector.step(self._meant(actions))
        reached = np.array(observations)
        ended = np.array(terminated, dtype=bool) | np.array(truncated, dtype=bool)
        begun = reached.copy()
        if ended.any():
            if self._same_step:
                for row in np.flatnonzero(ended):
                    reached[row] = infos["final_obs"][row]
            else:
                begun = self._reset(ended)
        self.states = self._tensor(begun)
        return self._transition(reached, rewards, terminated, truncated)


def read_space(space: Any, name: str) -> tuple[Space, int]:
    """A space of gymnasium as one of ours, and the first number of a Discrete one.

    Raises:
        ValueError: for other spaces than Discrete and Box.
    """
    spaces = require_gymnasium().spaces
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n)), int(space.start)
    if isinstance(space, spaces.Box):
        return box(space.shape, space.dtype.name, space.low, space.high), 0
    raise ValueError(
        f"{name} is {space}: expected Discrete or Box; gymnasium.wrappers.FlattenObservation or TransformAction in a "
        "class of yours makes it one"
    )


def _meanings(space: Space, values: Sequence[Any]) -> np.ndarray:
    """Permutations (n, A) int64 of Discrete actions, or factors (n, *action) of those in a Box."""
    if isinstance(space, Discrete):
        for value in values:
            if sorted(value) != list(range(space.n)):
                raise ValueError(f"features: actions are permutations of 0 to {space.n - 1}, found {value}")
        return np.array(values, dtype=np.int64)
    factors = np.array(values, dtype=np.float64)
    low, high = space.limits()
    if factors.shape[1:] != space.shape or not np.isin(abs(factors), (0, 1)).all() or low != [-each for each in high]:
        raise ValueError(
            f"features: actions are factors -1, 0 or 1 of shape {space.shape}, and the bounds of the actions are the "
            f"same on both sides; found {values} and bounds {low} to {high}"
        )
    return factors
