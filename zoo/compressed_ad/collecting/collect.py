"""Collecting learning histories into a store: in shards, by several processes, and again after a kill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from zoo.common.atomic_files import delete_temporary_files
from zoo.common.build import build
from zoo.common.checks import check_at_least, check_within
from zoo.common.configs import load_run_config
from zoo.common.environment import process_rank
from zoo.common.journal import pending_items
from zoo.common.locks import writes_into
from zoo.compressed_ad.collecting.base import Algorithm, HistoryRequest
from zoo.compressed_ad.collecting.ppo import PPO
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.data.history import HistoryStore
from zoo.compressed_ad.data.history_writer import HistoryWriter, Recorder, keep_every_nth_episode
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.baselines import oracle_return
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.envs.gymnasium_env import GymnasiumEnv
from zoo.training.resume import item_seed


@dataclass(frozen=True)
class EpsilonAlgorithm(Algorithm):
    """The demonstrator whose share of random actions falls, see `EpsilonCurriculum`.

    Args:
        best: share of optimal actions at the end, 0 to 1.
        greedy_after: share of the history after which it is reached.
        demonstrator: dotted path of a function of an admitted package, from states and tasks to actions.
    """

    name: ClassVar[str] = "epsilon"

    best: float = 1.0
    greedy_after: float = 0.9
    demonstrator: str | None = None

    def check(self, env: Env, steps: int) -> None:
        """Refuse settings out of range, other steps than multiples of the limit, and unknown best actions."""
        if steps % env.schema.limit:
            raise ValueError(f"epsilon makes a multiple of {env.schema.limit} steps (the limit), not {steps}")
        self._curriculum(env, steps)
        if self.demonstrator is None:
            env.start(env.tasks()[:1], [0]).optimal_actions()

    def histories(self, request: HistoryRequest) -> np.ndarray:
        """Make the histories of a request."""
        recorder = Recorder(request.env.schema, request.size, request.steps)
        curriculum = self._curriculum(request.env, request.steps)
        for step in curriculum.run(request.rows(), request.stream_seeds(0)):
            recorder.add(*step)
            request.advance(request.size)
        return request.by_task(recorder.histories)

    def _curriculum(self, env: Env, steps: int) -> EpsilonCurriculum:
        episodes = steps // env.schema.limit
        return EpsilonCurriculum(env, episodes, self.best, self.greedy_after, self.demonstrator)


ALGORITHMS: dict[str, type[Algorithm]] = {each.name: each for each in (PPO, QLearning, EpsilonAlgorithm)}


def collect(
    env: Env,
    output: Path,
    algorithm: Algorithm,
    episodes: int = 52,
    streams: int = 100,
    tasks: Sequence[int] | None = None,
    seed: int = 42,
    split_seed: int = 0,
    train_share: float = 0.9,
    shard_size: int = 9,
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
    steps: int | None = None,
    episode_stride: int = 1,
) -> dict[str, int]:
    """Write histories of tasks; a second call makes what is missing or corrupt. Arguments as of `collect_histories`.

    Process `rank` makes every world_size-th shard. Returns the number of tasks `made`, and `skipped` as complete.
    """
    check_at_least(1, episodes=episodes, episode_stride=episode_stride)
    check_within(0, world_size - 1, rank=rank)
    steps = episodes * env.schema.limit if steps is None else steps
    learned = steps * episode_stride
    if env.schema.fixed and steps % env.schema.limit:
        raise ValueError(f"steps {steps}: episodes of {env.name} have {env.schema.limit} steps each, give a multiple")
    if episode_stride > 1 and not env.schema.fixed:
        learned += env.schema.limit  # see `keep_every_nth_episode`
    algorithm.check(env, learned)
    _check_split(env, split_seed, train_share)
    numbers = list(range(len(env.tasks()))) if tasks is None else list(tasks)
    if isinstance(env, GymnasiumEnv):  # a task that cannot be made is refused before anything is written
        env.start(torch.tensor(numbers)[:, None], [0] * len(numbers))
    writer = HistoryWriter(
        output, env, numbers, streams, steps, shard_size, algorithm.describe(), seed, split_seed, train_share,
        episode_stride,
    )  # fmt: skip
    if world_size == 1:
        delete_temporary_files(writer.folder)
    shards = list(enumerate(writer.shards))
    pending = pending_items(shards, lambda shard: writer.finished(shard[0]), rank, world_size)
    made = sum(len(part) for _, part in pending)
    with _single_thread(), Progress(disable=not progress) as bar:
        row = bar.add_task(f"histories in {output.name}", total=made * streams * learned)
        for number, part in pending:
            seeds = [item_seed(seed, 0, task) for task in part]
            advance = partial(bar.advance, row)
            histories = algorithm.histories(HistoryRequest(env, env.tasks()[part], seeds, streams, learned, advance))
            writer.write(number, keep_every_nth_episode(histories, steps, episode_stride))
    return {"made": made, "skipped": sum(len(part) for _, part in shards[rank::world_size]) - made}


def _check_split(env: Env, split_seed: int, train_share: float) -> None:
    train, test = env.split(split_seed, train_share)
    if not len(train) or not len(test):
        raise ValueError(
            f"{env.name}: {len(train)} tasks to train on and {len(test)} held out, zoo fit needs both: give another "
            "--train_share or, for one of gymnasium, --env GymnasiumEnv --env.id ID --env.tasks '[{...}, {...}]'"
        )


@contextmanager
def _single_thread() -> Iterator[None]:
    """Compute in one thread: more are slower for so small operations, and round otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def last_returns(store: HistoryStore) -> Tensor:
    """Return what each task's last episode earned, mean over streams, (n,) float64."""
    means = []
    for task in range(len(store)):
        rows = [row[~np.isnan(row)] for row in store.returns(task)]
        means.append(np.mean([row[-1] for row in rows if len(row)] or [np.nan]))
    return torch.tensor(means, dtype=torch.float64)


