"""Inference of in-context reinforcement learning: an agent that learns tasks while it acts in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least
from zoo.common.foreign_files import load_json
from zoo.common.reports import encode_gif
from zoo.compressed_ad.envs.base import Env, build_env
from zoo.compressed_ad.envs.baselines import explorer_returns, oracle_return, random_return
from zoo.compressed_ad.envs.explorer import can_explore
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.rendering import (
    attention_figure,
    attention_weights,
    episode_frames,
    learning_curve,
    reconstruction_figure,
)
from zoo.compressed_ad.rollout import ContextPlayer, ValidationRollout, rollout
from zoo.runs.export import CALL_USAGE
from zoo.runs.inference.base import Inference, table_output
from zoo.runs.inference.forms import InputField, Output, Progress
from zoo.training.resume import item_seed

CHUNK = 1024  # pairs of task and seed that act together
MAX_ROOMS, MAX_EPISODES, MAX_HORIZON = 4, 100, 50  # of one form
FRAMES_PER_SECOND = 4
ACTING = -9  # epoch of the keys of these seeds, see `item_seed`; no training has it
REQUEST_KEYS = ("tasks", "seeds", "episodes")


class Agent(Inference):
    """Acts in tasks that it does not know, and learns from them while its weights stay as they are.

    A request file (`.json`) names tasks and numbers; the result is a `.npy` of returns (tasks, episodes), the mean over
    seeds:

        {"tasks": [[0, 3], [4, 4]], "seeds": 5, "episodes": 50}

    `tasks` are rows of `env.tasks()` (Darkroom: row and column of the goal). `zoo evaluate compressed_ad` knows which
    were held out, and takes all.

    Args:
        policy: trained; its weights stay as they are.
        env: the family of tasks that it acts in.
        episodes: of each pair of task and seed, one after the other, the context never cleared.
        greedy: take the most likely action; it then stops exploring, and is usually worse.
    """

    input_suffixes = (".json",)
    output_suffix = ".npy"

    def __init__(self, policy: InContextPolicy, env: Env, episodes: int = 100, greedy: bool = False) -> None:
        check_at_least(1, episodes=episodes)
        policy.check(env)
        self.policy = policy
        self.env = env
        self.episodes = episodes
        self.greedy = greedy

    def __call__(
        self, tasks: np.ndarray | Tensor | Sequence[Sequence[int]], seeds: Sequence[int], episodes: int | None = None
    ) -> np.ndarray:
        """Return what each episode earns, (n, episodes) float32.

        Args:
            tasks: (n, F) integers, rows of `env.tasks()`; a task may repeat.
            seeds: (n,), 0 to 2**64 - 1; the same task and seed give the same episodes.
        """
        rows = torch.as_tensor(np.asarray(tasks))
        number = self.episodes if episodes is None else episodes
        parts = [
            rollout(self.policy, self.env, rows[at : at + CHUNK], seeds[at : at + CHUNK], number, self.greedy).returns
            for at in range(0, max(len(rows), 1), CHUNK)
        ]
        return torch.cat(parts).numpy()

    def draw_samples(
        self, rollouts: Sequence[ValidationRollout], compressed: Steps | None, attended: Steps | None, last: bool
    ) -> Iterator[tuple[str, str, Any]]:
        """Yield samples of a validation: kind, name, and a figure or frames.

        Args:
            rollouts: whose returns rise in context; `last` adds an animation of some.
            compressed: histories of one compression, of which the first is reconstructed.
            attended: histories, of which the first shows the attention of the last block.
        """
        if rollouts:
            tasks, returns = (torch.cat(each) for each in list(zip(*rollouts, strict=True))[:2])
            yield "figure", "val/learning", learning_curve(self.env, tasks, returns)
            first, _, rows, steps = rollouts[0]
            if last and steps is not None and isinstance(self.env, GridEnv):
                yield "animation", "val/episodes", episode_frames(self.env, first[rows], steps)
        if compressed is not None:
            yield "figure", "val/reconstruction", reconstruction_figure(self.policy, compressed)
        if attended is not None:
            weights, latents = attention_weights(self.policy, Steps(*(field[:1] for field in attended)))
            yield "figure", "val/attention", attention_figure(weights[0], latents)

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Act as a request file says; see the class."""
        tasks, seeds, episodes = self._read_request(source)
        returns = self(*pairs(self.env, tasks, seeds), episodes).reshape(len(tasks), len(seeds), episodes)
        result = returns.mean(1)
        write_atomic(target, lambda file: np.save(file, result))
        first, last = float(result[:, 0].mean()), float(result[:, -1].mean())
        counts = {"tasks": len(tasks), "seeds": len(seeds), "episodes": episodes}
        return {**counts, "first_return": first, "last_return": last}

    def fields(self) -> tuple[InputField, ...]:
        """Return fields of the task, the episodes and the environment's settings."""
        help_text = "sampled by the seed when empty"
        fields = [
            InputField(f"task_{index}", name, "int", None, (0, size - 1), help=help_text, optional=True)
            for index, (name, size) in enumerate(zip(self.env.task_names(), self.env.task_sizes, strict=True))
        ]
        fields += [
            InputField("rooms", "Rooms", "int", 2, (1, MAX_ROOMS), help="shown side by side"),
            InputField("episodes", "Episodes", "int", min(20, self.episodes), (1, MAX_EPISODES)),
            InputField("seed", "Seed", "int", 0, (0, 2**31)),
            InputField(
                "greedy", "Most likely action", "bool", self.greedy, help="it then stops exploring", advanced=True
            ),
        ]
        for name, value in self.env.arguments().items() if isinstance(self.env, GridEnv) else ():
            kind = "bool" if isinstance(value, bool) else "int" if name == "horizon" else None
            limits = (1, max(MAX_HORIZON, value)) if kind == "int" else (None, None)
            if kind is not None:
                label = name.replace("_", " ").capitalize()
                fields.append(InputField(name, label, kind, value, limits, help="of the environment", advanced=True))
        return tuple(fields)

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """Act in rooms side by side, and show the returns, and of grids the first and the last episode."""
        env = self.env
        if isinstance(env, GridEnv):
            env = build_env({name: values.get(name, value) for name, value in env.describe().items()})
        rows = self._sample_tasks(env, values)
        seeds = [item_seed(values["seed"], ACTING, number) for number in range(len(rows))]
        parts = []
        record = isinstance(env, GridEnv)
        with ContextPlayer(self.policy, env, rows, seeds, values["greedy"], record=record) as player:
            for episode in range(1, values["episodes"] + 1):
                parts.append(player.run_episodes(1))
                progress(0.9 * episode / values["episodes"], f"episode {episode}")
        returns, outputs = torch.cat(parts, 1), []
        if isinstance(env, GridEnv):
            steps = Steps(*(field.cpu() for field in Steps.cat(player.steps)))
            frames = np.stack(episode_frames(env, rows, steps))
            write_atomic(folder / "replay.gif", lambda file: file.write(encode_gif(frames, FRAMES_PER_SECOND)))
            outputs.append(Output("animation", "First episode (above) and last (below)", "replay.gif"))
        label = "goal" if outputs else "task"
        facts = {
            "environment": env.name,
            **{f"{label} of room {number}": ", ".join(map(str, row)) for number, row in enumerate(rows.tolist(), 1)},
            "first return": float(returns[:, 0].mean()),
            "last return": float(returns[:, -1].mean()),
            "compressions": len(player.compressions),
        }
        return [
            *outputs,
            Output("chart", "Return of each episode", data=_curves(env, rows, returns)),
            table_output(facts),
        ]

    def _sample_tasks(self, env: Env, values: Mapping[str, Any]) -> Tensor:
        """Sample the tasks (rooms, F) of a form, and override them by its fields."""
        tasks = env.tasks()
        order = torch.randperm(len(tasks), generator=torch.Generator().manual_seed(values["seed"]))
        rows = tasks[order[torch.arange(values["rooms"]) % len(tasks)]]
        for index in range(rows.shape[1]):
            if values[f"task_{index}"] is not None:
                rows[:, index] = values[f"task_{index}"]
        return rows

    @property
    def usage(self) -> str:
        """Python lines that act in ten episodes of the first task."""
        return CALL_USAGE.format(f"{self.env.tasks()[:1].tolist()}, seeds=[0], episodes=10")

    def dry_run(self) -> str:
        """Act in one episode of the first task."""
        return f"one episode with a return of {self(self.env.tasks()[:1], [0], 1)[0, 0]:g}"

    def write_example(self, stem: Path) -> Path:
        """Write a request of two tasks, two seeds and two episodes."""
        path = stem.with_name(f"{stem.name}.json")
        request = {"tasks": self.env.tasks()[:2].tolist(), "seeds": 2, "episodes": 2}
        write_atomic(path, lambda file: file.write(json.dumps(request).encode()))
        return path

    def _read_request(self, path: Path) -> tuple[Tensor, Sequence[int], int]:
        try:
            request = load_json(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: not a JSON file ({error})") from error
        if not isinstance(request, dict) or not request.keys() <= set(REQUEST_KEYS):
            keys = ", ".join(request) if isinstance(request, dict) else type(request).__name__
            raise ValueError(f"{path}: expected an object with keys of {', '.join(REQUEST_KEYS)}, found {keys}")
        try:
            episodes = _read_count("episodes", request.get("episodes", self.episodes))
            seeds = range(_read_count("seeds", request.get("seeds", 1)))
            return _requested_tasks(self.env, request), seeds, episodes
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _curves(env: Env, rows: Tensor, returns: Tensor) -> dict[str, Any]:
    """Chart of returns (B, episodes) by room, with the baselines."""
    count = returns.shape[1]
    named = {f"room {number}": row for number, row in enumerate(returns, 1)}
    if len(rows) > 1:
        named["mean"] = returns.mean(0)
    if not (best := oracle_return(env, rows).mean()).isnan():
        named["oracle"] = best.expand(count)
    if can_explore(env):
        named["informed explorer"] = explorer_returns(env, count, rows, range(len(rows))).mean(0)
    named["random"] = random_return(env, rows).mean().expand(count)
    curves = {name: [[at, round(value, 4)] for at, value in enumerate(row.tolist(), 1)] for name, row in named.items()}
    return {"x": "episode", "y": "return", "curves": curves}


def pairs(env: Env, tasks: Tensor, seeds: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Pair each task with each seed: tasks (n * m, F) and as many seeds, which depend on task and seed alone."""
    rows = np.ravel_multi_index(tuple(tasks.numpy().T), env.task_sizes)
    return tasks.repeat_interleave(len(seeds), 0), [item_seed(seed, ACTING, int(row)) for row in rows for seed in seeds]


def _requested_tasks(env: Env, request: Mapping[str, Any]) -> Tensor:
    if "tasks" not in request:
        raise ValueError("tasks are missing")
    try:
        return env.check_tasks(torch.tensor(request["tasks"]))
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"tasks: {error}") from error


def _read_count(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{key} is at least 1, found {value!r}")
    return value
