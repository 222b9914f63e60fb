"""Evaluation of a trained agent: many tasks and seeds at once, shared by processes, resumed after a kill."""

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
from zoo.common.checks import check_at_least, check_one_of, check_within
from zoo.common.configs import load_run_config
from zoo.common.environment import local_device
from zoo.common.journal import begin_output, pending_items
from zoo.common.locks import writes_into
from zoo.common.reports import replace_non_finite, terminal_table, write_report
from zoo.common.tensors import state_digest
from zoo.compressed_ad.data.history import HistoryStore, read_index
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.baselines import explorer_returns, oracle_return, random_return
from zoo.compressed_ad.envs.explorer import can_explore
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.evaluation import plots
from zoo.compressed_ad.evaluation.memory_gap import probe_memory, summarise_gap
from zoo.compressed_ad.evaluation.summary import last_episodes, summarise
from zoo.compressed_ad.inference import CHUNK, Agent, pairs
from zoo.compressed_ad.rollout import ContextPlayer
from zoo.runs.load import load
from zoo.runs.run_folder import find_config, has_config_file

log = logging.getLogger(__name__)

NAME = "evaluation"
RESULT_NAME, RETURNS_NAME = "eval_result.npy", "returns.npy"
GAP_NAME, PARTS_NAME = "gap.npy", "parts"
COLUMNS = ("task", "mean", "first", "last", "last_std", "random", "oracle", "regret")
SPLITS = ("train", "test", "all")
SPLIT_SEED, TRAIN_SHARE = 0, 0.9  # the defaults of `zoo collect`
PRINTED_TASKS = 20  # evaluation.csv has all


def print_evaluation(facts: Mapping[str, Any]) -> None:
    """Print the summary, and the tasks where they are few."""
    console = Console()
    summary = facts["summary"]
    lines = []
    for key in ("first", "last", "mean", "regret"):
        row = summary[key]
        interval = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        name = f"{key} ({summary['last_episodes']} episodes)" if key == "last" else key
        lines.append([name, _format(row["mean"]), interval])
    lines += [[key, _format(summary[key]), ""] for key in ("random", "oracle")]
    for share, episode in summary["episodes_to_reach"].items():
        lines.append([f"episodes to {share} of the last", "never" if episode is None else str(episode), ""])
    for key in ("before", "after") if facts["gap"] is not None else ():
        lines.append([f"{key} the gap", _format(facts["gap"][key], "-"), f"{facts['gap']['count']} pairs"])
    heads = ("figure", "mean", "95 % interval")
    title = f"{facts['run']}: {len(facts['tasks'])} tasks ({facts['split_from']})"
    console.print(terminal_table(heads, lines, title, left=heads))
    if len(facts["tasks"]) <= PRINTED_TASKS:
        rows = [[str(task[key]) if key == "task" else _format(task[key]) for key in COLUMNS] for task in facts["tasks"]]
        console.print(terminal_table(COLUMNS, rows))


def _format(value: float | None, missing: str = "unknown") -> str:
    return missing if value is None else f"{value:.3f}"


def write_evaluation(output: Path, facts: Mapping[str, Any], returns: np.ndarray) -> None:
    """Write eval_result.npy, returns.npy (tasks, seeds, episodes) float32, evaluation.csv, .png and, last, .json."""
    table, figure = (COLUMNS, facts["tasks"]), plots.learning_curves({"agent": facts})
    arrays = {RETURNS_NAME: returns, RESULT_NAME: returns.mean(1)}
    write_report(output, {**arrays, f"{NAME}.csv": table, f"{NAME}.png": figure, f"{NAME}.json": facts})


