"""Transitions of other projects as folders of histories: data sets of XLand-MiniGrid, Vintix, Minari (h5py alone)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.common.atomic import replacing
from zoo.compressed_ad.convert.hdf5 import import_h5py
from zoo.compressed_ad.data.history import HistoryStore, HistoryWriter
from zoo.compressed_ad.envs.recorded import Recorded
from zoo.compressed_ad.envs.schema import Box, Discrete, Schema, Space, box

log = logging.getLogger(__name__)

TILES, COLOURS, ACTIONS = 13, 12, 6  # of XLand-MiniGrid; an observation's code is tile * 12 + colour


def import_xland(
    source: Path, output: Path, split_seed: int = 0, train_share: float = 0.9, tasks: list[int] | None = None
) -> None:
    """Turn a file of XLand-100B or Trivial-20B (hdf5) into a folder of histories.

    A group of the file is a task, its 32 histories are streams. Observations become (5, 5, 2) numbers, tile and colour.
    The file has no next states: they are the following states, so at the end of an episode that of the reset, and the
    last step of each history is left out. It does not say why an episode ended: all are truncated. The expert's actions
    are left out.

    Args:
        source: the hdf5 file.
        output: folder to write, new or empty; it appears when it is whole.
        split_seed: of the split into training and test tasks.
        train_share: share of the tasks that are to be trained on.
        tasks: numbers of the groups; all when not given.

    Raises:
        FileNotFoundError: when there is no such file.
        ImportError: when h5py is missing.
        ValueError: when the file is something else, or output holds something.
    """
    h5py = import_h5py()
    _refuse(source.is_file(), source, output)
    try:
        with h5py.File(source, "r") as file:
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
            limit = max(_longest(file[f"{group}/dones"][:streams, :steps]) for group in groups)
            places = box((5, 5, 2), "int8", 0, [[[TILES - 1, COLOURS - 1]] * 5] * 5)
            env = Recorded(f"xland {source.stem}", len(groups), Schema(places, Discrete(ACTIONS), limit).describe())
            with replacing(output) as temporary:
                writer = HistoryWriter(
                    temporary, env, range(len(groups)), streams, steps - 1, 1, facts, 0, split_seed, train_share
                )
                for number, group in enumerate(groups):
                    writer.write(number, _xland_group(file[str(group)], env.schema, streams, steps)[None])
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{source}: cut, damaged or no file of XLand-MiniGrid ({error})") from error
    _tell(output)


def _xland_group(group: Any, schema: Schema, streams: int, steps: int) -> np.ndarray:
    rows = np.zeros((streams, steps - 1), dtype=schema.dtype)
    states = np.stack(np.divmod(group["states"][:streams, :steps], COLOURS), axis=-1)
    rows["state"], rows["next_state"] = states[:, :-1], states[:, 1:]
    for name, key in (("action", "actions"), ("reward", "rewards"), ("truncated", "dones")):
        rows[name] = group[key][:streams, : steps - 1]
    return rows


def import_vintix(
    sources: list[Path],
    output: Path,
    split_seed: int = 0,
    train_share: float = 0.9,
    action_bounds: list[float] | None = None,
) -> None:
    """Turn data sets of Vintix or Vintix II (hdf5) into a folder of histories.

    A folder is a task, each `.h5` in it a history, of which as many are taken as every task has, and of these as many
    steps as all have. Their groups, `START-END`, are joined in order. The files have no next states: they are the
    following states, so at the end of an episode (before a `step_num` of 0) that of the reset, and the last step of
    each history is left out. They do not say why an episode ended: all are truncated. Rewards are as recorded, without
    the scale in training that the project names. The demonstrator's actions of Vintix II are left out.

    Args:
        sources: folders of tasks with the same spaces.
        output: folder to write, new or empty; it appears when it is whole.
        split_seed: of the split into training and test tasks.
        train_share: share of the tasks that are to be trained on.
        action_bounds: lowest and highest number of an action; those that occur when not given.

    Raises:
        FileNotFoundError: when a folder is none of a task.
        ImportError: when h5py is missing.
        ValueError: when files are damaged or something else, tasks have different spaces, actions lie outside the
            bounds, or output holds something.
    """
    h5py = import_h5py()
    files = [sorted(folder.glob("*.h5")) for folder in sources]
    for folder, found in zip(sources, files, strict=True):
        _refuse(bool(found), folder, output)
    streams = min(map(len, files))
    if max(map(len, files)) > streams:
        log.warning("tasks have %d to %d histories; the first %d of each are taken", streams, *(2 * [streams]))
    read: list[list[dict[str, np.ndarray]]] = []
    for found in files:
        read.append([])
        for path in found[:streams]:
            try:
                with h5py.File(path, "r") as file:
                    read[-1].append(_vintix_history(file))
            except (OSError, KeyError, ValueError) as error:
                raise ValueError(f"{path}: cut, damaged or no file of Vintix ({error})") from error
    flat = [history for task in read for history in task]
    shapes = {tuple(history[key].shape[1:] for key in ("proprio_observation", "action")) for history in flat}
    if len(shapes) > 1:
        raise ValueError(f"the tasks have different spaces, observations and actions of {sorted(shapes)}: import each")
    (shape,) = shapes
    steps = min(len(history["reward"]) for history in flat) - 1
    low, high = action_bounds or (
        float(min(history["action"].min() for history in flat)),
        float(max(history["action"].max() for history in flat)),
    )
    if any(history["action"].min() < low or history["action"].max() > high for history in flat):
        raise ValueError(f"action_bounds {low} to {high}: there are actions outside")
    starts = [np.flatnonzero(history["step_num"] == 0) for history in flat]
    limit = max(
        int(np.diff(np.concatenate([[0], each, [len(history["reward"])]])).max())
        for each, history in zip(starts, flat, strict=True)
    )
    places = box(shape[0], "float32", -np.inf, np.inf)
    env = Recorded("vintix", len(read), Schema(places, box(shape[1], "float32", low, high), limit).describe())
    facts = {"name": "vintix", "tasks": [folder.name for folder in sources], "next_state_at_end": "reset"}
    with replacing(output) as temporary:
        writer = HistoryWriter(temporary, env, range(len(read)), streams, steps, 1, facts, 0, split_seed, train_share)
        for number, task in enumerate(read):
            rows = np.zeros((1, streams, steps), dtype=env.schema.dtype)
            for row, history in zip(rows[0], task, strict=True):
                state = history["proprio_observation"]
                row["state"], row["next_state"] = state[:steps], state[1 : steps + 1]
                row["action"], row["reward"] = history["action"][:steps], history["reward"][:steps]
                row["truncated"] = history["step_num"][1 : steps + 1] == 0
            writer.write(number, rows)
    _tell(output)


def _vintix_history(file: Any) -> dict[str, np.ndarray]:
    """The groups of a file joined, by key."""
    groups = sorted(file, key=lambda name: int(name.partition("-")[0]))
    keys = ("proprio_observation", "action", "reward", "step_num")
    joined = {key: np.concatenate([file[group][key][:] for group in groups]) for key in keys}
    joined["reward"], joined["step_num"] = (joined[key].reshape(-1) for key in ("reward", "step_num"))
    if len({len(values) for values in joined.values()}) > 1 or len(joined["reward"]) < 2:
        raise ValueError(f"lengths {[len(values) for values in joined.values()]}; expected equal ones, at least 2")
    return joined


def import_minari(
    sources: list[Path], output: Path, split_seed: int = 0, train_share: float = 0.9, steps: int | None = None
) -> None:
    """Turn data sets of Minari (hdf5) into a folder of histories; each data set is a task with one history.

    Episodes follow each other in the order of their ids. That is a learning history only where the data set's
    algorithm recorded its training in this order; otherwise they are demonstrations. Dict observations become one Box,
    their parts in alphabetical order. No environment is needed, and none is asked for.

    Args:
        sources: folders of data sets, `.../data` with metadata.json or the one above it.
        output: folder to write, new or empty; it appears when it is whole.
        split_seed: of the split into training and test tasks.
        train_share: share of the data sets that are to be trained on.
        steps: of each history; those of the shortest data set when not given.

    Raises:
        FileNotFoundError: when a folder is no data set.
        ImportError: when h5py is missing.
        ValueError: when data sets differ in their spaces, or have pictures as JPEG, other spaces, or arrow files.
    """
    h5py = import_h5py()
    folders = [each if (each / "metadata.json").is_file() else each / "data" for each in sources]
    for folder in folders:
        _refuse((folder / "metadata.json").is_file() and (folder / "main_data.hdf5").is_file(), folder, output)
    facts = [json.loads((folder / "metadata.json").read_text(encoding="utf-8")) for folder in folders]
    read = []
    for folder, fact in zip(folders, facts, strict=True):
        if fact.get("data_format", "hdf5") != "hdf5":
            raise ValueError(f"{folder}: its format is {fact['data_format']}; minari converts it to hdf5")
        observation, action = (json.loads(fact[f"{key}_space"]) for key in ("observation", "action"))
        spaces = (_space(observation, folder), _space(action, folder))
        if isinstance(spaces[0], Box) and spaces[0].is_image and fact.get("jpeg_encoding", True):
            raise ValueError(f"{folder}: its pictures are JPEG (jpeg_encoding), which lost something; write it without")
        with h5py.File(folder / "main_data.hdf5", "r") as file:
            names = sorted(file, key=lambda name: int(name.rpartition("_")[2]))
            episodes = [_episode(file[name], observation, action, spaces) for name in names]
        read.append((spaces, episodes))
    if any(spaces != read[0][0] for spaces, _ in read):
        raise ValueError(f"the data sets have different spaces: {'; '.join(str(spaces) for spaces, _ in read)}")
    limit = max(len(episode) for _, episodes in read for episode in episodes)
    schema = Schema(*read[0][0], limit)
    env = Recorded("minari", len(read), schema.describe())
    histories = [np.concatenate(episodes).astype(schema.dtype) for _, episodes in read]
    length = min(map(len, histories)) if steps is None else steps
    if length > min(map(len, histories)):
        raise ValueError(f"steps {steps}: the shortest data set has {min(map(len, histories))}")
    told = [{key: fact.get(key) for key in ("dataset_id", "algorithm_name", "total_steps")} for fact in facts]
    with replacing(output) as temporary:
        source = {"name": "minari", "datasets": told}
        writer = HistoryWriter(temporary, env, range(len(read)), 1, length, 1, source, 0, split_seed, train_share)
        for number, history in enumerate(histories):
            writer.write(number, history[None, None, :length])
    _tell(output)


def _space(described: Mapping[str, Any], folder: Path) -> Space:
    """A space as Minari writes it; a Dict of boxes and classes as one box."""
    kind = described.get("type")
    if kind == "Discrete":
        return Discrete(int(described["n"]))
    if kind == "Box":
        return box(tuple(described["shape"]), described["dtype"], described["low"], described["high"])
    if kind == "Dict":
        parts = [_space(part, folder) for _, part in sorted(described["subspaces"].items())]
        low: list[float] = []
        high: list[float] = []
        for part in parts:
            bounds = part.limits() if isinstance(part, Box) else ([0.0], [part.n - 1.0])
            low, high = low + bounds[0], high + bounds[1]
        return box((len(low),), "float32", low, high)
    raise ValueError(f"{folder}: a space of type {kind}; expected Box, Discrete or a Dict of them")


def _values(data: Any, described: Mapping[str, Any]) -> np.ndarray:
    """Values (T, *space) of a space; those of a Dict flattened."""
    if described["type"] != "Dict":
        return np.asarray(data) - (int(described.get("start", 0)) if described["type"] == "Discrete" else 0)
    parts = [_values(data[name], part) for name, part in sorted(described["subspaces"].items())]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1).astype(np.float32)


def _episode(
    group: Any, observation: Mapping[str, Any], action: Mapping[str, Any], spaces: Sequence[Space]
) -> np.ndarray:
    states, actions = _values(group["observations"], observation), _values(group["actions"], action)
    rows = np.zeros(len(actions), dtype=Schema(spaces[0], spaces[1], 1).dtype)
    rows["state"], rows["next_state"], rows["action"] = states[: len(actions)], states[1 : len(actions) + 1], actions
    for name, key in (("reward", "rewards"), ("terminated", "terminations"), ("truncated", "truncations")):
        rows[name] = group[key][: len(actions)]
    rows["truncated"][-1:] |= ~rows["terminated"][-1:]  # a recording that stopped in an episode
    return rows


def _longest(dones: np.ndarray) -> int:
    """Steps of the longest episode of histories (S, T)."""
    ends = [np.concatenate([[-1], np.flatnonzero(row), [len(row) - 1]]) for row in dones]
    return max(int(np.diff(row).max()) for row in ends)


def _refuse(there: bool, source: Path, output: Path) -> None:
    if not there:
        raise FileNotFoundError(f"{source}: no such data set")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} holds something else; choose a new or an empty folder")


def _tell(output: Path) -> None:
    store = HistoryStore(output)
    print(f"{output}: {len(store)} tasks, {store.streams} streams, {store.steps} steps")
