"""What an evaluation leaves behind besides its per-file table: summaries, a markdown report, box plots."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import zoo
from zoo.atomic import write_atomic
from zoo.audio.measures import METRICS
from zoo.audio.statistics import LEVEL, box_plots, markdown_table
from zoo.audio.table import Row, csv_lines, header_line

if TYPE_CHECKING:
    from zoo.audio.evaluation import Evaluation, Settings

_SHOWN = 20  # failures in the report; per_file.csv has all


def write_report(output: Path, evaluation: Evaluation, settings: Settings) -> None:
    """Write summary.csv, summary.json, report.md and boxplots.png.

    Args:
        output: Folder, made when missing.
        evaluation: What was found.
        settings: What was measured.

    Raises:
        OSError: A file cannot be written; the old one is untouched.
    """
    summary = evaluation.summary
    columns = list(summary[0])
    good = [row for row in evaluation.rows if row["status"] == "done"]
    systems = list(dict.fromkeys(row["system"] for row in summary))
    drawn = box_plots(good, systems, settings.measures)
    text = json.dumps(_facts(evaluation, settings), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(output / "summary.csv", lambda file: file.write(header_line(columns) + csv_lines(summary, columns)))
    write_atomic(output / "summary.json", lambda file: file.write(text.encode()))
    write_atomic(output / "report.md", lambda file: file.write(markdown(evaluation, settings).encode()))
    write_atomic(output / "boxplots.png", lambda file: drawn.savefig(file, format="png"))


def markdown(evaluation: Evaluation, settings: Settings) -> str:
    """Tables of means and gains, the rates of the metrics, and the first failures.

    Args:
        evaluation: What was found.
        settings: What was measured.

    Returns:
        The report.
    """
    lines = ["# Evaluation", "", f"Means with {LEVEL:.0%} bootstrap intervals over files.", ""]
    lines += [markdown_table(evaluation.summary), ""]
    if any(math.isfinite(row["gain"]) for row in evaluation.summary):
        lines += ["Gains over the degraded files, paired, positive is better:", ""]
        lines += [markdown_table(evaluation.summary, "gain"), ""]
    rates = ", ".join(f"{name} {rate} Hz" for name, rate in _rates(settings).items())
    lines += [f"Taken at: {rates}.{' Levels matched for lsd and m_stft.' if settings.match_level else ''}", ""]
    failed = evaluation.failed
    if failed:
        lines += [f"{len(failed)} of {len(evaluation.rows)} rows failed:", ""]
        lines += [f"- {row['system']}/{row['name']}: {row['reason']}" for row in failed[:_SHOWN]]
        lines += ["- ... all in per_file.csv"] if len(failed) > _SHOWN else []
    return "\n".join(lines).rstrip() + "\n"


def _rates(settings: Settings) -> dict[str, int]:
    own = {
        measure.name: METRICS[name].sample_rate or settings.sample_rate
        for name in settings.metrics
        for measure in METRICS[name].measures
    }
    return own | {measure.name: judge.sample_rate for judge in settings.judges for measure in judge.measures}


def _facts(evaluation: Evaluation, settings: Settings) -> Row:
    return {
        "version": zoo.__version__,
        "sample_rates": _rates(settings),
        "match_level": settings.match_level,
        "judges": [str(judge) for judge in settings.judges],
        "confidence": LEVEL,
        "clean_files_left_out": evaluation.unpaired,
        "failed": [{key: row[key] for key in ("system", "name", "reason")} for row in evaluation.failed],
        "summary": [
            {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
            for row in evaluation.summary
        ],
    }
