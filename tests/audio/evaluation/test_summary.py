import math

import pytest

from zoo.audio.evaluation.summary import MetricColumn, summarize, summary_table

QUALITY, ERROR = MetricColumn("quality", True), MetricColumn("error", False, "%", weight="words")


def rows():
    def row(name, system, quality, error, words=10.0):
        return {"name": name, "system": system, "quality": quality, "error": error, "words": words}

    return [
        row("a", "degraded", 1.0, 0.4),
        row("b", "degraded", 2.0, 0.6),
        row("a", "ours", 3.0, 0.1),
        row("b", "ours", 2.5, 0.3),
        row("c", "ours", math.nan, 0.2),
        {"name": "a", "system": "other", "quality": math.nan, "error": math.nan, "words": math.nan},
    ]


def test_summary_counts_and_pairs():
    summary = summarize(rows(), ["degraded", "ours", "other"], [QUALITY, ERROR], "degraded")
    found = {(row["system"], row["measure"]): row for row in summary}
    ours = found["ours", "quality"]
    assert (ours["files"], ours["count"], ours["mean"], ours["median"]) == (3, 2, 2.75, 2.75)
    assert ours["gain"] == pytest.approx((2.0 + 0.5) / 2)
    # fewer errors are a gain; c has no degraded counterpart
    assert found["ours", "error"]["count"] == 3 and found["ours", "error"]["gain"] == pytest.approx(0.3)
    assert found["ours", "error"]["better"] == "lower"
    assert math.isnan(found["degraded", "quality"]["gain"])
    assert found["other", "quality"]["count"] == 0 and math.isnan(found["other", "quality"]["mean"])


def test_markdown():
    summary = summarize(rows(), ["degraded", "ours", "other"], [QUALITY, ERROR], "degraded")
    head, _, *lines = summary_table(summary).splitlines()
    assert head == "| system | files | quality ↑ | error % ↓ |"
    assert lines[1].startswith("| ours | 3 | 2.75 [2.5, 3] (n=2) |") and lines[2] == "| other | 1 | - | - |"
    gains = summary_table(summary, "gain")
    assert "ours" in gains and "other" not in gains and "↑" not in gains
