"""Histories on disk: memory-mapped shards, and an index that says whose they are.

Shards of grids hold small integers (version 1 of the index), those of other environments structured arrays after the
schema that stands in the index (version 2).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least, check_within
from zoo.common.journal import begin_output
from zoo.compressed_ad.envs.base import NAMES, Env, Transition, build_env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.envs.schema import Schema
from zoo.compressed_ad.nets.steps import Steps

log = logging.getLogger(__name__)

INDEX_NAME = "index.json"
INDEX_KEYS = ("version", "env", "source", "seed", "split", "streams", "steps", "shards")
VERSION = 1  # of grids
SCHEMA_VERSION = 2
COLUMNS = ("row", "column", "action", "reward", "next row", "next column", "done")
OPEN_SHARDS = 128  # each holds a file descriptor
LARGEST = 127  # of int8


def layout(env: Env) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """What follows (tasks, streams, steps) in the shape of an environment's shards, and their dtype."""
    if isinstance(env, GridEnv):
        return (len(COLUMNS),), np.dtype(np.int8)
    return (), env.schema.dtype


class Recorder:
    """Histories of any environment as they happen, step after step.

    Args:
        count: number of histories.

    Attributes:
        histories: (count, steps), as stores keep them.
    """

    def __init__(self, schema: Schema, count: int, steps: int) -> None:
        self.histories = np.zeros((count, steps), dtype=schema.dtype)

    def add(self, time: int, states: Tensor, actions: Tensor, taken: Transition) -> None:
        """Note what all environments did at a step."""
        values = (states, actions, taken.rewards, taken.next_states, taken.terminated, taken.truncated)
        for name, value in zip(self.histories.dtype.names or (), values, strict=True):
            self.histories[name][:, time] = value.cpu().numpy()


class GridRecorder:
    """Histories of a grid as they happen, step after step.

    Args:
        count: number of histories.

    Attributes:
        histories: (count, steps, 7) int8, see `COLUMNS`.
    """

    def __init__(self, count: int, steps: int) -> None:
        self.histories = np.zeros((count, steps, len(COLUMNS)), dtype=np.int8)

    def add(self, time: int, states: Tensor, actions: Tensor, taken: Any) -> None:
        """Note what all environments did at a step."""
        columns = [states, actions[:, None], taken.rewards[:, None], taken.next_states]
        self.histories[:, time, :6] = torch.cat(columns, dim=1).cpu().numpy()
        self.histories[:, time, 6] = taken.done


def recorder_of(env: Env, count: int, steps: int) -> Recorder | GridRecorder:
    """What notes histories of an environment as its store keeps them."""
    return GridRecorder(count, steps) if isinstance(env, GridEnv) else Recorder(env.schema, count, steps)


def from_steps(steps: Steps) -> np.ndarray:
    """Pack B histories of L transitions of grids as the store keeps them: (B, L, 7) int8, see `COLUMNS`."""
    columns = [steps.states, steps.actions[..., None], steps.rewards[..., None], steps.next_states]
    return torch.cat([*columns, steps.dones[..., None]], dim=-1).to(torch.int8).cpu().numpy()


def to_steps(transitions: np.ndarray) -> Steps:
    """Unpack histories (B, L, 7) int8, see `COLUMNS`, to steps of int64 and bool; or structured ones (B, L)."""
    if transitions.dtype.names:
        names = ("state", "action", "reward", "next_state")
        arrays = [transitions[name].copy() for name in names]
        arrays.append(transitions["terminated"] | transitions["truncated"])
        return Steps(*map(torch.from_numpy, arrays))
    if transitions.ndim != 3 or transitions.shape[2] != len(COLUMNS):
        raise ValueError(f"expected transitions (B, L, {len(COLUMNS)}), found {transitions.shape}")
    values = torch.as_tensor(transitions).long()
    return Steps(values[..., 0:2], values[..., 2], values[..., 3], values[..., 4:6], values[..., 6].bool())


def ending_at(steps: Steps, start_cell: Sequence[int]) -> Steps:
    """Histories as in the original's files: the end of an episode leads to the cell where the next one begins."""
    start = torch.tensor(list(start_cell))
    return steps._replace(next_states=torch.where(steps.dones[..., None], start, steps.next_states))


