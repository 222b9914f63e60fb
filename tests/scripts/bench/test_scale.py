from pathlib import Path

import numpy as np
import pytest

from scripts.bench import scale
from scripts.bench.tools import Settings
from zoo.audio.corpora import index as long_list


def test_growth_is_the_exponent() -> None:
    assert scale.growth({count: 3e-7 * count**0.7 for count in scale.SIZES}) == pytest.approx(0.7)


@pytest.mark.parametrize(("name", "count"), [("index", 7), ("order", 12), ("listing", 3)])
def test_reports_figures(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "QUICK_SIZES", (1000, 2000))
    monkeypatch.setattr(scale, "BATCHES", 3)
    monkeypatch.setattr(long_list, "LARGE", 500)
    findings = getattr(scale, name)(Settings(None, tmp_path, quick=True))  # type: ignore[arg-type]
    assert len(findings) == len({each.name for each in findings}) == count
    assert all(np.isfinite(each.value) for each in findings)
