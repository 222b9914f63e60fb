"""A cleaner and a vocoder of different runs become one export."""

from pathlib import Path

import numpy as np
import pytest

from tests.harness import REPOSITORY
from zoo.cli.main import main
from zoo.runs.load import load

LIMITS = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0", "--trainer.enable_progress_bar=false"]


def test_assembled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for stage in ("adapter", "pretrain"):
        recipe = REPOSITORY / "configs" / "miipher" / f"smoke_{stage}.yaml"
        more = ["--checkpoints.monitor=null", f"--trainer.default_root_dir={stage}"]
        assert main(["fit", "--config", str(recipe), *LIMITS, *more]) == 0
    assert main(["assemble", "adapter", "pretrain", "restorer"]) == 0
    audio = (0.1 * np.sin(np.arange(16000) / 10)).astype(np.float32)
    restorer = load("restorer", restore={"loudness": "keep"})
    assert restorer(audio, 16000).shape == (22050,)
    cleaner, vocoder = load("adapter").encoder, load("pretrain", restore={"loudness": "keep"})
    vocoder.encoder = cleaner
    np.testing.assert_allclose(restorer(audio, 16000), vocoder(audio, 16000), atol=1e-5)
    assert main(["assemble", "pretrain", "pretrain", "other"]) == 1
    assert "holds no cleaner" in capsys.readouterr().err
    assert not Path("other").exists()