def thin(histories: np.ndarray, steps: int, stride: int) -> np.ndarray:
    """Keep whole episodes, one step in `stride`: every stride-th episode where all are of one length.

    Args:
        histories: (N, S, L, 7) int8 or (N, S, L) structured, as stores keep them; L is `steps * stride`, and one
            episode more where their lengths differ, so that enough is left.
        steps: that are kept of each history.

    Returns:
        (N, S, steps, 7) or (N, S, steps); the last episode may be cut.
    """
    flat = histories.reshape(-1, *histories.shape[2:])
    dones = flat["terminated"] | flat["truncated"] if flat.dtype.names else flat[..., 6] != 0
    kept = np.empty((len(flat), steps, *flat.shape[2:]), dtype=flat.dtype)
    for row, history, done in zip(kept, flat, dones, strict=True):
        bounds, count, chosen = [0, *(np.flatnonzero(done) + 1).tolist(), len(history)], 0, []
        for start, stop in pairwise(bounds):
            if count * stride <= start:
                chosen.append(np.arange(start, stop))
                count += stop - start
        row[:] = history[np.concatenate(chosen)[:steps]]
    return kept.reshape(*histories.shape[:2], steps, *flat.shape[2:])


class HistoryWriter:
    """Writes a store shard by shard; any process may write any shard, and a killed one leaves whole shards only.

    Args:
        folder: of the store; new, empty, or begun with the same arguments.
        tasks: indices into `env.tasks()`, in the order of the store.
        source: what made the histories, as JSON values.
        split_seed: of the division of all tasks, see `Env.split`.
        episode_stride: of the algorithm's episodes one in so many is kept, see `thin`; noted where it is not 1.

    Attributes:
        shards: task indices of each shard.

    Raises:
        ValueError: when an argument is out of range, `HistoryStore` could not read the environment back, or the folder
            was begun with other arguments. Nothing is written then.
    """

    def __init__(
        self,
        folder: Path,
        env: Env,
        tasks: Sequence[int],
        streams: int,
        steps: int,
        shard_size: int,
        source: Mapping[str, Any],
        seed: int = 0,
        split_seed: int = 0,
        train_share: float = 0.9,
        episode_stride: int = 1,
    ) -> None:
        _check_readable(env)
        goals = env.tasks().tolist()
        check_at_least(1, tasks=len(tasks), streams=streams, steps=steps, shard_size=shard_size)
        if isinstance(env, GridEnv):
            check_within(1, LARGEST, grid_size=env.grid_size)
        if len(set(tasks)) < len(tasks) or not 0 <= min(tasks) <= max(tasks) < len(goals):
            raise ValueError(f"expected different indices of the {len(goals)} tasks of {env.name}, found {list(tasks)}")
        self.folder = folder
        self.shards = [list(tasks[start : start + shard_size]) for start in range(0, len(tasks), shard_size)]
        shape, self._dtype = layout(env)
        self._shape = (streams, steps, *shape)
        train, test = env.split(split_seed, train_share)
        split = {"seed": split_seed, "train_share": train_share, "train": train.tolist(), "test": test.tolist()}
        index = {"version": VERSION, "env": env.describe(), "source": dict(source), "seed": seed, "split": split}
        if not isinstance(env, GridEnv):
            index |= {"version": SCHEMA_VERSION, "schema": env.schema.describe()}
        if episode_stride > 1:
            index["episode_stride"] = episode_stride
        shards = [
            {"file": shard_name(number), "tasks": part, "goals": [goals[task] for task in part]}
            for number, part in enumerate(self.shards)
        ]
        begin_output(folder, {**index, "streams": streams, "steps": steps, "shards": shards}, INDEX_NAME)

    def finished(self, number: int) -> bool:
        """Whether a shard stands there whole; one that is damaged is named in a warning."""
        path = self.folder / shard_name(number)
        if not path.is_file() or not _checksum_path(path).is_file():
            return False
        fault = find_fault(path, (len(self.shards[number]), *self._shape), self._dtype)
        if fault:
            log.warning("%s; it is made anew", fault)
        return fault is None

    def write(self, number: int, transitions: np.ndarray) -> None:
        """Write a shard so that it appears only when it is whole.

        Args:
            transitions: (tasks, streams, steps, 7) int8 of grids, see `COLUMNS`; else (tasks, streams, steps) of the
                schema's dtype.
        """
        expected = (len(self.shards[number]), *self._shape)
        if transitions.shape != expected or transitions.dtype != self._dtype:
            raise ValueError(f"expected {expected} {self._dtype}, found {transitions.shape} {transitions.dtype}")
        path = self.folder / shard_name(number)
        write_atomic(path, lambda file: np.save(file, transitions, allow_pickle=False))
        line = f"{file_hash(path)}  {path.name}\n"
        write_atomic(_checksum_path(path), lambda file: file.write(line.encode()))


