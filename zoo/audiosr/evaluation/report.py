"""The report of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import zoo
from zoo.audio.evaluation.summary import MetricColumn, failure_lines, summarize, summary_table
from zoo.common.reports import Row, write_report
from zoo.common.statistics import LEVEL

UNPROCESSED, LINEAR, NOISE, CEILING, RESTORED = SYSTEMS = (
    "unprocessed", "linear", "shaped_noise", "ceiling", "restored",
)  # fmt: skip
HF_BANDS = ("lsd_hf_1", "lsd_hf_2", "lsd_hf_3", "lsd_hf_4")  # equal bands above the cut-off, from the lowest
MEASURES = (
    MetricColumn("lsd", False),
    MetricColumn("lsd_hf", False),
    *(MetricColumn(name, False) for name in HF_BANDS),
    MetricColumn("lsd_lf", False),
    MetricColumn("si_sdr_low", True, "dB"),
    MetricColumn("mel_l1", False),
    MetricColumn("pesq_wb", True),
    MetricColumn("real_time_factor", False),
)
PER_ITEM = "per_item.csv"
ALL = "all"

_TEXTS = ("name", "system", "status", "reason")
_NUMBERS = ("cutoff_hz", "seconds", *(measure.name for measure in MEASURES))
_MAX_ROWS = 20  # failures and cut-offs in the report


@dataclass(frozen=True)
class Evaluation:
    """Rows of items and systems, and their summaries."""

    rows: list[Row]
    systems: Sequence[str]

    @property
    def failures(self) -> list[Row]:
        """Rows without measurements."""
        return [row for row in self.rows if row["status"] == "failed"]

    @cached_property
    def groups(self) -> dict[str, list[Row]]:
        """Measured rows: all of them, and those of each cut-off."""
        done = [row for row in self.rows if row["status"] == "done"]
        groups = {ALL: done}
        for cutoff_hz in sorted({float(row["cutoff_hz"]) for row in done}):
            groups[f"{cutoff_hz:g} Hz"] = [row for row in done if row["cutoff_hz"] == cutoff_hz]
        return groups if 2 < len(groups) <= _MAX_ROWS else {ALL: done}

    @cached_property
    def summaries(self) -> dict[str, list[Row]]:
        """Summaries by group, see `zoo.audio.evaluation.summary.summarize`; gains over the input."""
        return {group: summarize(rows, self.systems, MEASURES, UNPROCESSED) for group, rows in self.groups.items()}


def write_evaluation(output: Path, evaluation: Evaluation, facts: Mapping[str, Any]) -> None:
    """Write per_item.csv, summary.csv, summary.json (with these facts) and report.md."""
    rows = [{"cutoff": group, **row} for group, summary in evaluation.summaries.items() for row in summary]
    content = {
        "version": zoo.__version__,
        "confidence": LEVEL,
        **facts,
        "failed": [{key: row[key] for key in ("system", "name", "reason")} for row in evaluation.failures],
        "summary": rows,
    }
    items = [dict.fromkeys(_NUMBERS, math.nan) | row for row in evaluation.rows]
    files = {
        PER_ITEM: ([*_TEXTS, *_NUMBERS], items),
        "summary.csv": (list(rows[0]), rows),
        "summary.json": content,
        "report.md": _markdown(evaluation),
    }
    write_report(output, files, indent=2)


def _markdown(evaluation: Evaluation) -> str:
    """Tables of means, and the first failures."""
    lines = ["# Super-resolution", "", f"Means with {LEVEL:.0%} bootstrap intervals over items.", ""]
    for group, summary in evaluation.summaries.items():
        lines += [f"## {'All cut-offs' if group == ALL else group}", "", summary_table(summary), ""]
    lines += [
        "lsd_hf and lsd_lf lie above and below the cut-off; si_sdr_low compares the low band with the input's; the "
        "ceiling is the target through autoencoder and vocoder, with the input's low band.",
        "",
        *failure_lines(evaluation.failures, len(evaluation.rows), _MAX_ROWS),
    ]
    return "\n".join(lines).rstrip() + "\n"
