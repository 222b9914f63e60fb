import math

import numpy as np
import pytest

from zoo.common.statistics import MetricColumn, bootstrap_mean, summarize

QUALITY, ERROR = MetricColumn("quality", True), MetricColumn("error", False, "%", weight="words")


def test_bootstrap_interval_is_that_of_the_normal_law():
    values = np.random.default_rng(1).normal(3.0, 2.0, 2000)
    mean, low, high = bootstrap_mean(values)
    half = 1.96 * values.std(ddof=1) / math.sqrt(len(values))
    assert mean == pytest.approx(values.mean())
    assert mean - low == pytest.approx(half, rel=0.08) and high - mean == pytest.approx(half, rel=0.08)
    assert bootstrap_mean(values) == (mean, low, high)


def test_bootstrap_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    intervals = [bootstrap_mean(rng.normal(0.0, 1.0, 30), resamples=300) for _ in range(200)]
    covered = sum(interval.low <= 0 <= interval.high for interval in intervals) / len(intervals)
    assert 0.88 <= covered <= 0.99


def test_weighted_mean_is_the_rate_of_the_whole_set():
    # 1 error in 2 words and 0 in 8: one word of ten is wrong.
    assert bootstrap_mean(np.array([0.5, 0.0]), np.array([2.0, 8.0])).mean == pytest.approx(0.1)


def test_few_values_have_no_interval():
    assert all(math.isnan(value) for value in bootstrap_mean(np.array([])))
    one = bootstrap_mean(np.array([4.0]))
    assert one.mean == 4.0 and math.isnan(one.low) and math.isnan(one.high)


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