class HistoryStore:
    """Reads histories; may be pickled, every process maps the shards itself.

    Args:
        allow_missing: leave out the tasks of shards that are missing or damaged, with a warning that names them.

    Attributes:
        index: what `index.json` says.
        task_indices: (n,) int64, of the tasks in `env.tasks()`.
        tasks: (n, F) int64, which task the histories of each position belong to.
        split: "train" and "test", each (m,) int64: positions of the tasks on that side.
        episode_stride: of the algorithm's episodes one in so many was kept.

    Raises:
        FileNotFoundError: when the folder is no store.
        ValueError: when the index is none, shards are missing or damaged, or none is left.
    """

    def __init__(self, folder: str | Path, allow_missing: bool = False) -> None:
        self.folder = Path(folder)
        self.index = read_index(self.folder)
        self.env = build_env(self.index["env"])
        if "schema" in self.index:
            mine = f"the store {self.folder} has"
            Schema.read(self.index["schema"]).require(self.env.schema, mine, f"{self.env.name} has now")
        self.streams, self.steps = int(self.index["streams"]), int(self.index["steps"])
        self.episode_stride = int(self.index.get("episode_stride", 1))
        width, dtype = layout(self.env)
        whole, faults = [], []
        for shard in self.index["shards"]:
            shape = (len(shard["tasks"]), self.streams, self.steps, *width)
            fault = find_fault(self.folder / shard["file"], shape, dtype)
            whole += [] if fault else [shard]
            faults += [fault] if fault else []
        advice = "the command that made the store makes these shards anew"
        if faults and not (allow_missing and whole):
            also = "; allow_missing (--allow-missing) uses the rest" if whole else ""
            raise ValueError(f"{len(faults)} shard(s) cannot be used: {'; '.join(faults)}. {advice}{also}")
        if faults:
            log.warning(
                "%d shard(s) are left out, with all their tasks: %s. %s", len(faults), "; ".join(faults), advice
            )
        self._places = [(shard["file"], row) for shard in whole for row in range(len(shard["tasks"]))]
        self._open: dict[str, np.ndarray] = {}
        self.task_indices = torch.tensor([task for shard in whole for task in shard["tasks"]])
        self.tasks = torch.tensor([goal for shard in whole for goal in shard["goals"]])
        if not torch.equal(self.tasks, self.env.tasks()[self.task_indices]):
            raise ValueError(f"{self.folder / INDEX_NAME}: its goals are not those of its task numbers; it was edited")
        position = {task: position for position, task in enumerate(self.task_indices.tolist())}
        self.split = {
            side: torch.tensor([position[task] for task in self.index["split"][side] if task in position]).long()
            for side in ("train", "test")
        }

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open shards behind: pickled, a memory map becomes a copy of the file."""
        return {**self.__dict__, "_open": {}}

    def __len__(self) -> int:
        """Number of tasks, n; each has `streams` histories of `steps` transitions."""
        return len(self._places)

    def read(self, task: int, stream: int | slice, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Read a piece of a history, (L, 7) int8, see `COLUMNS`, or (S, L, 7) for a slice of streams; a copy.

        Of environments that are no grids, (L,) or (S, L) of the schema's dtype.
        """
        file, row = self._places[task]
        return np.array(self._shard(file)[row, stream, start:stop])

    def ends(self, task: int, stream: int) -> np.ndarray:
        """Numbers (E,) int64 of the steps that ended an episode."""
        if isinstance(self.env, GridEnv):
            return np.flatnonzero(self.read(task, stream)[:, 6])
        pieces = self._shard(self._places[task][0])[self._places[task][1], stream]
        return np.flatnonzero(pieces["terminated"] | pieces["truncated"])

    def returns(self, task: int) -> np.ndarray:
        """Returns (streams, episodes) of all whole episodes of a task, int64 of grids.

        Where episodes are of different lengths, float64, as many as the stream with most has, NaN behind the others'.
        """
        if isinstance(self.env, GridEnv):
            episodes = self.steps // self.env.horizon
            rewards = self.read(task, slice(None), 0, episodes * self.env.horizon)[..., 3]
            return rewards.reshape(self.streams, episodes, -1).sum(axis=-1, dtype=np.int64)
        rewards = self.read(task, slice(None))["reward"].astype(np.float64)
        ends = [self.ends(task, stream) for stream in range(self.streams)]
        found = np.full((self.streams, max(map(len, ends))), np.nan)
        for row, earned, last in zip(found, rewards, ends, strict=True):
            row[: len(last)] = np.diff(earned.cumsum()[last], prepend=0.0)
        return found

    def mean_returns(self, task: int) -> np.ndarray:
        """Return of each episode (E,) float64, mean over the streams that have it."""
        returns = self.returns(task).astype(np.float64)
        return np.nanmean(returns, axis=0) if returns.size else returns[0]

    def _shard(self, file: str) -> np.ndarray:
        if file not in self._open:
            if len(self._open) == OPEN_SHARDS:
                del self._open[next(iter(self._open))]
            self._open[file] = np.load(self.folder / file, mmap_mode="r", allow_pickle=False)
        return self._open[file]


