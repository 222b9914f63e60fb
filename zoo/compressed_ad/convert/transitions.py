"""Data sets of XLand-MiniGrid as folders of histories."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from zoo.common.atomic_files import replace_atomically
from zoo.compressed_ad.convert.hdf5 import import_h5py
from zoo.compressed_ad.data.history import HistoryStore, HistoryWriter
from zoo.compressed_ad.envs.recorded import Recorded
from zoo.compressed_ad.envs.schema import Discrete, Schema, box

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
            with replace_atomically(output) as temporary:
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
