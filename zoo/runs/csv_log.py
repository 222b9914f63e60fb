"""metrics.csv of a run folder: always on, and the same file whether or not the run was killed and resumed."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from zoo.common.atomic_files import write_atomic
from zoo.runs.listing import CSV_NAME, FIXED_COLUMNS

log = logging.getLogger(__name__)

Row = dict[str, str]


class RunCSV(Logger):
    """Writes every logged value to `<run folder>/metrics.csv`, one row per logging call, on rank zero.

    Rows are appended and reach the file system with each call. A new key rewrites the file, aside and renamed, with a
    wider header. A disk that is full costs no training and no row: rows wait in memory for the next call.

    Args:
        save_dir: the run folder; as first logger, this is also what `trainer.log_dir` gives.
        file_name: of the record; `validate` and `test` keep theirs apart from the training's.
        step: written in every row in place of the trainer's, which knows no steps when it only evaluates.
    """

    def __init__(self, save_dir: str | Path, file_name: str = CSV_NAME, step: int | None = None) -> None:
        super().__init__()
        self._step = step
        self._folder = Path(save_dir)
        self._file_name = file_name
        self._columns: list[str] | None = None
        self._waiting: list[Row] = []
        self._warned = False

    @property
    def path(self) -> Path:
        """The file."""
        return self._folder / self._file_name

    @property
    def name(self) -> str:
        """Empty: Lightning joins it to `save_dir`, and a run folder has no sub-folders per experiment."""
        return ""

    version = name

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self._folder)

    root_dir = log_dir = save_dir

    @property
    def experiment(self) -> None:
        """None: there is nothing behind this logger but the file."""
        return None

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: config.yaml beside the file holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one row.

        Args:
            metrics: values by key; `epoch` goes to its own column.
            step: on the logger axis: batches trained before the one that is logged, so the first batch is 0.

        Raises:
            FileNotFoundError: when the run folder vanished while the run was going on.
            ValueError: when the folder holds a metrics.csv of another make.
        """
        step = step if self._step is None else self._step
        row = {"step": "" if step is None else str(int(step))}
        row |= {key: _text(value) for key, value in metrics.items()}
        self._waiting.append(row)
        if self._columns is None:
            self._folder.mkdir(parents=True, exist_ok=True)
        self.save()

    @rank_zero_only
    def save(self) -> None:
        """Write the rows that wait; on a full disk keep them for the next call.

        Raises:
            FileNotFoundError: when the run folder vanished.
            ValueError: when the folder holds a metrics.csv of another make.
        """
        if not self._waiting:
            return
        if not self._folder.is_dir():
            raise FileNotFoundError(
                f"the run folder {self._folder} vanished while the run was going on, so {CSV_NAME} cannot be "
                "written: restore the folder and resume, or start a new run"
            )
        try:
            if self._columns is None:
                self._open()
            self._write()
        except OSError as error:
            if not self._warned:
                reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
                log.warning("%s cannot be written (%s): its rows wait in memory, training goes on", self.path, reason)
                self._warned = True

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Try once more to write the rows that wait, and say how many are lost."""
        with contextlib.suppress(FileNotFoundError):  # said already by the call that met it first
            self.save()
        if self._waiting:
            log.error("%d rows of %s could not be written and are lost", len(self._waiting), self.path)

    @rank_zero_only
    def trim(self, step: int) -> None:
        """Forget what a killed run logged beyond the checkpoint that a run resumes from.

        Args:
            step: last step to keep, on the logger axis: batches trained up to the checkpoint, minus one.
        """
        if not self.path.is_file():
            return
        columns, rows, _ = _read(self.path)
        kept = [row for row in rows if not row["step"] or int(row["step"]) <= step]
        # a column that only forgotten rows used would come earlier in the header than in an uninterrupted run
        used = {key for row in kept for key, value in row.items() if value} | set(FIXED_COLUMNS)
        columns = [column for column in columns if column in used]
        self._rewrite(columns, [{key: row[key] for key in columns} for row in kept])
        self._columns = columns

    @rank_zero_only
    def drop(self, step: int, prefix: str) -> None:
        """Forget the rows of one step that hold a key beginning with `prefix`, because they are logged again."""
        if not self.path.is_file():
            return
        columns, rows, _ = _read(self.path)
        keys = [key for key in columns if key.startswith(prefix)]
        kept = [row for row in rows if row["step"] != str(step) or not any(row[key] for key in keys)]
        if len(kept) < len(rows):
            self._rewrite(columns, kept)

    def _open(self) -> None:
        columns, rows, torn = _read(self.path) if self.path.is_file() else (list(FIXED_COLUMNS), [], False)
        if torn:
            self._rewrite(columns, rows)
        self._columns = columns

    def _write(self) -> None:
        columns = self._columns or list(FIXED_COLUMNS)
        new = list(dict.fromkeys(key for row in self._waiting for key in row if key not in columns))
        exists = self.path.is_file()  # a deleted file needs its header again
        if exists and not new:
            _append(self.path, _lines(self._waiting, columns))
        else:
            rows = _read(self.path)[1] if exists else []
            self._rewrite(columns + new, rows + self._waiting)
            self._columns = columns + new
        self._waiting = []

    def _rewrite(self, columns: list[str], rows: list[Row]) -> None:
        data = _lines([dict(zip(columns, columns, strict=True)), *rows], columns)
        write_atomic(self.path, lambda file: file.write(data))


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics.csv, as text by column; a torn last line is left out.

    Args:
        path: the file or its run folder.

    Returns:
        One dictionary per row; empty cells are empty strings.
    """
    return _read(path / CSV_NAME if path.is_dir() else path)[1]


