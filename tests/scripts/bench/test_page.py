"""The benchmark of the page at tiny size: that a warm worker answers and that it is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench import page as benchmark
from scripts.bench.tools import Settings
from tests.harness import environment


def test_a_warm_answer_beside_the_computation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    (finding,) = benchmark.warm(Settings(lambda arguments: pytest.fail("nothing is trained"), tmp_path, quick=True))
    assert finding.value > 0
    assert finding.details["worker_mib"] > 0
