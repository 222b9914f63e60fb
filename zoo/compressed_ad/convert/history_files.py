"""Histories of other projects: the original's hdf5 file into a store and back, XLand-MiniGrid into a store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch

from zoo.common.atomic_files import replace_atomically
from zoo.compressed_ad.data.history import HistoryStore, replace_last_states, to_steps
from zoo.compressed_ad.data.history_writer import HistoryWriter, Recorder
from zoo.compressed_ad.envs.base import RecordedEnv
from zoo.compressed_ad.envs.grids import Darkroom, GridEnv
from zoo.compressed_ad.envs.spaces import Box, Discrete, Schema
from zoo.compressed_ad.nets.steps import Steps

log = logging.getLogger(__name__)

FIELDS = Steps._fields
Order = Literal["row_major", "shuffled"] | list[int]
TILES, COLOURS, ACTIONS = 13, 12, 6  # of XLand-MiniGrid; an observation's code is tile * 12 + colour


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

    Every step is repeated in the environment, so a wrong one or a wrong order is refused. The next state is then always
    the true one, where the file has, at the end of an episode, the cell where the next one begins.

    Args:
        source: the hdf5 file.
        output: folder to write, new or empty.
        order: of the tasks in the file: shuffled by the split's seed, as the last original wrote them (it then shuffles
            again and so trains on test goals), row_major, or a list of the tasks' numbers in that order.
        env: the original's dark room when not given.
        split_seed: of the split, and of the shuffled order.
        train_share: share of the tasks that are to be trained on.
        shard_size: tasks in one file.

    Raises:
        ValueError: when the file is corrupt or is something else, or does not come from this environment, or from these
            tasks in this order.
    """
    env = env or Darkroom()
    _refuse_random_starts(env)
    tasks = task_order(env, order, split_seed, train_share)
    with _convert_file(source, output) as (file, folder):
        groups = _group_numbers(file, len(tasks), source)
        steps, streams = file[f"{groups[0]}/actions"].shape
        numbers = [tasks[group] for group in groups]
        facts = {"name": "hdf5", "file": source.name, "groups": groups}
        writer = HistoryWriter(folder, env, numbers, streams, steps, shard_size, facts, 0, split_seed, train_share)
        for number in range(len(writer.shards)):
            part = groups[number * shard_size : (number + 1) * shard_size]
            repeated = [_repeat_group(file, source, group, (steps, streams), env, tasks[group]) for group in part]
            writer.write(number, np.stack(repeated))


def export_histories(source: Path, output: Path, order: Order = "row_major") -> None:
    """Turn a folder of histories into a history file that the original reads (hdf5).

    Args:
        source: folder of histories.
        output: file to write.
        order: of the tasks in the file; shuffled by the folder's own split, as the last version of the original
            expects, row_major, or a list of the tasks' numbers.
    """
    h5py = import_h5py()
    store = HistoryStore(source)
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
                histories = to_steps(store.read(position[task], slice(None)), env.schema)
                steps = replace_last_states(histories, env.start_cell)
                for name, values in zip(FIELDS, steps, strict=True):
                    array = values.transpose(0, 1).numpy()
                    array = array if name == "dones" else array.astype(np.int32)
                    file.create_dataset(f"{group}/{name}", data=array, compression="gzip", chunks=array.shape)
    print(output)


def import_xland(
    source: Path, output: Path, split_seed: int = 0, train_share: float = 0.9, tasks: list[int] | None = None
) -> None:
    """Turn a file of XLand-100B or Trivial-20B (hdf5) into a folder of histories.

    A group of the file is a task, its 32 histories are streams. Observations become (5, 5, 2) numbers, tile and colour.
    The next states are the following states, so at the end of an episode that of the reset, and the last step of each
    history is left out. All episodes count as truncated. The expert's actions are left out.

    Args:
        source: the hdf5 file.
        output: folder to write, new or empty.
        split_seed: of the split into training and test tasks.
        train_share: share of the tasks that are to be trained on.
        tasks: numbers of the groups; all when not given.
    """
    with _convert_file(source, output) as (file, folder):
        groups = sorted(map(int, file)) if tasks is None else tasks
        shapes = [file[f"{group}/actions"].shape for group in groups]
        streams, steps = (min(sizes) for sizes in zip(*shapes, strict=True))
        if len(set(shapes)) > 1:
            log.warning("%s: groups differ in size; the first %d of %d steps are taken", source, streams, steps)
        facts = {
            "name": "xland",
            "file": source.name,
            "groups": groups,
            "rulesets": [str(file[str(group)].attrs.get("ruleset-id")) for group in groups],
            "next_state_at_end": "reset",
        }
        limit = max(_longest_episode(file[f"{group}/dones"][:streams, :steps]) for group in groups)
        high = np.broadcast_to(np.array([TILES - 1, COLOURS - 1], dtype=np.int8), (5, 5, 2))
        schema = Schema(Box(np.zeros_like(high), high, dtype=np.int8), Discrete(ACTIONS), limit)
        env = RecordedEnv(f"xland {source.stem}", len(groups), schema.describe())
        writer = HistoryWriter(
            folder, env, range(len(groups)), streams, steps - 1, 1, facts, 0, split_seed, train_share
        )
        for number, group in enumerate(groups):
            writer.write(number, _read_xland_group(file[str(group)], env.schema, streams, steps)[None])


