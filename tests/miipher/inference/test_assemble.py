"""A cleaner and a vocoder of different runs become one export."""

from pathlib import Path

import numpy as np
import pytest

from tests.harness import RUNS
from zoo.cli.main import main
from zoo.runs.load import load

CLEANER, VOCODER = (str(RUNS / "miipher" / name) for name in ("smoke_adapter", "smoke_pretrain"))


def test_assembled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["assemble", CLEANER, VOCODER, "restorer"]) == 0
    audio = (0.1 * np.sin(np.arange(16000) / 10)).astype(np.float32)
    restorer, vocoder = (load(run, restore={"loudness": "keep"}) for run in ("restorer", VOCODER))
    assert restorer(audio, 16000).shape == (22050,)
    vocoder.encoder = load(CLEANER).encoder
    np.testing.assert_allclose(restorer(audio, 16000), vocoder(audio, 16000), atol=1e-5)
    assert main(["assemble", VOCODER, VOCODER, "other"]) == 1
    assert "holds no cleaner" in capsys.readouterr().err
    assert not Path("other").exists()
