import pytest

from zoo.runs import csv_log as evidence


def test_curve():
    rows = [{"step": "0", "a": "2.0"}, {"step": "5", "a": ""}, {"step": "9", "a": "0.25"}, {"step": "19", "a": "0.5"}]
    curve = evidence.curve_of(rows, "a")
    assert curve == evidence.Curve([0, 9, 19], [2.0, 0.25, 0.5])
    assert (curve.first, curve.last, curve.best, curve.fall) == (2.0, 0.5, 0.25, 0.75)
    with pytest.raises(ValueError, match="1 values of a"):
        evidence.curve_of(rows[:2], "a")
