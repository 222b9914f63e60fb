"""The benchmark of bulk runs at tiny size: that it runs, reports and finds every file."""

from functools import partial
from pathlib import Path

import pytest

from scripts.bench import bulk
from scripts.bench.tools import Settings
from zoo.cli.trainer import ZooCLI


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("real", 6)])
def test_reports_figures(name: str, count: int, tmp_path: Path) -> None:
    findings = bulk.BENCHMARKS[name](Settings(partial(ZooCLI, "fit"), tmp_path, quick=True))
    assert len(findings) == len({each.name for each in findings}) == count
    assert all(each.value > 0 for each in findings if "exponent" not in each.name)


def test_names_are_unique(tmp_path: Path) -> None:
    made = set(bulk.names(2500))
    assert len(made) == 2500
    assert sum(1 for _ in bulk.write_inputs(tmp_path, 2500).rglob("*.txt")) == 2500