def recipe_env(recipe: Path) -> Env:
    """Build the environment of a recipe of histories; ValueError when it names none."""
    data = load_run_config(recipe).get("data")
    arguments = data.get("init_args") if isinstance(data, dict) else None
    if not isinstance(arguments, dict) or not arguments.get("env"):
        raise ValueError(f"{recipe}: no data.init_args.env, so it trains on no histories")
    env: Env = build(arguments["env"], Env)
    return env


@writes_into("output", shared=True)
def collect_histories(
    output: Path,
    env: Env | str | None = None,
    algorithm: Literal["ppo", "q_learning", "epsilon"] = "ppo",
    ppo: PPO | None = None,
    q_learning: QLearning | None = None,
    epsilon: EpsilonAlgorithm | None = None,
    episodes: int = 52,
    streams: int = 100,
    tasks: list[int] | None = None,
    seed: int = 42,
    split_seed: int = 0,
    train_share: float = 0.9,
    shard_size: int = 9,
    steps: int | None = None,
    episode_stride: int = 1,
    recipe: Path | None = None,
) -> None:
    """Write the histories of an algorithm that learns tasks, to distil it.

    Each history is the same for any shard size or number of processes. The same call resumes after a kill.

    Args:
        output: folder to write.
        env: the original's dark room when not given, e.g. --env DarkKeyToDoor --env.horizon 50; of gymnasium --env
            GymnasiumEnv --env.id FrozenLake-v1 --env.tasks '[{"is_slippery": true}, {"is_slippery": false}]'.
        algorithm: that learns: ppo; q_learning for grids and Discrete spaces; epsilon, which is a demonstrator.
        ppo: its settings, e.g. --ppo.rollout_steps 50.
        q_learning: its settings, e.g. --q_learning.bonus 0.1.
        epsilon: its settings.
        episodes: of each history; where their lengths differ, the steps are those of so many of the longest.
        streams: histories of each task.
        tasks: numbers of the tasks in row-major order; all when not given.
        seed: of the histories; those of a task depend on it and on the task alone.
        split_seed: of the split into training and test tasks, which the index notes.
        train_share: share of the tasks that are to be trained on.
        shard_size: tasks that are learned together and saved as one file.
        steps: of each history, in place of episodes.
        episode_stride: keep one of so many episodes; the algorithm learns for as many times longer.
        recipe: of a training on histories; its `data.init_args.env` is taken in place of `env`.
    """
    settings = {"ppo": ppo, "q_learning": q_learning, "epsilon": epsilon}[algorithm] or ALGORITHMS[algorithm]()
    rank, world_size = process_rank()
    counts = collect(
        _choose_env(env, recipe), output, settings, episodes, streams, tasks, seed, split_seed, train_share, shard_size,
        rank, world_size, steps=steps, episode_stride=episode_stride,
    )  # fmt: skip
    print(f"{output}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    if world_size == 1:
        _print_returns(HistoryStore(output))


def _print_returns(store: HistoryStore) -> None:
    last, best = last_returns(store).mean(), oracle_return(store.env, store.tasks).mean()
    oracle = "unknown" if best.isnan() else f"{best:.2f}"
    print(f"return of the last episode, mean over {len(store)} tasks: {last:.2f}, the best possible {oracle}")


def _choose_env(env: Env | str | None, recipe: Path | None) -> Env:
    if recipe is not None and env is not None:
        raise ValueError("both env and recipe are given: leave one out")
    if recipe is not None:
        return recipe_env(recipe)
    return Darkroom() if env is None else GymnasiumEnv(env) if isinstance(env, str) else env