def _text(value: Any) -> str:
    return repr(value.item() if hasattr(value, "item") else value)


def _lines(rows: Iterable[Row], columns: list[str]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _read(path: Path) -> tuple[list[str], list[Row], bool]:
    """Columns, whole rows, and whether something torn was left out."""
    whole, newline, rest = path.read_bytes().decode(errors="replace").rpartition("\n")
    lines = list(csv.reader(whole.splitlines())) if newline else []
    if not lines:
        return list(FIXED_COLUMNS), [], True
    columns = lines[0]
    if tuple(columns[:2]) != FIXED_COLUMNS:
        raise ValueError(
            f"{path} was not written by zoo: its columns begin with {columns[:2]}, expected {list(FIXED_COLUMNS)}; "
            "move it away or choose another trainer.default_root_dir"
        )
    rows = [dict(zip(columns, cells, strict=True)) for cells in lines[1:] if _is_row(cells, columns)]
    return columns, rows, bool(rest) or len(rows) + 1 < len(lines)


def _is_row(cells: list[str], columns: list[str]) -> bool:
    return len(cells) == len(columns) and (not cells[0] or cells[0].isdecimal())


def _append(path: Path, data: bytes) -> None:
    """Append all or nothing: a full disk may take the first half of a line."""
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


@dataclass(frozen=True)
class Curve:
    """How a metric went over a run; a step counts batches trained before the logged one.

    Args:
        values: of the metric, the first before training.
    """

    steps: list[int]
    values: list[float]

    @property
    def first(self) -> float:
        """Before training."""
        return self.values[0]

    @property
    def last(self) -> float:
        """At the end."""
        return self.values[-1]

    @property
    def best(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def fall(self) -> float:
        """Share of the first value that the last one has lost."""
        return 1 - self.last / self.first


def curve_of(rows: list[Row], key: str) -> Curve:
    """Read a curve from the rows of metrics.csv.

    Raises:
        ValueError: when the metric was logged less than twice.
    """
    points = [(int(row["step"]), float(row[key])) for row in rows if row.get(key)]
    if len(points) < 2:
        raise ValueError(f"metrics.csv holds {len(points)} values of {key}: evidence needs one before and one after")
    return Curve([step for step, _ in points], [value for _, value in points])
