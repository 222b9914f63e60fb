"""Folders of histories: memory-mapped shards of structured arrays, and an index that describes them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.compressed_ad.envs.base import build_env
from zoo.compressed_ad.envs.spaces import Schema
from zoo.compressed_ad.nets.steps import Steps

INDEX_NAME = "index.json"
INDEX_KEYS = ("version", "env", "schema", "source", "seed", "split", "streams", "steps", "shards")
VERSION = 3
OPEN_SHARDS = 128  # each holds a file descriptor


def to_steps(transitions: np.ndarray, schema: Schema) -> Steps:
    """Return stored histories (B, L) as steps, in the dtypes of the schema's spaces."""
    states, actions = schema.observation.dtype, schema.action.dtype
    dtypes = {"state": states, "action": actions, "reward": np.float32, "next_state": states}
    arrays = [transitions[name].astype(dtype) for name, dtype in dtypes.items()]
    return Steps(*map(torch.from_numpy, [*arrays, transitions["terminated"] | transitions["truncated"]]))


def replace_last_states(steps: Steps, start_cell: Sequence[int]) -> Steps:
    """Let the last step of an episode lead to the start of the next one, as in the original's files."""
    start = torch.tensor(list(start_cell))
    return steps._replace(next_states=torch.where(steps.dones[..., None], start, steps.next_states))


def find_ends(history: np.ndarray) -> np.ndarray:
    """Return the numbers (E,) int64 of the steps after each end of an episode of a stored history (L,)."""
    return np.flatnonzero(history["terminated"] | history["truncated"]) + 1


class HistoryStore:
    """Reads histories; may be pickled, every process maps the shards itself.

    Attributes:
        index: the content of `index.json`.
        task_indices: (n,) int64, of the tasks in `env.tasks()`.
        tasks: (n, F) int64, the task of each position.
        split: "train" and "test", each (m,) int64: positions of the tasks on that side.

    Raises:
        ValueError: when the index is invalid, or shards are missing or corrupt.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.index = read_index(self.folder)
        self.env = build_env(self.index["env"])
        stored, present = self.index["schema"], self.env.schema.describe()
        if stored != present:
            raise ValueError(
                f"the schemas differ. {self.folder} has {json.dumps(stored)}; {self.env.name} has {json.dumps(present)}"
            )
        self.streams, self.steps = int(self.index["streams"]), int(self.index["steps"])
        shards = self.index["shards"]
        self._check_shards()
        self._locations = [(shard["file"], row) for shard in shards for row in range(len(shard["tasks"]))]
        self._open: dict[str, np.ndarray] = {}
        self.task_indices = torch.tensor([task for shard in shards for task in shard["tasks"]])
        self.tasks = torch.tensor([goal for shard in shards for goal in shard["goals"]])
        if not torch.equal(self.tasks, self.env.tasks()[self.task_indices]):
            raise ValueError(f"{self.folder / INDEX_NAME}: its goals are not those of its task numbers; it was edited")
        position = {task: position for position, task in enumerate(self.task_indices.tolist())}
        self.split = {
            side: torch.tensor([position[task] for task in self.index["split"][side] if task in position]).long()
            for side in ("train", "test")
        }

    def _check_shards(self) -> None:
        """Refuse missing and corrupt shards."""
        faults = []
        for shard in self.index["shards"]:
            shape = (len(shard["tasks"]), self.streams, self.steps)
            if fault := find_corruption(self.folder / shard["file"], shape, self.env.schema.dtype):
                faults.append(fault)
        if faults:
            raise ValueError(
                f"{len(faults)} shard(s) cannot be used: {'; '.join(faults)}. The command that made the store makes "
                "these shards again"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open shards out: pickled, a memory map becomes a copy of the file."""
        return {**self.__dict__, "_open": {}}

    def __len__(self) -> int:
        """Number of tasks, n; each has `streams` histories of `steps` transitions."""
        return len(self._locations)

    def read(self, task: int, stream: int | slice, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Read part of a history, (L,) of the schema's dtype, or (S, L) for a slice of streams; a copy."""
        return np.array(self._histories(task)[stream, start:stop])

    def ends(self, task: int, stream: int) -> np.ndarray:
        """Return the numbers (E,) int64 of the steps after each end of an episode."""
        return find_ends(self._histories(task)[stream])

    def returns(self, task: int) -> np.ndarray:
        """Return what complete episodes of a task earned, (streams, episodes) float64; NaN after a stream's last."""
        rewards = self._histories(task)["reward"].astype(np.float64)
        ends = [self.ends(task, stream) - 1 for stream in range(self.streams)]
        returns = np.full((self.streams, max(map(len, ends))), np.nan)
        for row, earned, last in zip(returns, rewards, ends, strict=True):
            row[: len(last)] = np.diff(earned.cumsum()[last], prepend=0.0)
        return returns

    def _histories(self, task: int) -> np.ndarray:
        """The memory-mapped histories (streams, steps) of a task."""
        file, row = self._locations[task]
        if file not in self._open:
            if len(self._open) == OPEN_SHARDS:
                del self._open[next(iter(self._open))]
            self._open[file] = np.load(self.folder / file, mmap_mode="r", allow_pickle=False)
        return self._open[file][row]


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard_{number:05d}.npy"


def read_index(folder: Path) -> dict[str, Any]:
    """Read the index of a store; ValueError when it is not of this version."""
    path = folder / INDEX_NAME
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {INDEX_NAME}: it is no store of histories; make one with zoo collect")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no JSON ({error}); collect again into another folder") from error
    if not isinstance(index, dict) or not set(INDEX_KEYS) <= index.keys() or index["version"] != VERSION:
        raise ValueError(
            f"{path}: expected version {VERSION} with the keys {', '.join(INDEX_KEYS)}; collect again: zoo collect"
        )
    shards, split = index["shards"], index["split"]
    if not isinstance(shards, list) or not isinstance(split, dict) or not {"train", "test"} <= split.keys():
        raise ValueError(f"{path}: expected a list of shards, and a split with train and test; it was edited")
    files = [shard.get("file") if isinstance(shard, dict) else None for shard in shards]
    if unexpected := [file for file in files if not re.fullmatch(r"[\w-]+\.npy", str(file))]:
        raise ValueError(f"{path}: a shard's file is {unexpected[0]!r}, expected a name like {shard_name(0)}")
    return index


def find_corruption(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> str | None:
    """Compare a shard with its checksum, the expected shape and dtype; returns the fault with its name, or None."""
    if not path.is_file() or not checksum_path(path).is_file():
        return f"{path} is missing, or was not finished"
    size = math.prod(shape) * dtype.itemsize
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError):
        return f"{path} is cut or corrupt ({path.stat().st_size} bytes, expected {size} and a header)"
    if array.shape != tuple(shape) or array.dtype != dtype:
        return f"{path} holds {array.shape} {array.dtype}, expected {tuple(shape)} {dtype}"
    if checksum_path(path).read_text(encoding="utf-8", errors="replace").split()[:1] != [file_hash(path)]:
        return f"{path} is corrupt: its checksum is another than in {checksum_path(path).name}"
    return None


def checksum_path(path: Path) -> Path:
    """The file next to a shard that `sha256sum --check` takes."""
    return path.with_suffix(".sha256")


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