def task_rows(tasks: Tensor, returns: np.ndarray, random: np.ndarray, oracle: np.ndarray) -> list[dict[str, Any]]:
    """Return a row per task, see `COLUMNS`, of tasks (n, F) and returns (n, seeds, episodes); `last_std` is over seeds.

    Args:
        random: expected return of random actions (n,).
        oracle: best return (n,).
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
    chunk: int = CHUNK,
    device: str = "cpu",
    rank: int = 0,
    world_size: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Let a frozen policy learn tasks in its context, against exact random, oracle and explorer returns.

    The same call resumes after a kill. OUTPUT then holds `eval_result.npy` (tasks, episodes), the mean over seeds,
    `returns.npy` (tasks, seeds, episodes), `evaluation.json`, `.csv` and `.png`, and with `gap` `gap.npy`.

    Args:
        run: run folder, checkpoint or export of in-context reinforcement learning.
        output: folder to write.
        episodes: of each pair of task and seed; 500 show whether it improves beyond what it was trained on.
        seeds: of the policy's samples, for each task.
        split: tasks; held-out ones by default.
        split_seed: of the split, together with train_share; as in training when neither is given.
        train_share: share of the training tasks.
        greedy: take the most likely action instead of sampling one.
        gap: probe the memory after the episodes: goal found, return before and after a time without reward.
        gap_steps: of that; a window by default.
        chunk: pairs that act together; more need more memory.
        device: torch device.
    """
    check_within(0, world_size - 1, rank=rank)
    check_at_least(1, episodes=episodes, seeds=seeds, chunk=chunk)
    if gap_steps is not None and not gap:
        raise ValueError("gap_steps is an option of --gap true")
    agent, output = load_agent(run, local_device(device)), Path(output).resolve()
    tasks, split_from = split_tasks(run, agent.env, split, split_seed, train_share)
    settings = {"tasks": tasks.tolist(), "seeds": seeds, "episodes": episodes, "greedy": greedy, "chunk": chunk}
    settings |= {"gap_steps": _check_gap(agent, gap_steps) if gap else None}
    settings |= {"env": agent.env.describe(), "weights": state_digest(agent.policy.state_dict())}
    begin_output(output, settings, sweep=world_size == 1)
    paths = _run_chunks(agent, output, tasks, settings, rank, world_size, progress)
    if missing := sum(not path.exists() for path in paths):
        return {"missing": missing}
    facts = _join_chunks(agent, output, paths, settings, {"run": str(run), "split": split, "split_from": split_from})
    print_evaluation(facts)
    return facts


def _check_gap(agent: Agent, gap_steps: int | None) -> int:
    window = agent.policy.window
    if gap_steps is not None and gap_steps < window:
        raise ValueError(f"a gap of {gap_steps} steps does not empty the window of {window}")
    if not isinstance(agent.env, GridEnv):
        raise ValueError(f"the memory gap is for grids, whose goals are known, not for {agent.env.name}")
    return gap_steps or window


def load_agent(run: Path, device: str | torch.device = "cpu") -> Agent:
    """Load a run to evaluate it; ValueError when it is of another kind, or its weights are not finite."""
    agent = load(run, device)
    if not isinstance(agent, Agent):
        raise ValueError(f"{run} is loaded as {type(agent).__name__}; expected a run of compressed_ad (Agent)")
    if not all(bool(weight.isfinite().all()) for weight in agent.policy.parameters()):
        raise ValueError(f"{run}: its weights are not finite: the training diverged; use an earlier checkpoint")
    return agent


def split_tasks(
    run: Path, env: Env, split: str, split_seed: int | None = None, train_share: float | None = None
) -> tuple[Tensor, str]:
    """Return the tasks (n, F) of a split as a run was trained, and the source of the split.

    The run's config.yaml names the split or the histories, whose index does. FileNotFoundError when they do not exist.
    """
    check_one_of(SPLITS, split=split)
    if split == "all":
        return env.tasks(), "all tasks"
    if split_seed is not None and train_share is not None:
        return select_tasks(env, split, split_seed, train_share), f"seed {split_seed}, share {train_share}"
    if split_seed is not None or train_share is not None:
        raise ValueError("split_seed and train_share divide the tasks together: give both, or none for the run's own")
    config = load_run_config(find_config(Path(run)), from_run=True) if has_config_file(Path(run)) else {}
    data: dict[str, Any] = (config.get("data") or {}).get("init_args") or {}
    root = data.get("root")
    if root is not None and Path(root).is_dir():
        index = read_index(Path(root))
        if index["env"] != env.describe():
            raise ValueError(f"the histories in {root} are of {index['env']} now, {run} is of {env.describe()}")
        if split == "train":  # of which the store may hold some
            store = HistoryStore(Path(root))
            tasks = store.tasks[store.split[split]]
        else:
            tasks = env.tasks()[index["split"][split]]
        if not len(tasks):
            raise ValueError(f"the split {split!r} of the histories in {root} is empty")
        return tasks, f"the histories in {root}"
    if root is not None and not data.get("embedded_if_missing"):
        raise FileNotFoundError(
            f"{root}: the histories that {run} was trained on do not exist, so its held-out tasks are unknown; "
            "give split_seed and train_share as when they were collected"
        )
    if root is not None:
        log.warning("%s does not exist: %s is taken as trained on histories made in code", root, run)
    if not {"split_seed", "train_share"} <= data.keys():
        log.warning("%s does not say how its tasks were divided: taken as seed %d, %s", run, SPLIT_SEED, TRAIN_SHARE)
        data = {"split_seed": SPLIT_SEED, "train_share": TRAIN_SHARE}
    seed, share = data["split_seed"], data["train_share"]
    return select_tasks(env, split, seed, share), f"seed {seed}, share {share}"


