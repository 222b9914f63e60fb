"""The original's hdf5 file of histories: into a store, and back."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic_files import replace_atomically
from zoo.compressed_ad.data.history import HistoryStore, HistoryWriter, ending_at, from_steps, to_steps
from zoo.compressed_ad.envs.grids import Darkroom, GridEnv
from zoo.compressed_ad.nets.steps import Steps

log = logging.getLogger(__name__)

FIELDS = Steps._fields
Order = Literal["row_major", "shuffled"] | list[int]


def import_histories(
    source: Path,
    output: Path,
    order: Order,
    env: GridEnv | None = None,
    split_seed: int = 0,
    train_share: float = 0.9,
    shard_size: int = 9,
) -> None:
    """Turn a history file of the original (hdf5) into a folder of histories.

    Every step is played again, so a wrong environment or order is refused. The next state is then always the true
    successor, where the file has, at the end of an episode, the cell where the next one begins.

    Args:
        source: the hdf5 file.
        output: folder to write, new or empty; it appears when it is whole.
        order: of the tasks in the file: shuffled by the split's seed, as the last original wrote them (it then shuffles
            again and so trains on test goals), row_major, or a list of the tasks' numbers in that order.
        env: the original's dark room when not given.
        split_seed: of the split, and of the shuffled order.
        train_share: share of the tasks that are to be trained on.
        shard_size: tasks in one file.

    Raises:
        FileNotFoundError: when there is no such file.
        ImportError: when h5py is missing.
        ValueError: when the file is damaged or is something else, or does not come from this environment, or from these
            tasks in this order.
    """
    h5py = import_h5py()
    env = env or Darkroom()
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file of histories")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} holds something else; choose a new or an empty folder")
    _refuse_random_starts(env)
    tasks = task_order(env, order, split_seed, train_share)
    with replace_atomically(output) as temporary:
        try:
            with h5py.File(source, "r") as file:
                groups = _groups(file, len(tasks), source)
                shape = file[f"{groups[0]}/actions"].shape
                chosen = [tasks[group] for group in groups]
                facts = {"name": "hdf5", "file": source.name, "groups": groups}
                writer = HistoryWriter(
                    temporary, env, chosen, shape[1], shape[0], shard_size, facts, 0, split_seed, train_share
                )
                for number in range(len(writer.shards)):
                    part = groups[number * shard_size : (number + 1) * shard_size]
                    writer.write(
                        number, np.stack([_take(file, source, group, shape, env, tasks[group]) for group in part])
                    )
        except (OSError, KeyError) as error:
            raise ValueError(f"{source}: cut, damaged or no original history file ({error})") from error
    store = HistoryStore(output)
    print(f"{output}: {len(store)} tasks, {store.streams} streams, {store.steps} steps")


def export_histories(source: Path, output: Path, order: Order = "row_major", allow_missing: bool = False) -> None:
    """Turn a folder of histories into a history file that the original reads (hdf5).

    Args:
        source: folder of histories.
        output: file to write; it appears when it is whole.
        order: of the tasks in the file; shuffled by the folder's own split, which is what the last version of the
            original takes for granted, row_major, or a list of the tasks' numbers.
        allow_missing: leave out tasks whose files are missing or damaged.

    Raises:
        ImportError: when h5py is missing.
        ValueError: when the environment is none of the original's.
    """
    h5py = import_h5py()
    store = HistoryStore(source, allow_missing)
    env, split = store.env, store.index["split"]
    if not isinstance(env, GridEnv):
        raise ValueError(f"{source} holds histories of {env.name}: the original's files are of its grids")
    _refuse_random_starts(env)
    position = {task: place for place, task in enumerate(store.task_indices.tolist())}
    tasks = task_order(env, order, split["seed"], split["train_share"])
    missing = [group for group, task in enumerate(tasks) if task not in position]
    if missing:
        log.warning(
            "%s: %d of %d tasks are not in the store, their groups are left out", output, len(missing), len(tasks)
        )
    with replace_atomically(output) as temporary, h5py.File(temporary, "w") as file:
        for group, task in enumerate(tasks):
            if task in position:
                steps = ending_at(to_steps(store.read(position[task], slice(None))), env.start_cell)
                for name, values in zip(FIELDS, steps, strict=True):
                    array = values.transpose(0, 1).numpy()
                    array = array if name == "dones" else array.astype(np.int32)
                    file.create_dataset(f"{group}/{name}", data=array, compression="gzip", chunks=array.shape)
    print(output)


def task_order(env: GridEnv, order: Order, split_seed: int = 0, train_share: float = 0.9) -> list[int]:
    """Which of `env.tasks()` each group of a file is of, see `import_histories`."""
    if order == "shuffled":
        return torch.cat(env.split(split_seed, train_share)).tolist()
    if order == "row_major":
        return list(range(len(env.tasks())))
    if isinstance(order, str):
        raise ValueError(f"order is row_major, shuffled or a list of task indices, found {order!r}")
    return [int(task) for task in order]


def import_h5py() -> ModuleType:
    """The package h5py.

    Raises:
        ImportError: without the extra `rl`.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError("histories in hdf5 need h5py: pip install 'zoo[rl]'") from error
    return h5py


