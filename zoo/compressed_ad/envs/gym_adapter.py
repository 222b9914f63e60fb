"""The grids as gymnasium environments (extra `rl`), for algorithms of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from zoo.compressed_ad.envs.grids import ENVS, GridEnv, Step

if TYPE_CHECKING:
    import gymnasium

IDS = {name: f"zoo/{family.__name__}-v0" for name, family in ENVS.items()}


def register() -> None:
    """Make the environments known to gymnasium: `gymnasium.make("zoo/Darkroom-v0", task=(5, 6))`.

    `gymnasium.make_vec("zoo/Darkroom-v0", tasks=[(5, 6), (0, 0)])` steps many environments in one go. Both take the
    arguments of the environment as well (`grid_size`, `horizon`, ...). The ids are in `IDS`.
    """
    gymnasium = require_gymnasium()
    for name, identifier in IDS.items():
        if identifier not in gymnasium.registry:
            gymnasium.register(
                identifier,
                entry_point=f"{__name__}:make_single",
                vector_entry_point=f"{__name__}:make_vector",
                kwargs={"name": name},
            )


def make_single(name: str, task: Sequence[int], **arguments: Any) -> gymnasium.Env[Any, Any]:
    """One environment.

    An observation is (row, column), int32. The end of an episode is reported as both terminated and truncated, as the
    original does. Where a goal pays once an episode, `info` says whether all goals have been found (`success`) and
    whether they had been before this step (`already_success`).

    Args:
        name: of the environment, see `ENVS`.
        task: (F,), a row of `Env.tasks()`.
    """
    base = require_gymnasium().Env
    return type("SingleEnv", (_SingleEnv, base), {})(_family(name)(**arguments), task)


def make_vector(
    name: str, tasks: Sequence[Sequence[int]] | Tensor, num_envs: int | None = None, **arguments: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Many environments in lock-step; see `make_single` for what they report.

    The step that ends an episode returns the first observation of the next one; the last observation of the ended
    one is `info["final_obs"]` (gymnasium's autoreset mode "same step").

    Args:
        name: of the environment, see `ENVS`.
        tasks: (B, F), rows of `Env.tasks()`; a task may repeat.
        num_envs: number of environments: the tasks are repeated in turn up to it. As many as tasks by default.
    """
    base = require_gymnasium().vector.VectorEnv
    rows = torch.as_tensor(tasks)
    # gymnasium.make_vec asks for one environment by default.
    count = len(rows) if num_envs in (None, 1) else num_envs
    if count < len(rows):
        raise ValueError(f"{len(rows)} tasks need at least as many environments, not num_envs {count}")
    chosen = rows[torch.arange(count) % len(rows)]
    return type("VectorEnv", (_VectorEnv, base), {})(_family(name)(**arguments), chosen)


def _family(name: str) -> type[GridEnv]:
    if name not in ENVS:
        raise ValueError(f"an environment's name is one of {', '.join(ENVS)}, found {name!r}")
    return ENVS[name]


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


class _Adapter:
    """What one environment and many have in common. The gymnasium base class is mixed in when one is made."""

    np_random: np.random.Generator

    def _prepare(self, env: GridEnv, tasks: Tensor) -> None:
        from gymnasium import spaces

        self.env = env
        self._envs = env.start(tasks, [0] * len(tasks))
        self._drawn = False
        self._goals = env.goals(tasks).shape[1]
        self._found = torch.zeros(len(tasks), dtype=torch.int64)
        self._observations = spaces.Box(0, env.grid_size - 1, (2,), np.int32)
        self._actions = spaces.Discrete(env.num_actions)

    def _reset(self, seed: int | None) -> np.ndarray:
        if self.env.random_start and (seed is not None or not self._drawn):
            tasks = self._envs.tasks
            self._envs = self.env.start(tasks, self.np_random.integers(2**63, size=len(tasks)).tolist())
            self._drawn = True
        self._found.zero_()
        return _observed(self._envs.reset())

    def _step(self, actions: Tensor) -> tuple[Step, dict[str, np.ndarray]]:
        step = self._envs.step(actions)
        if self.env.repeats:
            return step, {}
        before = self._found
        self._found = before + step.rewards
        successes = {
            "success": (self._found == self._goals).numpy(),
            "already_success": (before == self._goals).numpy(),
        }
        if step.done:
            self._found = torch.zeros_like(self._found)
        return step, successes


class _SingleEnv(_Adapter):
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - gymnasium's own declaration

    def __init__(self, env: GridEnv, task: Sequence[int]) -> None:
        self._prepare(env, torch.as_tensor([list(task)]))
        self.observation_space = self._observations
        self.action_space = self._actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)  # type: ignore[misc]
        return self._reset(seed)[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        step, info = self._step(torch.as_tensor([int(action)]))
        found = {key: bool(value[0]) for key, value in info.items()}
        return _observed(step.next_states)[0], float(step.rewards[0]), step.done, step.done, found


class _VectorEnv(_Adapter):
    def __init__(self, env: GridEnv, tasks: Tensor) -> None:
        from gymnasium.vector import AutoresetMode
        from gymnasium.vector.utils import batch_space

        self._prepare(env, tasks)
        self.num_envs = len(tasks)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = self._observations
        self.single_action_space = self._actions
        self.observation_space = batch_space(self._observations, self.num_envs)
        self.action_space = batch_space(self._actions, self.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)  # type: ignore[misc]
        return self._reset(seed), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        step, found = self._step(torch.as_tensor(actions))
        info: dict[str, Any] = {}
        for key, value in found.items():
            info |= {key: value, f"_{key}": np.ones(self.num_envs, dtype=bool)}
        observations = _observed(step.next_states)
        if step.done:
            info |= {"final_obs": observations, "_final_obs": np.ones(self.num_envs, dtype=bool)}
            observations = _observed(self._envs.states)
        done = np.full(self.num_envs, step.done)
        return observations, step.rewards.double().numpy(), done, done.copy(), info


def _observed(states: Tensor) -> np.ndarray:
    return states.numpy().astype(np.int32)
