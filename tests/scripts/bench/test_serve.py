"""The load test of the endpoint at tiny size: that every request gets its own answer."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra `ui`")

from scripts.bench import serve as benchmark
from scripts.bench.tools import Settings
from tests.harness import environment


@pytest.mark.slow
def test_requests_at_once_get_their_own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    findings = benchmark.hifigan(Settings(benchmark._no_fit, tmp_path, quick=True))
    assert [finding.passed for finding in findings[:2]] == [True, True]
    assert all(finding.value > 0 for finding in findings[2:])
