"""metrics.csv of runs as pages show it: only appended rows are read, and few points stand for many."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from zoo.runs.run_folder import CSV_NAME
from zoo.runs.run_info import FIXED_COLUMNS, Points, add_rows

MAX_POINTS = 400  # of a curve; a chart has no more pixels
Curve = tuple[tuple[float, float], ...]


def downsample(curve: np.ndarray, points: int = MAX_POINTS) -> np.ndarray:
    """Keep the lowest and the highest point of every bucket of neighbours, and the last point: (N, 2) to (M, 2)."""
    if len(curve) <= points:
        return curve
    buckets = np.array_split(np.arange(len(curve)), (points - 1) // 2)
    extremes = {int(bucket[find(curve[bucket, 1])]) for bucket in buckets for find in (np.argmin, np.argmax)}
    return curve[sorted(extremes | {len(curve) - 1})]


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """Return the exponential mean of values (N,); `weight` of the past, 0 to below 1."""
    return lfilter([1 - weight], [1, -weight], values, zi=[weight * values[0]])[0]


class _MetricsFile:
    """One metrics.csv, read as far as its last complete line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clear()

    def clear(self) -> None:
        """Forget what was read."""
        self.file_id = 0
        self.offset = 0  # bytes read
        self.columns: list[str] = []
        self.curves: dict[str, Points] = {}
        self.displayed: dict[tuple[str, float], tuple[int, Curve]] = {}  # by metric and smoothing, with its length

    def read_appended(self) -> None:
        """Read the rows that were appended; all of a file that was replaced or cut."""
        try:
            status = self.path.stat()
            if status.st_ino != self.file_id or status.st_size < self.offset:
                self.clear()
                self.file_id = status.st_ino
            with self.path.open("rb") as file:
                file.seek(self.offset)
                block = file.read()
        except OSError:
            self.clear()
            return
        complete = block[: block.rfind(b"\n") + 1]
        self.offset += len(complete)
        rows = csv.DictReader(io.StringIO(complete.decode("utf-8", "replace"), newline=""), self.columns or None)
        self.columns = self.columns or list(rows.fieldnames or ())
        add_rows(rows, self.curves)


class MetricsReader:
    """Curves of runs, read once for all pages."""

    def __init__(self) -> None:
        self._files: dict[Path, _MetricsFile] = {}
        self._lock = threading.Lock()

    def read(self, run: Path) -> dict[str, Points]:
        """Return the (step, value) pairs of a run's metrics, finite values only."""
        with self._lock:
            return dict(self._file(run).curves)

    def display_curves(self, run: Path, smoothing: float = 0.0) -> dict[str, Curve]:
        """Return the curves of a run for charts, by metric; a curve that has not grown is the same object."""
        with self._lock:
            file = self._file(run)
            for metric, points in file.curves.items():
                if file.displayed.get((metric, smoothing), (0, ()))[0] != len(points):
                    curve = np.array(points)
                    if smoothing:
                        curve[:, 1] = smooth(curve[:, 1], smoothing)
                    short = [(float(step), float(f"{value:.7g}")) for step, value in downsample(curve)]
                    file.displayed[metric, smoothing] = len(points), tuple(short)
            return {metric: file.displayed[metric, smoothing][1] for metric in file.curves}

    def _file(self, run: Path) -> _MetricsFile:
        file = self._files.setdefault(run / CSV_NAME, _MetricsFile(run / CSV_NAME))
        file.read_appended()
        return file


def metrics_as_csv(run: Path, metrics: Sequence[str]) -> str:
    """Return the rows of a run's metrics.csv that hold one of some metrics, with their steps and epochs."""
    columns = list(dict.fromkeys([*FIXED_COLUMNS, *metrics]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    if (run / CSV_NAME).is_file():
        with (run / CSV_NAME).open(newline="", encoding="utf-8", errors="replace") as file:
            writer.writerows(row for row in csv.DictReader(file) if any(row.get(metric) for metric in metrics))
    return text.getvalue()
