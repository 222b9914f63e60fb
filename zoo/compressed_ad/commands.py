"""Tools of CompressedAD alone; each imports what it needs when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from zoo.common.locks import writes_into

if TYPE_CHECKING:
    from zoo.compressed_ad.collecting.collect import Epsilon
    from zoo.compressed_ad.collecting.ppo import PPO
    from zoo.compressed_ad.collecting.q_learning import QLearning
    from zoo.compressed_ad.envs.grids import Env


@writes_into("output")
def evaluate(
    *,
    run: Path,
    output: Path,
    episodes: int = 100,
    seeds: int = 20,
    split: Literal["train", "test", "all"] = "test",
    split_seed: int | None = None,
    train_share: float | None = None,
    greedy: bool = False,
    gap: bool = False,
    gap_steps: int | None = None,
    chunk: int = 1024,
    device: str = "cpu",
) -> None:
    """Let a frozen policy learn tasks in its context, against exact random, oracle and explorer returns.

    Prints a table and writes eval_result.npy (tasks, episodes), evaluation.json, evaluation.csv and evaluation.png.
    The same call goes on after a kill. Under torchrun the processes share the work; the result is the same.

    Args:
        run: run folder, checkpoint or export.
        output: folder to write.
        episodes: one after the other, without ever clearing the context.
        seeds: agents for each task.
        split: tasks to play; those that were not trained on by default.
        split_seed: of the split; as in training when not given.
        train_share: of the split; as in training when not given.
        greedy: take the likeliest action instead of drawing one.
        gap: probe the memory besides: random moves that never reach the goal, then one more episode.
        gap_steps: of the probe; a whole window when not given.
        chunk: agents that act together.
        device: torch device.
    """
    from zoo.common.hardware import own_device, processes
    from zoo.compressed_ad.evaluation import evaluate as evaluation

    rank, world_size = processes()
    result = evaluation.evaluate(
        run, output, episodes, seeds, split, split_seed, train_share, greedy, gap, gap_steps, chunk,
        str(own_device(device)), rank, world_size,
    )  # fmt: skip
    if "missing" in result:
        print(f"{result['missing']} chunks are missing: the other processes, or the same command again, play them")


@writes_into("output")
def report(
    *, evaluations: list[Path], output: Path, labels: list[str] | None = None, source: Path | None = None
) -> None:
    """Compare evaluations: curves with intervals, regret, bars per task, sweeps; figures, Markdown and JSON.

    Args:
        evaluations: folders that `zoo evaluate compressed_ad` wrote; the first is the reference.
        output: folder to write.
        labels: of the evaluations; the folders' names when not given.
        source: a folder of histories, whose own curve is drawn besides.
    """
    from zoo.compressed_ad.evaluation.report import report as write_report

    write_report(evaluations, output, labels, source)
    print(output / "report.md")


@writes_into("output")
def collect(
    output: Path,
    env: Env | None = None,
    algorithm: Literal["ppo", "q_learning", "epsilon"] = "ppo",
    ppo: PPO | None = None,
    q_learning: QLearning | None = None,
    epsilon: Epsilon | None = None,
    episodes: int = 52,
    streams: int = 100,
    tasks: list[int] | None = None,
    seed: int = 42,
    split_seed: int = 0,
    train_share: float = 0.9,
    shard_size: int = 9,
) -> None:
    """Write the histories of an algorithm that learns tasks, to distil it.

    Each history is the same for any shard size or number of processes. The same call goes on after a kill; damaged
    shards are made anew. Under torchrun the processes share the work.

    Args:
        output: folder to write.
        env: the original's dark room when not given, e.g. --env DarkKeyToDoor --env.horizon 50.
        algorithm: that learns; epsilon is a demonstrator that knows the task and explores less and less.
        ppo: its settings, e.g. --ppo.rollout_steps 50.
        q_learning: its settings, e.g. --q_learning.bonus 0.1.
        epsilon: its settings, e.g. --epsilon.best 0.8.
        episodes: of each history.
        streams: histories of each task.
        tasks: numbers of the tasks in row-major order; all when not given.
        seed: of the histories; those of a task depend on it and on the task alone.
        split_seed: of the split into training and test tasks, which is noted beside the histories.
        train_share: share of the tasks that are to be trained on.
        shard_size: tasks that are learned together and saved as one file.
    """
    from zoo.common.hardware import processes
    from zoo.compressed_ad.collecting import collect as collecting
    from zoo.compressed_ad.data.history import HistoryStore
    from zoo.compressed_ad.envs.grids import Darkroom

    source = {"ppo": ppo, "q_learning": q_learning, "epsilon": epsilon}[algorithm] or collecting.SOURCES[algorithm]()
    rank, world_size = processes()
    counts = collecting.collect(
        env or Darkroom(), output, source, episodes, streams, tasks, seed, split_seed, train_share, shard_size,
        rank, world_size,
    )  # fmt: skip
    print(f"{output}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    if world_size == 1:
        store = HistoryStore(output)
        reached, best = collecting.last_returns(store).mean(), collecting.best_returns(store).mean()
        print(f"return of the last episode, mean over {len(store)} tasks: {reached:.2f}, the best possible {best:.2f}")


def import_histories(
    source: Path,
    output: Path,
    order: Literal["row_major", "shuffled"],
    env: Env | None = None,
    split_seed: int = 0,
    train_share: float = 0.9,
    shard_size: int = 9,
) -> None:
    """Turn a history file of the original (hdf5) into a folder of histories.

    Every step is played again, so a wrong environment or order is refused.

    Args:
        source: the hdf5 file.
        output: folder to write.
        order: of the tasks in the file: shuffled by the split's seed, as the last original wrote them, or row_major.
        env: the original's dark room when not given.
        split_seed: of the split, and of the shuffled order.
        train_share: share of the tasks that are to be trained on.
        shard_size: tasks in one file.
    """
    from zoo.compressed_ad.convert.hdf5 import import_hdf5
    from zoo.compressed_ad.envs.grids import Darkroom

    store = import_hdf5(source, output, env or Darkroom(), order, split_seed, train_share, shard_size)
    print(f"{output}: {len(store)} tasks, {store.streams} streams, {store.steps} steps")


def export_histories(
    source: Path, output: Path, order: Literal["row_major", "shuffled"] = "row_major", allow_missing: bool = False
) -> None:
    """Turn a folder of histories into a history file that the original reads (hdf5).

    Args:
        source: folder of histories.
        output: file to write.
        order: of the tasks in the file.
        allow_missing: leave out tasks whose files are missing or damaged.
    """
    from zoo.compressed_ad.convert.hdf5 import export_hdf5
    from zoo.compressed_ad.data.history import HistoryStore

    export_hdf5(HistoryStore(source, allow_missing), output, order)
    print(output)
