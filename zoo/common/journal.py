"""Work lists that may be killed at any point and called again: what is done stays, what is missing is made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

from zoo.common.atomic_files import LOCK_NAME, TEMPORARY_MARK, delete_temporary_files, write_atomic

Item = TypeVar("Item")
Row = dict[str, Any]


class Journal:
    """Rows in a file of JSON lines, each added at once, so that a kill tears no more than the last one.

    Args:
        path: the file; its folder is made when missing. Of several rows with one `key` the last counts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}  # those that `open` kept and `add` added

    def open(self, keys: Set[str] | None = None) -> dict[str, Row]:
        """Take up the rows of earlier calls by key: all, or those of `keys` with the `status` "done"; drop others."""
        rows = {row["key"]: row for row in self.read() if isinstance(row, dict) and "key" in row}
        if keys is not None:
            rows = {key: row for key, row in rows.items() if key in keys and row["status"] == "done"}
        self.rows = rows
        self.write(rows.values())
        return rows

    def add(self, row: Row) -> None:
        """Add a row to the file at once."""
        self.rows[row["key"]] = row
        self.append(row)

    def close(self, keys: Iterable[str]) -> list[Row]:
        """Write the rows in the order of keys and return them."""
        rows = [self.rows[key] for key in keys if key in self.rows]
        self.write(rows)
        return rows

    def read(self) -> list[Any]:
        """Read the rows of the file without those that a kill tore; none when it is missing."""
        rows = []
        for line in self.path.read_bytes().split(b"\n") if self.path.is_file() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        return rows

    def append(self, row: Any) -> None:
        """Add a row to the file, and to nothing else."""
        with self.path.open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            is_torn = size > 0 and file.read(1) != b"\n"
            file.write((b"\n" if is_torn else b"") + json_line(row))

    def write(self, rows: Iterable[Any]) -> None:
        """Replace the file."""
        content = b"".join(map(json_line, rows))
        write_atomic(self.path, lambda file: file.write(content))


def json_line(row: Any) -> bytes:
    """Format a row as a line of JSON; values of numpy and torch become plain ones, what JSON has not becomes text."""
    text = json.dumps(row, default=lambda value: value.item() if hasattr(value, "item") else str(value))
    return f"{text}\n".encode()


def format_error(error: Exception) -> str:
    """Format an error in one line, for the row of an item that failed."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def pending_items(
    items: Sequence[Item], is_done: Callable[[Item], bool], rank: int = 0, world_size: int = 1
) -> list[Item]:
    """List the items without result that are this process's: every world_size-th from the rank-th on.

    The results are files, so the processes need not talk to each other.
    """
    return [item for item in items[rank::world_size] if not is_done(item)]


def begin_output(
    output: Path,
    settings: Mapping[str, Any],
    name: str = "settings.json",
    notes: Sequence[str] = (),
    sweep: bool = False,
) -> None:
    """Write the settings of a new folder of results, or compare them: ValueError when it was begun with others.

    Keys in `notes` are not compared. `sweep` deletes what killed processes left, where no other one writes now.
    """
    path = output / name
    settings = json.loads(json.dumps(settings))
    # listed before the settings are read: another process may write them now, and does so before all else
    names = [each.name for each in output.iterdir()] if output.is_dir() else []
    others = [name for name in names if TEMPORARY_MARK not in name and not name.startswith(LOCK_NAME)]
    if path.is_file():
        old, new = _flatten(json.loads(path.read_text(encoding="utf-8"))), _flatten(settings)
        changes = [
            f"{key} {old.get(key)!r:.60} (now {new.get(key)!r:.60})"
            for key in {**old, **new}
            if old.get(key) != new.get(key) and key not in notes
        ]
        if changes:
            raise ValueError(
                f"{output} was begun with other settings: {', '.join(changes)}; choose another folder, or delete it"
            )
        if sweep:
            delete_temporary_files(output)
        return
    if others:
        raise ValueError(f"{output} holds something else ({others[0]}); choose a new or an empty folder")
    write_atomic(path, lambda file: file.write(json.dumps(settings, indent=1, ensure_ascii=False).encode()))


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Name the settings of components by dotted keys, `solver.method`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return flat
