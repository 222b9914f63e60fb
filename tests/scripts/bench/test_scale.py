from pathlib import Path

import numpy as np
import pytest

from scripts.bench import scale
from scripts.bench.tools import Settings


def test_growth_is_the_exponent() -> None:
    assert scale.growth({count: 3e-7 * count**0.7 for count in scale.SIZES}) == pytest.approx(0.7)


def test_reports_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "QUICK_SIZES", (1000, 2000))
    findings = scale.order(Settings(None, tmp_path, quick=True))  # type: ignore[arg-type]
    assert len(findings) == len({each.name for each in findings}) == 12
    assert all(np.isfinite(each.value) for each in findings)
