"""A table of measurements in a CSV file that grows row by row and survives a kill at any point."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from zoo.common.atomic import write_atomic

Row = dict[str, Any]


class Table:
    """Rows in a CSV file.

    Args:
        path: The file; its folder is made when missing.
        texts: Columns that hold text.
        numbers: Columns that hold numbers; NaN where a row has none.
        key: Text column that identifies a row; it is written last, so that a row torn by a kill has none.
    """

    def __init__(self, path: Path, texts: Sequence[str], numbers: Sequence[str], key: str = "key") -> None:
        self.path = path
        self._key = key
        self._numbers = list(numbers)
        self.columns = [*texts, *numbers, key]

    def begin(self, wanted: Set[str], done: str = "done") -> dict[str, Row]:
        """Keep what the file holds of the wanted rows, and drop the rest.

        Args:
            wanted: Keys.
            done: The `status` of the rows to keep.

        Returns:
            The kept rows by key.

        Raises:
            OSError: The file cannot be read or written.
        """
        kept = {row[self._key]: row for row in self.read() if row[self._key] in wanted and row["status"] == done}
        self.write(list(kept.values()))
        return kept

    def read(self) -> list[Row]:
        """The whole rows of the file; none when it is missing or has other columns."""
        if not self.path.is_file():
            return []
        with self.path.open(encoding="utf-8", errors="replace", newline="") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            if list(reader.fieldnames or ()) != self.columns:
                return []
            rows: list[Row] = [dict(row) for row in reader if row[self._key]]
        for row in rows:
            row |= {name: float(row[name] or "nan") for name in self._numbers}
        return rows

    def append(self, row: Row) -> None:
        """Add a row to the file at once."""
        with self.path.open("ab") as file:
            file.write(self._format([row]))

    def write(self, rows: Sequence[Row]) -> None:
        """Replace the file by a header and rows."""
        content = header_line(self.columns) + self._format(rows)
        write_atomic(self.path, lambda file: file.write(content))

    def _format(self, rows: Sequence[Row]) -> bytes:
        empty = dict.fromkeys(self._numbers, math.nan)
        return csv_lines([empty | row for row in rows], self.columns)


def csv_lines(rows: Sequence[Row], columns: Sequence[str]) -> bytes:
    """Rows as lines of a CSV file without header; numbers with 7 digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        values = [row[name] for name in columns]
        writer.writerow([f"{value:.7g}" if isinstance(value, float) else value for value in values])
    return buffer.getvalue().encode()


def header_line(columns: Sequence[str]) -> bytes:
    """The first line of a CSV file."""
    return csv_lines([{name: name for name in columns}], columns)
