"""metrics.csv of runs as pages show it: only appended rows are read, and few points stand for many."""

from __future__ import annotations

import contextlib
import csv
import io
import threading
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from zoo.runs.run_folder import CSV_NAME
from zoo.runs.run_info import Points, add_rows, format_divergence, note_not_finite

MAX_POINTS = 400  # of a curve; a chart has no more pixels
MAX_FILES = 16  # whose rows stay in memory
LAST_BYTES = 1024  # of what was read, to be found again where more is read
Curve = tuple[tuple[float, float], ...]
Curves = dict[str, tuple[Curve, Curve]]  # by metric; the second one without smoothing, () where it is the same


def downsample(curve: np.ndarray) -> np.ndarray:
    """Keep the lowest and the highest point of every bucket of neighbours, and the last point: (N, 2) to (M, 2)."""
    if len(curve) <= MAX_POINTS:
        return curve
    buckets = np.array_split(np.arange(len(curve)), (MAX_POINTS - 1) // 2)
    extremes = {int(bucket[find(curve[bucket, 1])]) for bucket in buckets for find in (np.argmin, np.argmax)}
    return curve[sorted(extremes | {len(curve) - 1})]


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """Return the exponential mean of values (N,); `weight` of the past, 0 to below 1."""
    return lfilter([1 - weight], [1, -weight], values, zi=[weight * values[0]])[0]


class _MetricsFile:
    """One metrics.csv, read as far as its last complete line."""

    def __init__(self) -> None:
        self.last = b""  # of what was read: a file that was replaced or cut has something else there
        self.offset = 0  # bytes read
        self.columns: list[str] = []
        self.curves: dict[str, Points] = {}
        self.not_finite: dict[str, str] = {}  # by metric whose last value is none; the first such step since
        self.displayed: dict[str, tuple[int, float, Curve, Curve]] = {}  # by metric; first length and smoothing

    def read_appended(self, path: Path) -> bool:
        """Read the rows that were appended; False when the file was replaced, cut or deleted."""
        try:
            with path.open("rb") as file:
                file.seek(self.offset - len(self.last))
                if file.read(len(self.last)) != self.last:
                    return False
                block = file.read()
        except OSError:
            return False
        complete = block[: block.rfind(b"\n") + 1]
        self.offset += len(complete)
        self.last = (self.last + complete)[-LAST_BYTES:]
        with contextlib.suppress(csv.Error):  # a file that is no table
            rows = csv.DictReader(io.StringIO(complete.decode("utf-8", "replace"), newline=""), self.columns or None)
            self.columns = self.columns or list(rows.fieldnames or ())
            add_rows(map(self._note_not_finite, rows), self.curves)
        return True

    def _note_not_finite(self, row: dict[str, str]) -> dict[str, str]:
        note_not_finite(row, self.not_finite)
        return row

    def display(self, metric: str, smoothing: float) -> tuple[Curve, Curve]:
        """Return a curve for charts and the same without smoothing; unchanged ones are the same objects."""
        points = self.curves[metric]
        if self.displayed.get(metric, ())[:2] != (len(points), smoothing):
            curve = np.array(points)
            raw = _as_curve(curve) if smoothing else ()
            if smoothing:
                curve[:, 1] = smooth(curve[:, 1], smoothing)
            self.displayed[metric] = len(points), smoothing, _as_curve(curve), raw
        return self.displayed[metric][2:]


def _as_curve(points: np.ndarray) -> Curve:
    return tuple((float(step), float(f"{value:.7g}")) for step, value in downsample(points))


class MetricsReader:
    """Curves of runs, read once for all pages."""

    def __init__(self) -> None:
        self._files: dict[Path, _MetricsFile] = {}  # the one that was read last is the last
        self._lock = threading.Lock()

    def read(self, run: Path, smoothing: float = 0.0) -> Curves:
        """Return the curves of a run for charts, finite values only."""
        with self._lock:
            file = self._read_file(run / CSV_NAME)
            return {metric: file.display(metric, smoothing) for metric in file.curves}

    def describe_divergence(self, run: Path) -> str:
        """Return which metrics of a run have become NaN or infinite, and since when; "" for none."""
        with self._lock:
            return format_divergence(self._read_file(run / CSV_NAME).not_finite)

    def _read_file(self, path: Path) -> _MetricsFile:
        file = self._files.pop(path, _MetricsFile())
        if not file.read_appended(path):
            file = _MetricsFile()
            file.read_appended(path)
        self._files[path] = file
        if len(self._files) > MAX_FILES:
            del self._files[next(iter(self._files))]
        return file
