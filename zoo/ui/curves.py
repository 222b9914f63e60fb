"""metrics.csv of runs as pages show it: only what was appended is read, and few points stand for many."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Sequence
from pathlib import Path

from zoo.runs.run_folder import CSV_NAME
from zoo.runs.run_info import FIXED_COLUMNS, Points, add_rows

POINTS = 400  # of a curve; a screen shows no more
_KEPT_RUNS = 16
_KEPT_VIEWS = 400  # of a run: curves by smoothing
_SEEN = 64  # bytes before the place where reading goes on; a rewritten file has others there
Shown = tuple[tuple[float, float], ...]


class Envelope:
    """The lowest and the highest point of every few neighbours, in their order, and the last point.

    Args:
        most: points to show; up to half as many are all shown.
    """

    def __init__(self, most: int = POINTS) -> None:
        self._most = (most - 1) // 2
        self._share = 1  # points of a bucket
        self._buckets: list[Points] = []
        self._count = 0
        self._last: Points = []

    def add(self, point: tuple[float, float]) -> None:
        """Take one more point."""
        if self._count % self._share:
            first, last = self._buckets[-1][0], self._buckets[-1][-1]
            low, high = (first, last) if first[1] <= last[1] else (last, first)
            if point[1] < low[1]:
                self._buckets[-1] = [high, point]
            elif point[1] > high[1]:
                self._buckets[-1] = [low, point]
        else:
            self._buckets.append([point])
        self._count += 1
        self._last = [point]
        if len(self._buckets) > self._most:
            self._share *= 2
            pairs = [self._buckets[start : start + 2] for start in range(0, len(self._buckets), 2)]
            self._buckets = [_extremes([point for bucket in pair for point in bucket]) for pair in pairs]

    def points(self) -> Shown:
        """What to draw."""
        kept = [point for bucket in self._buckets for point in bucket]
        return tuple(kept if kept[-1:] == self._last else [*kept, *self._last])


def _extremes(points: Points) -> Points:
    if len(points) < 2:
        return points
    values = [value for _, value in points]
    first, second = sorted((values.index(min(values)), values.index(max(values))))
    return [points[first], points[second]] if first != second else [points[first]]


def _short(value: float) -> float:
    """Seven digits, as few characters as it takes."""
    rounded = float(f"{value:.7g}")
    return int(value) if value.is_integer() and abs(value) < 1e15 else rounded


class _View:
    """A curve, smoothed or not, as it is drawn."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing
        self.taken = 0
        self.shown: Shown = ()
        self._mean: float | None = None
        self._envelope = Envelope()

    def take(self, points: Points) -> Shown:
        """Take what is new; the same object as before where nothing is."""
        if self.taken < len(points):
            for step, value in points[self.taken :]:
                mean = value if self._mean is None else self.smoothing * self._mean + (1 - self.smoothing) * value
                self._mean = mean
                self._envelope.add((step, mean))
            self.taken = len(points)
            self.shown = tuple((_short(step), _short(value)) for step, value in self._envelope.points())
        return self.shown


class _Record:
    """One metrics.csv, read as far as its last whole line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._mark: tuple[int, ...] = ()
        self._read = 0  # bytes
        self._seen = b""  # the last of them
        self._fields: list[str] = []
        self.curves: dict[str, Points] = {}
        self.views: dict[tuple[str, float], _View] = {}

    def update(self) -> None:
        """Read what was appended; all of it where the file is another one. A missing file has no curves."""
        try:
            with self.path.open("rb") as file:
                status = self.path.stat()
                mark = (status.st_ino, status.st_mtime_ns, status.st_size)
                if mark == self._mark:
                    return
                start = max(self._read - len(self._seen), 0)
                file.seek(start)
                if file.read(len(self._seen)) != self._seen:
                    self._forget()
                    file.seek(0)
                new = file.read()
        except OSError:
            self._forget()
            return
        self._mark = mark
        whole = new[: new.rfind(b"\n") + 1]
        if whole and whole.count(b'"') % 2 == 0:  # else a quoted name goes on in the next line
            self._read += len(whole)
            self._seen = (self._seen + whole)[-_SEEN:]
            self._take(whole.decode("utf-8", "replace"))

    def _take(self, text: str) -> None:
        rows = csv.DictReader(io.StringIO(text, newline=""), self._fields or None)
        try:
            self._fields = self._fields or list(rows.fieldnames or ())
            add_rows(rows, self.curves)
        except csv.Error:  # no record of ours
            pass


class Metrics:
    """Curves of runs, read once for all pages."""

    def __init__(self) -> None:
        self._records: dict[Path, _Record] = {}
        self._lock = threading.Lock()

    def read(self, run: Path) -> dict[str, Points]:
        """Curves of a run by metric: (step, value) in the file's order, finite values only."""
        with self._lock:
            return dict(self._updated(run).curves)

    def shown(self, run: Path, smoothing: float = 0.0) -> dict[str, Shown]:
        """Curves of a run as they are drawn, at most `POINTS` points each; what has not changed is the same object.

        Args:
            smoothing: weight of the past in an exponential mean, 0 (off) to below 1.
        """
        with self._lock:
            record = self._updated(run)
            found = {}
            for metric, points in record.curves.items():
                view = record.views.pop((metric, smoothing), None) or _View(smoothing)
                record.views[metric, smoothing] = view
                found[metric] = view.take(points)
            while len(record.views) > max(_KEPT_VIEWS, len(found)):
                del record.views[next(iter(record.views))]
            return found

    def _updated(self, run: Path) -> _Record:
        path = run / CSV_NAME
        record = self._records.pop(path, None) or _Record(path)
        self._records[path] = record  # the one used last is the last to go
        while len(self._records) > _KEPT_RUNS:
            del self._records[next(iter(self._records))]
        record.update()
        return record


def chosen_columns(run: Path, metrics: Sequence[str]) -> bytes:
    """The rows of a run's metrics.csv that hold one of some metrics, with their steps and epochs alone."""
    columns = [*FIXED_COLUMNS, *dict.fromkeys(metrics)]
    try:
        with (run / CSV_NAME).open(newline="", encoding="utf-8", errors="replace") as file:
            rows = [row for row in csv.DictReader(file) if any(row.get(metric) for metric in columns[2:])]
    except (OSError, csv.Error):
        rows = []
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