def _check_readable(env: Env) -> None:
    """Refuse an environment that the index would not give back."""
    try:
        written = json.dumps(env.describe())
        again = build_env(json.loads(written))
        same = type(again) is type(env) and json.dumps(again.describe()) == written
        fault = None if same and torch.equal(again.tasks(), env.tasks()) else f"its index gives {type(again).__name__}"
    except (TypeError, ValueError) as error:
        fault = str(error)
    if fault:
        raise ValueError(
            f"histories of {type(env).__name__} could not be read back ({fault}): use an environment that a store's "
            f"index can name, one of {', '.join(NAMES)} or a class of an admitted package; nothing was written"
        )


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard_{number:05d}.npy"


def read_index(folder: Path) -> dict[str, Any]:
    """Read what a store says of itself.

    Raises:
        FileNotFoundError: when it has no index.
        ValueError: when that is not an index of this version.
    """
    path = folder / INDEX_NAME
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {INDEX_NAME}: it is no store of histories; make one with zoo collect")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no JSON ({error}); collect anew into another folder") from error
    versions = (VERSION, SCHEMA_VERSION)
    if not isinstance(index, dict) or not set(INDEX_KEYS) <= index.keys() or index["version"] not in versions:
        raise ValueError(
            f"{path}: expected version {VERSION} or {SCHEMA_VERSION} with the keys {', '.join(INDEX_KEYS)}; "
            "collect anew"
        )
    if (index["version"] == SCHEMA_VERSION) != ("schema" in index):
        raise ValueError(f"{path}: version {index['version']} {'has no' if 'schema' in index else 'needs a'} schema")
    files = [shard.get("file") if isinstance(shard, dict) else None for shard in index["shards"]]
    if unexpected := [file for file in files if not re.fullmatch(r"[\w-]+\.npy", str(file))]:
        raise ValueError(f"{path}: a shard's file is {unexpected[0]!r}, expected a name like {shard_name(0)}")
    return index


def find_fault(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> str | None:
    """Compare a shard with its checksum.

    Args:
        shape: that it must have.

    Returns:
        What is wrong, with the name of the shard, or None.
    """
    if not path.is_file() or not _checksum_path(path).is_file():
        return f"{path} is missing, or was not finished"
    size = math.prod(shape) * dtype.itemsize
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError):
        return f"{path} is cut or damaged ({path.stat().st_size} bytes, expected {size} and a header)"
    if array.shape != tuple(shape) or array.dtype != dtype:
        return f"{path} holds {array.shape} {array.dtype}, expected {tuple(shape)} {dtype}"
    if _checksum_path(path).read_text(encoding="utf-8", errors="replace").split()[:1] != [file_hash(path)]:
        return f"{path} is damaged: its checksum is another than in {_checksum_path(path).name}"
    return None


def _checksum_path(path: Path) -> Path:
    """The file beside a shard that `sha256sum --check` takes."""
    return path.with_suffix(".sha256")


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
