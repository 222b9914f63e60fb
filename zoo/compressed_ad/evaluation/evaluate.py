"""Evaluation of a trained agent: many tasks and seeds in lock-step, shared by processes, resumed after a kill."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

import zoo
from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least, check_within
from zoo.common.configs import load_run_config
from zoo.common.environment import local_device
from zoo.common.journal import begin_output, pending_items
from zoo.common.locks import writes_into
from zoo.common.reports import replace_non_finite, terminal_table, write_report
from zoo.common.tensors import state_digest
from zoo.compressed_ad.data.history import read_index
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.baselines import can_explore, explorer_returns, oracle_return, random_return
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.evaluation import plots
from zoo.compressed_ad.evaluation.memory_gap import probe, summarise_gap
from zoo.compressed_ad.evaluation.simple import simple_learners, simple_returns
from zoo.compressed_ad.evaluation.summary import last_episodes, summarise
from zoo.compressed_ad.inference import CHUNK, SPLIT_SEED, TRAIN_SHARE, Agent, pairs, tasks_of
from zoo.compressed_ad.rollout import Player
from zoo.runs.load import load
from zoo.runs.run_folder import find_config, has_config_file

log = logging.getLogger(__name__)

NAME = "evaluation"
RESULT_NAME, RETURNS_NAME = "eval_result.npy", "returns.npy"
GAP_NAME, PARTS_NAME = "gap.npy", "parts"
COLUMNS = ("task", "mean", "first", "last", "last_std", "random", "oracle", "regret")
SHOWN_TASKS = 20  # on the screen; evaluation.csv has all


def show(facts: Mapping[str, Any]) -> None:
    """Print the summary, and the tasks where they are few."""
    console = Console()
    summary = facts["summary"]
    lines = []
    for key in ("first", "last", "mean", "regret"):
        row = summary[key]
        ends = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        name = f"{key} ({summary['last_episodes']} episodes)" if key == "last" else key
        lines.append([name, _figure(row["mean"]), ends])
    lines += [[key, _figure(summary[key]), ""] for key in ("random", "oracle")]
    simple = facts["baselines"].get("simple", {})
    lines += [[f"{name}, last episode", _figure(curve[-1]), ""] for name, curve in simple.items()]
    for share, episode in summary["episodes_to_reach"].items():
        lines.append([f"episodes to {share} of the last", "never" if episode is None else str(episode), ""])
    for key in ("before", "after") if facts["gap"] is not None else ():
        value = facts["gap"][key]
        lines.append([f"{key} the gap", "-" if value is None else f"{value:.3f}", f"{facts['gap']['count']} pairs"])
    heads = ("figure", "mean", "95 % interval")
    title = f"{facts['run']}: {len(facts['tasks'])} tasks ({facts['split_from']})"
    console.print(terminal_table(heads, lines, title, left=heads))
    if len(facts["tasks"]) <= SHOWN_TASKS:
        tasks = [
            [str(task[key]) if key == "task" else _figure(task[key]) for key in COLUMNS] for task in facts["tasks"]
        ]
        console.print(terminal_table(COLUMNS, tasks))


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def write_evaluation(output: Path, facts: Mapping[str, Any], returns: np.ndarray) -> None:
    """Write eval_result.npy, returns.npy, evaluation.csv, .png and, last, .json.

    Args:
        returns: (tasks, seeds, episodes) float32.
    """
    table, figure = (COLUMNS, facts["tasks"]), plots.curves({"agent": facts})
    arrays = {RETURNS_NAME: returns, RESULT_NAME: returns.mean(1)}
    write_report(output, {**arrays, f"{NAME}.csv": table, f"{NAME}.png": figure, f"{NAME}.json": facts})


def task_rows(tasks: Tensor, returns: np.ndarray, random: np.ndarray, oracle: np.ndarray) -> list[dict[str, Any]]:
    """A row per task, see `COLUMNS`.

    Args:
        tasks: (n, F).
        returns: (n, seeds, episodes).
        random: expected return of random actions (n,).
        oracle: return of who knows the task (n,).

    Returns:
        Rows; `last_std` is the spread over seeds.
    """
    last = returns[:, :, returns.shape[2] - last_episodes(returns.shape[2]) :].mean(2, dtype=np.float64)
    mean = returns.mean((1, 2), dtype=np.float64)
    return [
        {
            "task": " ".join(map(str, task)),
            "mean": float(mean[row]),
            "first": float(returns[row, :, 0].mean(dtype=np.float64)),
            "last": float(last[row].mean()),
            "last_std": float(last[row].std()),
            "random": float(random[row]),
            "oracle": replace_non_finite(float(oracle[row])),
            "regret": replace_non_finite(float(oracle[row] - mean[row])),
        }
        for row, task in enumerate(tasks.tolist())
    ]


@writes_into("output", positional=False)
def evaluate(
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
    simple: bool = False,
    chunk: int = CHUNK,
    device: str = "cpu",
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Let a frozen policy learn tasks in its context, against exact random, oracle and explorer returns.

    Prints a table. The same call goes on after a kill. OUTPUT then holds `eval_result.npy` (tasks, episodes), the mean
    over seeds, `returns.npy` (tasks, seeds, episodes), `evaluation.json`, `.csv` (a row per task) and `.png`, and, with
    `gap`, `gap.npy` (tasks, seeds, 3): whether the goal was found, and the return before and after the gap.

    Processes share the chunks by `rank` and `world_size` and need not talk to each other: the one that ends last
    writes the result, which is the same to the bit for any number of processes and kills.

    Args:
        run: run folder, checkpoint or export of in-context reinforcement learning.
        output: folder to write.
        episodes: of each pair of task and seed; 500 tell whether it goes on beyond what it was trained on.
        seeds: of each task.
        split: tasks to play; those that were not trained on by default.
        split_seed: of the split; as in training when neither this nor the share is given.
        train_share: of the split; likewise.
        greedy: take the most likely action instead of drawing one.
        gap: probe the memory after the episodes, see `zoo.compressed_ad.evaluation.memory_gap`.
        gap_steps: of that; a window by default.
        simple: play the same pairs with simple learners besides, which see the same history: one that repeats its last
            success, or its best episode, and bandits for each state and for each n-gram of what was seen, done, earned.
        chunk: pairs in lock-step; more need more memory.
        device: torch device.
        rank: of this process, 0 to world_size - 1. It takes every world_size-th chunk.
        world_size: processes.
        progress: show a bar on rank 0.

    Returns:
        What evaluation.json holds; `{"missing": n}` while other processes owe n chunks.

    Raises:
        FileNotFoundError: when there is no such run, or its histories, which tell the split, are gone.
        ValueError: when an argument is out of range, the run is another kind's, its weights are not finite, or the
            folder was begun with other settings.
        OSError: when the disk is full; the same call goes on.
    """
    check_within(0, world_size - 1, rank=rank)
    check_at_least(1, episodes=episodes, seeds=seeds, chunk=chunk)
    agent = load_agent(run, local_device(device))
    window = agent.policy.window
    if gap and window is None and gap_steps is None:
        raise ValueError(f"{type(agent.policy).__name__} has no window: say how long the gap is (gap_steps)")
    if gap_steps is not None and window is not None and gap_steps < window:
        raise ValueError(f"a gap of {gap_steps} steps does not empty the window of {window}")
    if gap and not isinstance(agent.env, GridEnv):
        raise ValueError(f"the memory gap is for grids, whose goals are known, not for {agent.env.name}")
    tasks, told = split_of(run, agent.env, split, split_seed, train_share)
    output = Path(output).resolve()
    settings = {
        "weights": state_digest(agent.policy.state_dict()),
        "env": agent.env.describe(),
        "tasks": tasks.tolist(),
        "seeds": seeds,
        "episodes": episodes,
        "greedy": greedy,
        "gap_steps": (gap_steps or window) if gap else None,
        "chunk": chunk,
        **({"simple": True} if simple else {}),
    }
    begin_output(output, settings, sweep=world_size == 1)
    paired, keys = pairs(agent.env, tasks, range(seeds))
    spans = [slice(first, min(first + chunk, len(keys))) for first in range(0, len(keys), chunk)]
    paths = [output / PARTS_NAME / f"{number:05d}.npz" for number in range(len(spans))]
    chunks = list(zip(spans, paths, strict=True))
    pending = pending_items(chunks, lambda chunk: chunk[1].exists(), rank, world_size)
    for span, path in track(pending, "chunks", disable=not progress or rank > 0 or len(spans) == 1):
        part = _play(agent, paired[span], keys[span], settings, progress and rank == 0 and len(spans) == 1)
        write_atomic(path, partial(np.savez, **part))
    if missing := pending_items(chunks, lambda chunk: chunk[1].exists()):
        return {"missing": len(missing)}
    facts = _join(agent, output, paths, tasks, settings, {"run": str(run), "split": split, "split_from": told})
    show(facts)
    return facts