def select_tasks(env: Env, split: str, split_seed: int = SPLIT_SEED, train_share: float = TRAIN_SHARE) -> Tensor:
    """Return the tasks (n, F) of the split "train" or "test"; see `Env.split`."""
    train, test = env.split(split_seed, train_share)
    tasks = env.tasks()[train if split == "train" else test]
    if not len(tasks):
        raise ValueError(f"the split {split!r} of {env.name} is empty with train_share {train_share}")
    return tasks


def explorer_curve(env: Env, tasks: Tensor, episodes: int) -> list[float] | None:
    """Return the explorer's mean return of each episode over tasks (n, F); None where goals are known."""
    if not can_explore(env):
        return None
    seeds = pairs(env, tasks, [0])[1] if env.random_start else None
    curve: list[float] = explorer_returns(env, episodes, tasks, seeds).mean(0).tolist()
    return curve


def _run_chunks(
    agent: Agent, output: Path, tasks: Tensor, settings: Mapping[str, Any], rank: int, world_size: int, progress: bool
) -> list[Path]:
    """Write this process's pending chunks; returns the files of all."""
    rows, keys = pairs(agent.env, tasks, range(settings["seeds"]))
    spans = [slice(first, first + settings["chunk"]) for first in range(0, len(keys), settings["chunk"])]
    paths = [output / PARTS_NAME / f"{number:05d}.npz" for number in range(len(spans))]
    chunks = list(zip(spans, paths, strict=True))
    pending = pending_items(chunks, lambda chunk: chunk[1].exists(), rank, world_size)
    progress = progress and rank == 0
    for span, path in track(pending, "chunks", disable=not progress or len(spans) == 1):
        with ContextPlayer(agent.policy, agent.env, rows[span], keys[span], settings["greedy"]) as player:
            returns = player.run_episodes(settings["episodes"], progress=progress and len(spans) == 1)
            part: dict[str, Any] = {
                "returns": returns.numpy(),
                "compressions": np.array(player.compressions, dtype=np.int64),
            }
            if settings["gap_steps"] is not None:
                part["gap"] = probe_memory(player, returns, settings["gap_steps"]).numpy()
        write_atomic(path, partial(np.savez, **part))
    return paths


def _join_chunks(
    agent: Agent, output: Path, paths: Sequence[Path], settings: Mapping[str, Any], source: Mapping[str, Any]
) -> dict[str, Any]:
    """Join the chunks, and write the files of the evaluation."""
    env, parts = agent.env, []
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            parts.append(dict(file))
    tasks, seeds, episodes = torch.tensor(settings["tasks"]), settings["seeds"], settings["episodes"]
    returns = np.concatenate([part["returns"] for part in parts]).reshape(len(tasks), seeds, episodes)
    gap = None
    if settings["gap_steps"] is not None and isinstance(env, GridEnv):
        probes, rows = np.concatenate([part["gap"] for part in parts]), pairs(env, tasks, range(seeds))[0]
        gap = {"steps": settings["gap_steps"], **summarise_gap(torch.from_numpy(probes), env, rows)}
        write_report(output, {GAP_NAME: probes.reshape(len(tasks), seeds, 3)})
    random, oracle = (values(env, tasks) for values in (random_return, oracle_return))
    facts = {
        "version": zoo.__version__,
        **source,
        **{key: settings[key] for key in ("env", "seeds", "episodes", "greedy", "weights")},
        "policy": agent.policy.describe(),
        # where episodes end at other steps, the agents that act together have no common number
        "compressions_per_episode": len(parts[0]["compressions"]) / episodes if env.schema.fixed else None,
        "baselines": {
            "random": float(random.mean()),
            "oracle": replace_non_finite(float(oracle.mean())),
            "explorer": explorer_curve(env, tasks, episodes),
        },
        "summary": summarise(returns, random.numpy(), oracle.numpy()),
        "gap": gap,
        "tasks": task_rows(tasks, returns, random.numpy(), oracle.numpy()),
    }
    write_evaluation(output, facts, returns)
    return facts
