import math

import pytest

from zoo.audio.evaluation.summary import MetricColumn, failure_lines, plot_boxes, summarize, summary_table

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
    assert found["ours", "error"]["gain"] == pytest.approx(0.3)  # fewer errors are a gain
    assert found["ours", "error"]["better"] == "lower"
    assert math.isnan(found["degraded", "quality"]["gain"])
    assert found["other", "quality"]["count"] == 0 and math.isnan(found["other", "quality"]["mean"])


def test_gain_leaves_out_files_without_a_partner():
    summary = summarize(rows(), ["degraded", "ours"], [ERROR], "degraded")
    assert summary[1]["count"] == 3 and summary[1]["gain"] == pytest.approx(((0.4 - 0.1) + (0.6 - 0.3)) / 2)


def test_failures_are_counted_and_the_first_are_named():
    failed = [{"system": "ours", "name": str(number), "reason": "cut"} for number in range(3)]
    assert failure_lines([], 5) == []
    expected = ["3 of 5 rows failed:", "", "- ours/0: cut", "- ours/1: cut", "- ... all in rows.csv"]
    assert failure_lines(failed, 5, 2, "rows.csv") == expected
    assert failure_lines(failed, 5)[-1] == "- ours/2: cut"


def test_markdown():
    summary = summarize(rows(), ["degraded", "ours", "other"], [QUALITY, ERROR], "degraded")
    head, _, *lines = summary_table(summary).splitlines()
    assert head == "| system | files | quality ↑ | error % ↓ |"
    assert lines[1].startswith("| ours | 3 | 2.75 [2.5, 3] (n=2) |") and lines[2] == "| other | 1 | - | - |"
    gains = summary_table(summary, "gain")
    assert "ours" in gains and "other" not in gains and "↑" not in gains


def test_box_plots_leave_out_what_has_no_values():
    figure = plot_boxes(rows(), ["degraded", "ours", "other"], [QUALITY, ERROR, MetricColumn("unknown", True)])
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title().split()[0] for axes in shown] == ["quality", "error"]
    assert [label.get_text() for label in shown[0].get_xticklabels()] == ["degraded", "ours"]
    assert not any(axes.get_visible() for axes in plot_boxes([], ["ours"], [QUALITY]).axes)
