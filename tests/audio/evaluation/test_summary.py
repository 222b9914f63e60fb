import math

import pytest

from zoo.audio.evaluation.summary import MetricColumn, summarize

QUALITY, ERROR = MetricColumn("quality", True), MetricColumn("error", False, "%", weight="words")


def rows():
    def row(name, system, quality, error, words=10.0):
        return {"name": name, "system": system, "quality": quality, "error": error, "words": words}

    return [
        row("a", "degraded", 1.0, 0.4),
        row("b", "degraded", 2.0, 0.6),
        row("a", "restored", 3.0, 0.1),
        row("b", "restored", 2.5, 0.3),
        row("c", "restored", math.nan, 0.2),
        {"name": "a", "system": "other", "quality": math.nan, "error": math.nan, "words": math.nan},
    ]


def test_summary_counts_and_pairs():
    summary = summarize(rows(), ["degraded", "restored", "other"], [QUALITY, ERROR], "degraded")
    cells = {(row["system"], row["measure"]): row for row in summary}
    restored = cells["restored", "quality"]
    assert (restored["files"], restored["count"], restored["mean"], restored["median"]) == (3, 2, 2.75, 2.75)
    assert restored["gain"] == pytest.approx((2.0 + 0.5) / 2)
    # fewer errors are a gain; c has no degraded counterpart
    assert cells["restored", "error"]["count"] == 3 and cells["restored", "error"]["gain"] == pytest.approx(0.3)
    assert cells["restored", "error"]["better"] == "lower"
    assert math.isnan(cells["degraded", "quality"]["gain"])
    assert cells["other", "quality"]["count"] == 0 and math.isnan(cells["other", "quality"]["mean"])
