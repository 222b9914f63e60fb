from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.runs.metrics_csv import MetricsCSV, read_metrics


def test_rows_and_widened_header(tmp_path):
    logger = MetricsCSV(tmp_path / "run")
    logger.log_metrics({"a": 0.1, "epoch": 0}, step=4)
    logger.log_metrics({"a,b": torch.tensor(float("nan")), "epoch": 1}, step=9)
    logger.log_metrics({"a": 3.0}, step=10)
    assert logger.path.read_text() == 'step,epoch,a,"a,b"\n4,0,0.1,\n9,1,,nan\n10,,3.0,\n'
    assert [path.name for path in logger.path.parent.iterdir()] == ["metrics.csv"]
    assert read_metrics(tmp_path / "run")[1] == {"step": "9", "epoch": "1", "a": "", "a,b": "nan"}
    MetricsCSV(tmp_path / "run").log_metrics({"a": 4.0}, step=11)
    assert [row["a"] for row in read_metrics(logger.path)] == ["0.1", "", "3.0", "4.0"]


@pytest.mark.parametrize("torn", ["2,0,3.", "\x00\x00", "2,0,3.0,4.0\n", "garbage,0,1.0\n"])
def test_torn_last_line_is_dropped(tmp_path, torn):
    MetricsCSV(tmp_path).log_metrics({"a": 1.0, "epoch": 0}, step=1)
    path = tmp_path / "metrics.csv"
    complete = path.read_text()
    path.write_text(complete + torn)
    MetricsCSV(tmp_path).log_metrics({"a": 5.0, "epoch": 0}, step=2)
    assert path.read_text() == complete + "2,0,5.0\n"


@pytest.mark.parametrize("torn", ["", "step,epoch,a"])
def test_torn_header_starts_anew(tmp_path, torn):
    (tmp_path / "metrics.csv").write_text(torn)
    MetricsCSV(tmp_path).log_metrics({"a": 1.0}, step=0)
    assert (tmp_path / "metrics.csv").read_text() == "step,epoch,a\n0,,1.0\n"


def test_file_of_another_program_is_not_touched(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,step\n0,1\n")
    with pytest.raises(ValueError, match=r"metrics\.csv was not written by zoo"):
        MetricsCSV(tmp_path).log_metrics({"a": 1.0}, step=0)
    assert (tmp_path / "metrics.csv").read_text() == "epoch,step\n0,1\n"


CALLS = st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(CALLS, st.integers(0, 11), st.integers(0, 11))
def test_killed_and_resumed_equals_uninterrupted(tmp_path_factory, calls, checkpoint, killed):
    def log(logger, start, stop):
        for step in range(start, min(stop, len(calls))):
            logger.log_metrics({"epoch": 0} | {key: step / 7 for key in sorted(calls[step])}, step=step)

    entire, resumed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("resumed")
    log(MetricsCSV(entire), 0, len(calls))
    log(MetricsCSV(resumed), 0, max(checkpoint, killed))
    again = MetricsCSV(resumed)
    again.trim(checkpoint - 1)
    log(again, checkpoint, len(calls))
    assert (resumed / "metrics.csv").read_text() == (entire / "metrics.csv").read_text()


def test_trim_keeps_rows_without_step_and_drops_unused_columns(tmp_path):
    logger = MetricsCSV(tmp_path)
    logger.trim(1)
    assert list(tmp_path.iterdir()) == []
    logger.log_metrics({"a": 1.0}, step=1)
    logger.log_metrics({"a": 2.0})
    logger.log_metrics({"b": 3.0}, step=2)
    logger.trim(1)
    assert logger.path.read_text() == "step,epoch,a\n1,,1.0\n,,2.0\n"
