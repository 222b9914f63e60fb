"""Recording histories, and writing folders of them shard by shard."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.common.checks import check_at_least
from zoo.common.journal import begin_output
from zoo.compressed_ad.data.history import (
    INDEX_NAME,
    VERSION,
    checksum_path,
    file_hash,
    find_corruption,
    find_ends,
    shard_name,
)
from zoo.compressed_ad.envs.base import NAMES, Env, Transition, build_env
from zoo.compressed_ad.envs.spaces import Schema

log = logging.getLogger(__name__)


class Recorder:
    """Records histories step by step; further steps than the histories have are left out.

    Attributes:
        histories: (count, steps) of the schema's dtype.
    """

    def __init__(self, schema: Schema, count: int, steps: int) -> None:
        self.histories = np.zeros((count, steps), dtype=schema.dtype)
        self._time = 0

    def add(self, states: Tensor, actions: Tensor, transition: Transition) -> None:
        """Record the next step of all environments."""
        if self._time == self.histories.shape[1]:
            return
        fields = transition._asdict()
        fields["next_state"], fields["reward"] = fields.pop("next_states"), fields.pop("rewards")
        for name, value in {"state": states, "action": actions, **fields}.items():
            self.histories[name][:, self._time] = value.cpu().numpy()
        self._time += 1


def keep_every_nth_episode(histories: np.ndarray, steps: int, stride: int) -> np.ndarray:
    """Keep complete episodes, one step in `stride`: every stride-th episode where all are of one length.

    Args:
        histories: (N, S, L) as stored; L is `steps * stride`, and one episode more where their lengths differ.

    Returns:
        (N, S, steps); the last episode may be cut.
    """
    flat = histories.reshape(-1, histories.shape[2])
    result = np.empty((len(flat), steps), dtype=flat.dtype)
    for row, history in zip(result, flat, strict=True):
        bounds, count, pieces = [0, *find_ends(history).tolist(), len(history)], 0, []
        for start, stop in pairwise(bounds):
            if count * stride <= start:
                pieces.append(history[start:stop])
                count += stop - start
        row[:] = np.concatenate(pieces)[:steps]
    return result.reshape(*histories.shape[:2], steps)


class HistoryWriter:
    """Writes a store shard by shard; any process may write any shard, and a killed one leaves complete shards alone.

    Args:
        folder: new, empty, or begun with the same arguments.
        tasks: indices into `env.tasks()`, in the order of the store.
        source: description of the algorithm, as JSON values.

    Attributes:
        shards: task indices of each shard.

    Raises:
        ValueError: when an argument is out of range, the environment cannot be built from an index, or the folder was
            begun with other arguments. Nothing is written then.
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
        if len(set(tasks)) < len(tasks) or not 0 <= min(tasks) <= max(tasks) < len(goals):
            raise ValueError(f"expected different indices of the {len(goals)} tasks of {env.name}, found {list(tasks)}")
        self.folder = folder
        self.shards = [list(tasks[start : start + shard_size]) for start in range(0, len(tasks), shard_size)]
        self._shape, self._dtype = (streams, steps), env.schema.dtype
        train, test = env.split(split_seed, train_share)
        split = {"seed": split_seed, "train_share": train_share, "train": train.tolist(), "test": test.tolist()}
        shards = [
            {"file": shard_name(number), "tasks": part, "goals": [goals[task] for task in part]}
            for number, part in enumerate(self.shards)
        ]
        index = {
            "version": VERSION,
            "env": env.describe(),
            "schema": env.schema.describe(),
            "source": dict(source),
            "seed": seed,
            "split": split,
            "episode_stride": episode_stride,
            "streams": streams,
            "steps": steps,
            "shards": shards,
        }
        begin_output(folder, index, INDEX_NAME)

    def finished(self, number: int) -> bool:
        """Tell whether a shard is complete; a corrupt one is named in a warning."""
        path = self.folder / shard_name(number)
        if not path.is_file() or not checksum_path(path).is_file():
            return False
        corruption = find_corruption(path, (len(self.shards[number]), *self._shape), self._dtype)
        if corruption:
            log.warning("%s; it is made again", corruption)
        return corruption is None

    def write(self, number: int, transitions: np.ndarray) -> None:
        """Write a shard atomically: transitions (tasks, streams, steps) of the schema's dtype."""
        expected = (len(self.shards[number]), *self._shape)
        if transitions.shape != expected or transitions.dtype != self._dtype:
            raise ValueError(f"expected {expected} {self._dtype}, found {transitions.shape} {transitions.dtype}")
        path = self.folder / shard_name(number)
        write_atomic(path, lambda file: np.save(file, transitions, allow_pickle=False))
        line = f"{file_hash(path)}  {path.name}\n"
        write_atomic(checksum_path(path), lambda file: file.write(line.encode()))


def _check_readable(env: Env) -> None:
    """Refuse an environment that cannot be built from the index."""
    try:
        description = json.dumps(env.describe())
        rebuilt = build_env(json.loads(description))
        same = type(rebuilt) is type(env) and json.dumps(rebuilt.describe()) == description
        fault = None if same and torch.equal(rebuilt.tasks(), env.tasks()) else f"it gives {type(rebuilt).__name__}"
    except (TypeError, ValueError) as error:
        fault = str(error)
    if fault:
        raise ValueError(
            f"histories of {type(env).__name__} could not be read back ({fault}): use an environment that a store's "
            f"index can name, one of {', '.join(NAMES)} or a class of an admitted package; nothing was written"
        )
