"""Inference of in-context reinforcement learning: an agent that learns tasks while it acts in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic import write_atomic
from zoo.common.ranges import at_least, one_of
from zoo.common.reading.text import load_json
from zoo.compressed_ad.envs.grids import Env
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.rollout import check_fit, rollout
from zoo.runs.inference import Inference
from zoo.training.data import item_seed

Split = Literal["train", "test", "all"]
SPLITS = ("train", "test", "all")
SPLIT_SEED, TRAIN_SHARE = 0, 0.9  # the recipes'
CHUNK = 1024  # pairs of task and seed in lock-step
PLAYING = -9  # epoch of the keys of these seeds, see `item_seed`; no training has it
REQUEST_KEYS = ("tasks", "split", "split_seed", "train_share", "seeds", "episodes")


class Agent(Inference):
    """Plays episodes in tasks that it does not know, and learns from them while its weights stay as they are.

    A request file (`.json`) names tasks and numbers:

        {"tasks": [[0, 3], [4, 4]], "seeds": 5, "episodes": 50}

    `tasks` are as the environment counts them (Darkroom: row and column of the goal); `"split": "train"`, `"test"` or
    `"all"` in their place takes the tasks of a split, with `split_seed` and `train_share` as in training. `seeds` is a
    number of seeds (0, 1, ...) or a list of them. The result is a `.npy` of returns (tasks, episodes), the mean over
    seeds.

    Args:
        episodes: of each pair of task and seed, one after the other, the context never cleared.
        greedy: take the most likely action; it then stops exploring, and is usually worse.
    """

    input_suffixes = (".json",)
    output_suffix = ".npy"

    def __init__(self, policy: InContextPolicy, env: Env, episodes: int = 100, greedy: bool = False) -> None:
        at_least(1, episodes=episodes)
        check_fit(policy, env)
        self.policy = policy
        self.env = env
        self.episodes = episodes
        self.greedy = greedy

    def __call__(
        self, tasks: np.ndarray | Tensor | Sequence[Sequence[int]], seeds: Sequence[int], episodes: int | None = None
    ) -> np.ndarray:
        """Play: the return of each episode (n, episodes), float32.

        Args:
            tasks: (n, F) integers, as `env.tasks()` has them; a task may repeat.
            seeds: (n,), 0 to 2**64 - 1; the same task and seed give the same episodes.
        """
        rows = torch.as_tensor(np.asarray(tasks), dtype=torch.int64)
        number = self.episodes if episodes is None else episodes
        parts = [
            rollout(self.policy, self.env, rows[at : at + CHUNK], seeds[at : at + CHUNK], number, self.greedy).returns
            for at in range(0, max(len(rows), 1), CHUNK)
        ]
        return torch.cat(parts).numpy()

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Play what a request file asks for; see the class."""
        tasks, seeds, episodes = self._read_request(source)
        returns = self(*pairs(self.env, tasks, seeds), episodes).reshape(len(tasks), len(seeds), episodes)
        result = returns.mean(1)
        write_atomic(target, lambda file: np.save(file, result))
        first, last = float(result[:, 0].mean()), float(result[:, -1].mean())
        counts = {"tasks": len(tasks), "seeds": len(seeds), "episodes": episodes}
        return {**counts, "first_return": first, "last_return": last}

    def dry_run(self) -> str:
        """Play one episode of the first task."""
        return f"one episode with a return of {self(self.env.tasks()[:1], [0], 1)[0, 0]:g}"

    def write_example(self, stem: Path) -> Path:
        """Write a request of two tasks, two seeds and two episodes."""
        path = stem.with_name(f"{stem.name}.json")
        request = {"tasks": self.env.tasks()[:2].tolist(), "seeds": 2, "episodes": 2}
        write_atomic(path, lambda file: file.write(json.dumps(request).encode()))
        return path

    def _read_request(self, path: Path) -> tuple[Tensor, list[int], int]:
        try:
            request = load_json(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: not a JSON file ({error})") from error
        if not isinstance(request, dict) or not request.keys() <= set(REQUEST_KEYS):
            found = ", ".join(request) if isinstance(request, dict) else type(request).__name__
            raise ValueError(f"{path}: expected an object with keys of {', '.join(REQUEST_KEYS)}, found {found}")
        try:
            episodes = _count("episodes", request.get("episodes", self.episodes))
            return _asked_tasks(self.env, request), _seeds(request.get("seeds", 1)), episodes
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def pairs(env: Env, tasks: Tensor, seeds: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Pair each task with each seed, task by task: tasks (n * m, F) and as many seeds for `rollout`.

    The seed of a pair depends on task and seed alone.
    """
    rows = np.ravel_multi_index(tuple(tasks.numpy().T), env.task_sizes)
    return tasks.repeat_interleave(len(seeds), 0), [
        item_seed(seed, PLAYING, int(row)) for row in rows for seed in seeds
    ]


def tasks_of(env: Env, split: str, split_seed: int = SPLIT_SEED, train_share: float = TRAIN_SHARE) -> Tensor:
    """The tasks (n, F) of a split.

    Args:
        split: "train", "test" or "all".
        split_seed: of the order in which tasks were divided.
        train_share: of the tasks that are for training.
    """
    one_of(SPLITS, split=split)
    tasks = env.tasks()
    if split != "all":
        train, test = env.split(split_seed, train_share)
        tasks = tasks[train if split == "train" else test]
    if not len(tasks):
        raise ValueError(f"the split {split!r} of {env.name} is empty with train_share {train_share}")
    return tasks


def _asked_tasks(env: Env, request: Mapping[str, Any]) -> Tensor:
    if ("tasks" in request) == ("split" in request):
        raise ValueError("expected either tasks or split")
    if "split" in request:
        settings = {key: request[key] for key in ("split_seed", "train_share") if key in request}
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in settings.values()):
            raise ValueError(f"split_seed and train_share are numbers, found {settings}")
        return tasks_of(env, str(request["split"]), **settings)
    sizes, rows = env.task_sizes, request["tasks"]
    for row in rows if isinstance(rows, list) and rows else [rows]:
        whole = isinstance(row, list) and len(row) == len(sizes) and all(type(value) is int for value in row)
        if not whole or not all(0 <= value < size for value, size in zip(row, sizes, strict=True)):
            raise ValueError(f"tasks of {env.name} are lists of {len(sizes)} numbers below {list(sizes)}, found {row}")
    return torch.tensor(rows, dtype=torch.int64)


def _seeds(value: Any) -> list[int]:
    if isinstance(value, list) and value and all(type(seed) is int for seed in value):
        return value
    return list(range(_count("seeds (a number, or a list of whole numbers)", value)))


def _count(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{key} is at least 1, found {value!r}")
    return value
