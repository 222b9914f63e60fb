"""What an evaluation leaves behind: summaries over all cut-offs and for each, margins over baselines, a chart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zoo
from zoo.atomic import write_atomic
from zoo.audio.measures import Measure
from zoo.audio.statistics import LEVEL, markdown_table, summarise
from zoo.audio.table import Row, csv_lines, header_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"
_DRAWN = ("lsd", "lsd_hf")
_SHOWN = 20  # failures in the report; the table of items has all


@dataclass(frozen=True)
class Evaluation:
    """What was found.

    Attributes:
        rows: per item and system.
        systems: in their order.
        measures: in their order.
        ours: the system in question.
        baseline: over which gains are told.
    """

    rows: list[Row]
    systems: Sequence[str]
    measures: Sequence[Measure]
    ours: str
    baseline: str

    @property
    def failed(self) -> list[Row]:
        """The rows without measurements."""
        return [row for row in self.rows if row["status"] == "failed"]

    @cached_property
    def parts(self) -> dict[str, list[Row]]:
        """Sound rows: all of them, and those of each cut-off."""
        good = [row for row in self.rows if row["status"] == "done"]
        parts = {ALL: good}
        for cutoff_hz in sorted({float(row["cutoff_hz"]) for row in good}):
            parts[f"{cutoff_hz:g} Hz"] = [row for row in good if row["cutoff_hz"] == cutoff_hz]
        return parts if 2 < len(parts) <= _SHOWN else {ALL: good}

    @cached_property
    def summaries(self) -> dict[str, list[Row]]:
        """Per part what `zoo.audio.statistics.summarise` says."""
        return {part: summarise(rows, self.systems, self.measures, self.baseline) for part, rows in self.parts.items()}

    @cached_property
    def margins(self) -> list[Row]:
        """By how much the system in question beats each other one, per measure, paired; `share` is of their mean."""
        margins = []
        for other in self.systems:
            if other == self.ours:
                continue
            means = {
                row["measure"]: row["mean"]
                for row in self.summaries[ALL]
                if row["system"] == other and math.isfinite(row["mean"])
            }
            for row in summarise(self.parts[ALL], [other, self.ours], self.measures, other):
                if math.isfinite(row["gain"]) and row["better"] == "lower":
                    share = row["gain"] / means[row["measure"]] if means[row["measure"]] else math.nan
                    margins.append(
                        {"over": other, "measure": row["measure"], "share": share}
                        | {key: row[key] for key in ("gain", "gain_low", "gain_high")}
                    )
        return margins


def write_report(output: Path, evaluation: Evaluation, facts: Mapping[str, Any]) -> None:
    """Write summary.csv, summary.json, report.md and cutoffs.png.

    Args:
        output: folder.
        evaluation: what was found.
        facts: about the evaluation, of values that JSON can hold.

    Raises:
        OSError: a file cannot be written; the old one is untouched.
    """
    rows = [{"cutoff": part, **row} for part, summary in evaluation.summaries.items() for row in summary]
    columns = list(rows[0])
    content = {
        "version": zoo.__version__,
        "confidence": LEVEL,
        **facts,
        "failed": [{key: row[key] for key in ("system", "name", "reason")} for row in evaluation.failed],
        "margins": [_plain(row) for row in evaluation.margins],
        "summary": [_plain(row) for row in rows],
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    chart = _chart(evaluation)
    write_atomic(output / "summary.csv", lambda file: file.write(header_line(columns) + csv_lines(rows, columns)))
    write_atomic(output / "summary.json", lambda file: file.write(text.encode()))
    write_atomic(output / "report.md", lambda file: file.write(markdown(evaluation).encode()))
    write_atomic(output / "cutoffs.png", lambda file: chart.savefig(file, format="png"))


def markdown(evaluation: Evaluation) -> str:
    """The report: tables of means, margins, the first failures."""
    lines = ["# Super-resolution", "", f"Means with {LEVEL:.0%} bootstrap intervals over items.", ""]
    for part, summary in evaluation.summaries.items():
        lines += [f"## {'All cut-offs' if part == ALL else part}", "", markdown_table(summary), ""]
    if evaluation.margins:
        lines += [
            f"## By how much {evaluation.ours} is better",
            "",
            "| measure | over | margin | share |",
            "|---" * 4 + "|",
        ]
        for row in evaluation.margins:
            interval = f"[{row['gain_low']:.3g}, {row['gain_high']:.3g}]" if math.isfinite(row["gain_low"]) else ""
            lines += [f"| {row['measure']} | {row['over']} | {row['gain']:.4g} {interval} | {row['share']:+.1%} |"]
        lines += [""]
    lines += [
        "lsd_hf and lsd_lf lie above and below the cut-off; si_sdr_low compares the low band with the input's; the "
        "ceiling is the target through autoencoder and vocoder, with the input's low band.",
        "",
    ]
    failed = evaluation.failed
    if failed:
        lines += [f"{len(failed)} of {len(evaluation.rows)} rows failed:", ""]
        lines += [f"- {row['system']}/{row['name']}: {row['reason']}" for row in failed[:_SHOWN]]
    return "\n".join(lines).rstrip() + "\n"


def _chart(evaluation: Evaluation) -> Figure:
    """Distances over the cut-offs, a line for each system."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.0), dpi=100, layout="constrained")
    parts = [part for part in evaluation.summaries if part != ALL] or [ALL]
    for axes, measure in zip(figure.subplots(1, len(_DRAWN)), _DRAWN, strict=True):
        for system in evaluation.systems:
            found = [
                next(row for row in evaluation.summaries[part] if (row["system"], row["measure"]) == (system, measure))
                for part in parts
            ]
            reach = [
                [max(row["mean"] - row["low"], 0.0) for row in found],
                [max(row["high"] - row["mean"], 0.0) for row in found],
            ]
            axes.errorbar(parts, [row["mean"] for row in found], yerr=reach, marker="o", capsize=3, label=system)
        axes.set(title=f"{measure} (lower is better)", xlabel="cut-off")
        axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _plain(row: Row) -> Row:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