def load_agent(run: Path, device: str | torch.device = "cpu") -> Agent:
    """Load a run to evaluate it.

    Raises:
        FileNotFoundError: when there is no such run.
        ValueError: when it is another kind's, or its weights are not finite.
    """
    agent = load(run, device)
    if not isinstance(agent, Agent):
        raise ValueError(f"{run} is loaded as {type(agent).__name__}; expected a run of compressed_ad (Agent)")
    if not all(bool(weight.isfinite().all()) for weight in agent.policy.parameters()):
        raise ValueError(f"{run}: its weights are not finite: the training diverged; use an earlier checkpoint")
    return agent


def split_of(
    run: Path, env: Env, split: str, split_seed: int | None = None, train_share: float | None = None
) -> tuple[Tensor, str]:
    """The tasks (n, F) of a split as a run was trained, and what told it.

    Args:
        run: run folder or file in it; its config.yaml names the split or the histories, whose index does.
        split: "train", "test" or "all".

    Raises:
        FileNotFoundError: when the run's histories are gone.
        ValueError: when there is no such split, or it is empty.
    """
    if split == "all" or split_seed is not None or train_share is not None:
        chosen = (SPLIT_SEED if split_seed is None else split_seed, TRAIN_SHARE if train_share is None else train_share)
        return tasks_of(env, split, *chosen), "all tasks" if split == "all" else f"seed {chosen[0]}, share {chosen[1]}"
    config = load_run_config(find_config(Path(run)), from_run=True) if has_config_file(Path(run)) else {}
    data: dict[str, Any] = (config.get("data") or {}).get("init_args") or {}
    root = data.get("root")
    if root is not None and Path(root).is_dir():
        tasks_of(env, split)  # refuses an unknown split
        return env.tasks()[read_index(Path(root))["split"][split]], f"the histories in {root}"
    if root is not None and not data.get("embedded_if_missing"):
        raise FileNotFoundError(
            f"{root}: the histories that {run} was trained on are not there, so its held-out tasks are not known; "
            "give split_seed and train_share as when they were collected"
        )
    if not {"split_seed", "train_share"} <= data.keys():
        log.warning("%s does not tell how its tasks were divided: taken as seed %d, %s", run, SPLIT_SEED, TRAIN_SHARE)
        data = {"split_seed": SPLIT_SEED, "train_share": TRAIN_SHARE}
    found = (data["split_seed"], data["train_share"])
    return tasks_of(env, split, *found), f"seed {found[0]}, share {found[1]}"


