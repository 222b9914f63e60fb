"""metrics.csv of a run folder: always written, and the same file whether or not the run was killed and resumed."""

from __future__ import annotations

import csv
import errno
import io
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from zoo.common.atomic_files import write_atomic
from zoo.runs.run_folder import CSV_NAME
from zoo.runs.run_info import FIXED_COLUMNS

log = logging.getLogger(__name__)

Row = dict[str, str]


class MetricsCSV(Logger):
    """Write every logged value to `<run folder>/metrics.csv`, one row per logging call, on rank zero.

    A new key rewrites the file atomically with a wider header. On a full disk rows wait in memory for the next call.

    Args:
        save_dir: the run folder; as first logger, this is also what `trainer.log_dir` returns.
        file_name: `validate` and `test` write files of their own.
        step: written in every row in place of the trainer's, which knows no steps when it only evaluates.
    """

    def __init__(self, save_dir: str | Path, file_name: str = CSV_NAME, step: int | None = None) -> None:
        super().__init__()
        self._step = step
        self.path = Path(save_dir) / file_name
        self._columns: list[str] | None = None
        self._pending: list[Row] = []
        self._warned = False

    @property
    def name(self) -> str:
        """Empty: Lightning joins it to `save_dir`, and a run folder has no sub-folders per experiment."""
        return ""

    version = name

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self.path.parent)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Ignore hyperparameters: config.yaml in the same folder holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one row, `epoch` in its own column; the folder is made when missing. Errors are those of `save`.

        `step` is the number of batches trained before the logged one, so the first batch is 0.
        """
        step = step if self._step is None else self._step
        values = {key: repr(value.item() if hasattr(value, "item") else value) for key, value in metrics.items()}
        self._pending.append({"step": "" if step is None else str(int(step)), **values})
        self.save()

    @rank_zero_only
    def save(self) -> None:
        """Write the pending rows, and keep them on a full disk; ValueError for a metrics.csv of another program."""
        try:
            self._write()
        except OSError as error:
            self._columns = None  # a row may be written in part: the next call reads the file again
            if not self._warned:
                reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
                log.warning("%s cannot be written (%s): its rows wait in memory, training goes on", self.path, reason)
                self._warned = True

    def _write(self) -> None:
        exists = self.path.is_file()  # a deleted file needs its header again
        if exists and self._columns is None:
            self._columns, rows, corrupt = _read(self.path)
            if corrupt:
                self._rewrite(self._columns, rows)
        columns = self._columns or list(FIXED_COLUMNS)
        self._columns = list(dict.fromkeys([*columns, *(key for row in self._pending for key in row)]))
        if not exists or self._columns != columns:
            self._rewrite(self._columns, [*(_read(self.path)[1] if exists else []), *self._pending])
            self._pending = []
        while self._pending:
            with self.path.open("ab") as file:
                file.write(_format_rows(self._pending[:1], columns))
            del self._pending[0]

    def _rewrite(self, columns: list[str], rows: list[Row]) -> None:
        data = _format_rows([dict(zip(columns, columns, strict=True)), *rows], columns)
        write_atomic(self.path, lambda file: file.write(data))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Try once more to write the pending rows, and log how many are lost."""
        self.save()
        if self._pending:
            log.error("%d rows of %s could not be written and are lost", len(self._pending), self.path)

    @rank_zero_only
    def trim(self, step: int) -> None:
        """Delete rows after a step, the last one of the checkpoint that a killed run resumes from (batches - 1)."""
        if not self.path.is_file():
            return
        columns, rows, _ = _read(self.path)
        rows = [row for row in rows if not row["step"] or int(row["step"]) <= step]
        # a column that only deleted rows used would come earlier in the header than in an uninterrupted run
        columns = [key for key in columns if key in FIXED_COLUMNS or any(row[key] for row in rows)]
        self._rewrite(columns, [{key: row[key] for key in columns} for row in rows])
        self._columns = columns


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics.csv or of a run's as text by column; a torn last line is left out."""
    return _read(path / CSV_NAME if path.is_dir() else path)[1]


def _format_rows(rows: Iterable[Row], columns: list[str]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _read(path: Path) -> tuple[list[str], list[Row], bool]:
    """Return columns, complete rows, and whether something incomplete was left out."""
    complete, newline, rest = path.read_bytes().decode(errors="replace").rpartition("\n")
    lines = list(csv.reader(complete.splitlines())) if newline else []
    if not lines:
        return list(FIXED_COLUMNS), [], True
    columns = lines[0]
    if tuple(columns[:2]) != FIXED_COLUMNS:
        raise ValueError(
            f"{path} was not written by zoo: its columns begin with {columns[:2]}, expected {list(FIXED_COLUMNS)}; "
            "move it away or choose another trainer.default_root_dir"
        )
    rows = [
        dict(zip(columns, cells, strict=True))
        for cells in lines[1:]
        if len(cells) == len(columns) and (not cells[0] or cells[0].isdecimal())
    ]
    return columns, rows, bool(rest) or len(rows) + 1 < len(lines)