def _refuse_random_starts(env: GridEnv) -> None:
    if env.random_start:
        raise ValueError(f"{env.name} with random_start: in the original's files every episode begins in the same cell")


def _groups(file: Any, tasks: int, path: Path) -> list[int]:
    """The numbers of the groups."""
    names = list(file)
    if not names or not all(name.isdecimal() for name in names):
        raise ValueError(f"{path}: expected groups 0, 1, ... of tasks, found {', '.join(names[:5]) or 'none'}")
    groups = sorted(int(name) for name in names)
    if groups[-1] >= tasks:
        raise ValueError(f"{path}: group {groups[-1]} has no task, as there are {tasks}: another environment or order")
    return groups


def _take(file: Any, path: Path, group: int, shape: tuple[int, int], env: GridEnv, task: int) -> np.ndarray:
    """Histories (S, T, 7) int8 of a group, done again."""
    name = f"{path}, group {group}"
    histories = _repeat(env, env.tasks()[task], _read(file[str(group)], shape, name), name)
    if not histories[..., 3].any():
        log.warning("%s: no history has a reward, so only the order says that it is of task %d", name, task)
    return histories


def _read(group: Any, shape: tuple[int, int], name: str) -> Steps:
    """Histories of a task, (S, T, ...)."""
    missing = [field for field in FIELDS if field not in group]
    if missing:
        raise ValueError(f"{name}: no {', '.join(missing)}; found {', '.join(group)}")
    arrays = [group[field][()] for field in FIELDS]
    for field, array in zip(FIELDS, arrays, strict=True):
        expected = (*shape, 2) if field.endswith("states") else shape
        if array.shape != expected:
            raise ValueError(f"{name}: expected {field} {expected}, found {array.shape}")
    return Steps(*(torch.from_numpy(array.astype(np.int64)).transpose(0, 1) for array in arrays))


def _repeat(env: GridEnv, task: Tensor, found: Steps, name: str) -> np.ndarray:
    """Act again as a file says, and compare; returns (S, T, 7) int8 with true successors."""
    if found.actions.min() < 0 or found.actions.max() >= env.num_actions:
        raise ValueError(f"{name}: expected actions 0 to {env.num_actions - 1}, found others; the file is damaged")
    worlds = env.start(task.expand(len(found.actions), -1))
    parts = []
    for actions in found.actions.unbind(dim=1):
        states = worlds.states
        step = worlds.step(actions)
        parts.append((states, actions, step.rewards, step.next_states, torch.full_like(actions, step.done).bool()))
    true = Steps(*(torch.stack(each, dim=1) for each in zip(*parts, strict=True)))
    expected = ending_at(true, env.start_cell)
    hints = {
        "rewards": f"this group is not of task {task.tolist()}: choose another order (row_major, shuffled with another "
        "split_seed, or a list)",
        "dones": f"its episodes have another length than {env.horizon}",
    }
    for field in ("dones", "states", "next_states", "rewards"):
        differs = getattr(expected, field).long() != getattr(found, field)
        if differs.any():
            stream, step_number = differs.nonzero()[0][:2].tolist()
            hint = hints.get(field, f"it does not come from {env.describe()}")
            raise ValueError(f"{name}: {field} differ at step {step_number} of stream {stream}: {hint}")
    return from_steps(true)
