"""Work lists that may be killed at any point and called again: what is done is kept, what is missing or failed is made.

`Journal` and `Table` keep a row per item, `Share` tells a process its part of items whose results are files, `spread`
hands items to processes of this one. `begin_output` refuses a folder that other settings began.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from rich.progress import track

from zoo.common.atomic_files import TEMPORARY_MARK, delete_path, delete_temporary_files, write_atomic
from zoo.common.locks import LOCK_NAME
from zoo.common.reports import Row, csv_lines

SHOWN = 60  # characters of a value in a message

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Journal:
    """Rows in a file of JSON lines, each added at once, so that a kill tears no more than the last one.

    Args:
        path: the file; its folder is made when missing.
        key: what identifies a row in it; of several rows with one key the last counts.
        head: first lines of the file; a file that begins otherwise counts as empty.
        ascii: escape other characters.

    Attributes:
        rows: by key, those that `begin` kept and `add` added.
    """

    def __init__(self, path: Path, key: str = "key", head: bytes = b"", ascii: bool = False) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        self._key, self._head, self._ascii = key, head, ascii

    def begin(self, wanted: Set[str] | None = None) -> dict[str, Row]:
        """Take up what earlier calls left, and drop the rest from the file.

        Args:
            wanted: keys; of their rows those with the `status` "done" are kept. None keeps all rows.

        Returns:
            The kept rows by key.

        Raises:
            OSError: when the file cannot be read or written.
        """
        rows = {row[self._key]: row for row in self.read() if isinstance(row, dict) and self._key in row}
        if wanted is not None:
            rows = {key: row for key, row in rows.items() if key in wanted and row["status"] == "done"}
        self.rows = rows
        self.write(rows.values())
        return rows

    def add(self, row: Row) -> None:
        """Add a row to the file at once."""
        self.rows[row[self._key]] = row
        self.append(row)

    def finish(self, keys: Iterable[str]) -> list[Row]:
        """Write the known rows in the order of keys and return them."""
        rows = [self.rows[key] for key in keys if key in self.rows]
        self.write(rows)
        return rows

    def read(self) -> list[Any]:
        """The rows of the file without those that a kill tore; none when it is missing or begins otherwise."""
        data = self.path.read_bytes() if self.path.is_file() else b""
        return self._parse(data[len(self._head) :].decode(errors="replace")) if data.startswith(self._head) else []

    def append(self, row: Any) -> None:
        """Add a row to the file, and to nothing else."""
        with self.path.open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            torn = size > 0 and file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + self._format([row]))

    def write(self, rows: Iterable[Any]) -> None:
        """Replace the file."""
        content = self._head + self._format(rows)
        write_atomic(self.path, lambda file: file.write(content))

    def _parse(self, text: str) -> list[Any]:
        rows = []
        for line in text.split("\n"):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return rows

    def _format(self, rows: Iterable[Any]) -> bytes:
        return b"".join(json_line(row, self._ascii) for row in rows)


class Table(Journal):
    """Rows in a CSV file; the key is written last, so that a row torn by a kill has none.

    Args:
        path: the file; its folder is made when missing.
        texts: columns that hold text.
        numbers: columns that hold numbers; NaN where a row has none.
        key: text column that identifies a row.
    """

    def __init__(self, path: Path, texts: Sequence[str], numbers: Sequence[str], key: str = "key") -> None:
        self.columns = [*texts, *numbers, key]
        self._numbers = numbers
        super().__init__(path, key, csv_lines([{name: name for name in self.columns}], self.columns))

    def _parse(self, text: str) -> list[Row]:
        reader = csv.DictReader(io.StringIO(text, newline=""), self.columns, restkey="", restval="")
        rows: list[Row] = [dict(row) for row in reader if row[self._key]]
        return [row | {name: float(row[name] or "nan") for name in self._numbers} for row in rows]

    def _format(self, rows: Iterable[Row]) -> bytes:
        empty = dict.fromkeys(self._numbers, math.nan)
        return csv_lines([empty | row for row in rows], self.columns)


def json_line(row: Any, ascii: bool = True) -> bytes:
    """A row as a line of JSON; numbers of numpy and torch as plain ones, what JSON has no word for as text."""
    return (json.dumps(row, ensure_ascii=ascii, default=_json_value) + "\n").encode()


def _json_value(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def format_error(error: Exception) -> str:
    """An error in one line, for the row of an item that failed."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class Share(Generic[Item]):
    """What one of several processes does of a work list: every world_size-th item from the rank-th on.

    The results are files, so the processes need not talk to each other: what has its file is done.

    Args:
        items: of all processes.
        is_done: whether an item's result is there.
        rank: of this process, 0 to world_size - 1.

    Attributes:
        mine: the items of this process.
        owed: those of them without result when it began.
    """

    def __init__(
        self, items: Sequence[Item], is_done: Callable[[Item], bool], rank: int = 0, world_size: int = 1
    ) -> None:
        self._items, self._is_done, self._rank = items, is_done, rank
        self.mine = list(items[rank::world_size])
        self.owed = [item for item in self.mine if not is_done(item)]

    def track(self, title: str, progress: bool = True) -> Iterable[Item]:
        """The owed items, with a bar on rank zero."""
        return track(self.owed, title, disable=not (progress and self.owed and self._rank == 0))

    def missing(self) -> int:
        """Number of items of all processes without result."""
        return sum(not self._is_done(item) for item in self._items)


def write_part(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write the result of an item, whole or not at all, and clear away what killed processes left of it."""
    for stale in path.parent.glob(f".{path.name}{TEMPORARY_MARK}*"):
        delete_path(stale)
    write_atomic(path, write)


def begin_output(
    output: Path,
    settings: Mapping[str, Any],
    name: str = "settings.json",
    notes: Sequence[str] = (),
    sweep: bool = False,
) -> None:
    """Note the settings in a new folder, compare them in one that was begun; any process may be the first.

    Args:
        settings: values that JSON can hold, those of parts as dicts.
        name: of the file with the settings.
        notes: keys that are written but not compared.
        sweep: delete what killed processes left half-written; not where others write now.

    Raises:
        ValueError: when the folder was begun with others, or holds something else.
    """
    path = output / name
    settings = json.loads(json.dumps(settings))
    # listed before the look at the settings: another process may write them now, and does so before all else
    names = [each.name for each in output.iterdir()] if output.is_dir() else []
    held = [name for name in names if TEMPORARY_MARK not in name and not name.startswith(LOCK_NAME)]
    if path.is_file():
        known, wanted = _flat(json.loads(path.read_text(encoding="utf-8"))), _flat(settings)
        other = [key for key in {**known, **wanted} if known.get(key) != wanted.get(key) and key not in notes]
        if other:
            said = ", ".join(f"{key} {_short(known.get(key))} (now {_short(wanted.get(key))})" for key in other)
            raise ValueError(f"{output} was begun with other settings: {said}; choose another folder, or delete it")
        if sweep:
            delete_temporary_files(output)
        return
    if held:
        raise ValueError(f"{output} holds something else ({held[0]}); choose a new or an empty folder")
    write_atomic(path, lambda file: file.write(json.dumps(settings, indent=1, ensure_ascii=False).encode()))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of parts under names of their own, `solver.method`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
