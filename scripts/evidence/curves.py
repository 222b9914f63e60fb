"""How a metric went over a run, read from its metrics.csv."""

from __future__ import annotations

from dataclasses import dataclass

Row = dict[str, str]


@dataclass(frozen=True)
class Curve:
    """Values of a metric, the first before training, and their steps: batches trained before the logged one."""

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
    def fall(self) -> float:
        """Share of the first value that the last one has lost."""
        return 1 - self.last / self.first


def read_curve(rows: list[Row], key: str) -> Curve:
    """Read a curve from the rows of metrics.csv.

    Raises:
        ValueError: the metric was logged less than twice.
    """
    points = [(int(row["step"]), float(row[key])) for row in rows if row.get(key)]
    if len(points) < 2:
        raise ValueError(f"metrics.csv holds {len(points)} values of {key}: evidence needs one before and one after")
    return Curve([step for step, _ in points], [value for _, value in points])