@contextmanager
def _convert_file(source: Path, output: Path) -> Iterator[tuple[Any, Path]]:
    """Open an hdf5 file, and replace `output`, which must be new or empty, by the folder that is written."""
    h5py = import_h5py()
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file of histories")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} holds something else; choose a new or an empty folder")
    try:
        with replace_atomically(output) as folder, h5py.File(source, "r") as file:
            yield file, folder
    except (OSError, KeyError) as error:
        raise ValueError(f"{source}: cut, corrupt or no file of histories ({error})") from error
    store = HistoryStore(output)
    print(f"{output}: {len(store)} tasks, {store.streams} streams, {store.steps} steps")


def task_order(env: GridEnv, order: Order, split_seed: int = 0, train_share: float = 0.9) -> list[int]:
    """Return the number in `env.tasks()` of each group of a file, see `import_histories`."""
    if order == "shuffled":
        return torch.cat(env.split(split_seed, train_share)).tolist()
    if order == "row_major":
        return list(range(len(env.tasks())))
    if isinstance(order, str):
        raise ValueError(f"order is row_major, shuffled or a list of task indices, found {order!r}")
    return [int(task) for task in order]


def import_h5py() -> ModuleType:
    """Import h5py; ImportError without the extra `rl`."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError("histories in hdf5 need h5py: pip install 'zoo[rl]'") from error
    return h5py


def _refuse_random_starts(env: GridEnv) -> None:
    if env.random_start:
        raise ValueError(f"{env.name} with random_start: in the original's files every episode begins in the same cell")


def _group_numbers(file: Any, tasks: int, path: Path) -> list[int]:
    names = list(file)
    if not names or not all(name.isdecimal() for name in names):
        raise ValueError(f"{path}: expected groups 0, 1, ... of tasks, found {', '.join(names[:5]) or 'none'}")
    groups = sorted(int(name) for name in names)
    if groups[-1] >= tasks:
        raise ValueError(f"{path}: group {groups[-1]} has no task, as there are {tasks}: another environment or order")
    return groups


def _read_group(group: Any, shape: tuple[int, int], name: str) -> Steps:
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


def _repeat_group(file: Any, source: Path, group: int, shape: tuple[int, int], env: GridEnv, task: int) -> np.ndarray:
    """Repeat the actions of a group in its environment, and compare; returns histories (S, T) as stored."""
    name = f"{source}, group {group}"
    steps = _read_group(file[str(group)], shape, name)
    if steps.actions.min() < 0 or steps.actions.max() >= env.num_actions:
        raise ValueError(f"{name}: expected actions 0 to {env.num_actions - 1}, found others; the file is corrupt")
    envs = env.start(env.tasks()[task].expand(len(steps.actions), -1))
    recorder = Recorder(env.schema, len(steps.actions), steps.length)
    for actions in steps.actions.unbind(dim=1):
        states = envs.states
        recorder.add(states, actions, envs.step(actions))
    expected = replace_last_states(to_steps(recorder.histories, env.schema), env.start_cell)
    hints = {
        "rewards": f"this group is not of task {env.tasks()[task].tolist()}: choose another order (row_major, shuffled "
        "with another split_seed, or a list)",
        "dones": f"its episodes have another length than {env.horizon}",
    }
    for field in ("dones", "states", "next_states", "rewards"):
        differs = getattr(expected, field).long() != getattr(steps, field)
        if differs.any():
            stream, number = differs.nonzero()[0][:2].tolist()
            hint = hints.get(field, f"it does not come from {env.describe()}")
            raise ValueError(f"{name}: {field} differ at step {number} of stream {stream}: {hint}")
    if not steps.rewards.any():
        log.warning("%s: no history has a reward, so only the order says that it is of task %d", name, task)
    return recorder.histories


def _read_xland_group(group: Any, schema: Schema, streams: int, steps: int) -> np.ndarray:
    rows = np.zeros((streams, steps - 1), dtype=schema.dtype)
    states = np.stack(np.divmod(group["states"][:streams, :steps], COLOURS), axis=-1)
    rows["state"], rows["next_state"] = states[:, :-1], states[:, 1:]
    for name, key in (("action", "actions"), ("reward", "rewards"), ("truncated", "dones")):
        rows[name] = group[key][:streams, : steps - 1]
    return rows


def _longest_episode(dones: np.ndarray) -> int:
    ends = [np.concatenate([[-1], np.flatnonzero(row), [len(row) - 1]]) for row in dones]
    return max(int(np.diff(row).max()) for row in ends)