def baselines_of(env: Env, tasks: Tensor, episodes: int) -> dict[str, Any]:
    """Expected return of random actions, of the oracle (each a mean over tasks), and the explorer's curve.

    Args:
        tasks: (n, F).
        episodes: of the explorer; it has no curve (None) where there is nothing to explore.
    """
    explorer = None
    if can_explore(env):
        seeds = pairs(env, tasks, [0])[1] if env.random_start else None
        explorer = explorer_returns(env, episodes, tasks, seeds).mean(0).tolist()
    return {
        "random": float(random_return(env, tasks).mean()),
        "oracle": replace_non_finite(float(oracle_return(env, tasks).mean())),
        "explorer": explorer,
    }


def _play(
    agent: Agent, tasks: Tensor, keys: Sequence[int], settings: Mapping[str, Any], progress: bool
) -> dict[str, Any]:
    """What a chunk of pairs brings: returns, the steps of compressions, and the gap's figures where asked for."""
    with Player(agent.policy, agent.env, tasks, keys, settings["greedy"]) as player:
        returns = player.play(settings["episodes"], progress=progress)
        part: dict[str, Any] = {
            "returns": returns.numpy(),
            "compressions": np.array(player.compressions, dtype=np.int64),
        }
        if settings["gap_steps"] is not None:
            part["gap"] = probe(player, returns, settings["gap_steps"]).numpy()
    return part


def _join(
    agent: Agent,
    output: Path,
    paths: Sequence[Path],
    tasks: Tensor,
    settings: Mapping[str, Any],
    told: Mapping[str, Any],
) -> dict[str, Any]:
    """Put the parts together and write everything that is made of them."""
    policy, parts = agent.policy, []
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            parts.append(dict(file))
    seeds, episodes = settings["seeds"], settings["episodes"]
    returns = np.concatenate([part["returns"] for part in parts]).reshape(len(tasks), seeds, episodes)
    gap = None
    if settings["gap_steps"] is not None and isinstance(agent.env, GridEnv):
        probed = np.concatenate([part["gap"] for part in parts])
        paired = tasks.repeat_interleave(seeds, 0)
        gap = {"steps": settings["gap_steps"], **summarise_gap(torch.from_numpy(probed), agent.env, paired)}
        write_report(output, {GAP_NAME: probed.reshape(len(tasks), seeds, 3)})
    baselines = baselines_of(agent.env, tasks, episodes)
    if settings.get("simple"):
        paired, keys = pairs(agent.env, tasks, range(seeds))
        baselines["simple"] = {
            name: simple_returns(agent.env, name, paired, keys, episodes).mean(0).tolist()
            for name in simple_learners(agent.env)
        }
    random, oracle = (values(agent.env, tasks).numpy() for values in (random_return, oracle_return))
    facts = {
        "version": zoo.__version__,
        **told,
        **{key: settings[key] for key in ("env", "seeds", "episodes", "greedy", "weights")},
        "policy": policy.describe(),
        "compressions_per_episode": len(parts[0]["compressions"]) / episodes,
        "baselines": baselines,
        "summary": summarise(returns, random, oracle),
        "gap": gap,
        "tasks": task_rows(tasks, returns, random, oracle),
    }
    write_evaluation(output, facts, returns)
    return facts
