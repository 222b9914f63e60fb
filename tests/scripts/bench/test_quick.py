"""Every benchmark runs and reports figures."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import REPOSITORY, environment

SYSTEMS = ("audiosr", "ci_llm", "compressed_ad", "flow", "hifigan", "miipher", "startup")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("system", SYSTEMS)
def test_quick_run_reports_figures(system: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"scripts.bench.{system}", "all", "--quick", "--output", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True)
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert reports and all(math.isfinite(each["value"]) for report in reports for each in report["findings"])
