"""Evidence of Miipher-2 by its command; what the nets would restore is stood in for."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.evidence import miipher
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files


def test_quick_restores_one_degradation_of_one_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def write_trees(finetune: Path, pretrain: Path, folder: Path, draws: int, quick: bool) -> None:
        requested.append((finetune.name, pretrain.name, draws, quick))
        clean = SyntheticSpeech(miipher.SAMPLE_RATE, seconds=(0.5, 0.6)).utterance(0)
        for tree, factor in (("clean", 1.0), ("degraded", 0.2), (miipher.RESTORED, 0.9), (miipher.CEILING, 1.0)):
            files.write(folder / tree / "a_0.wav", (clean * factor + (1 - factor) * 0.01).clip(-1, 1), 16000)

    monkeypatch.setattr(miipher, "write_trees", write_trees)
    runs = [tmp_path / name for name in ("adapter", "pretrain", "finetune")]
    for run in runs:
        run.mkdir()
    (runs[0] / "metrics.csv").write_text("step,epoch,val/identity_loss,val/loss\n0,,2.0,2.0\n9,0,2.0,1.0\n")
    for run in runs[1:]:
        (run / "metrics.csv").write_text("step,epoch,val/mel_l1\n0,,2.0\n9,0,0.5\n")
    values = miipher.measure(*runs, quick=True)
    assert requested == [("finetune", "pretrain", 1, True)]
    assert values["adapter: validation loss to that without adapters"] == 0.5
    assert values["pretrain: val/mel_l1 less than at first"] == 75
    assert values["clean_features, lsd"] == pytest.approx(0, abs=1e-3)
    assert values["clean_features, timbre"] == pytest.approx(1, abs=1e-3)
    assert values["degraded, timbre"] < values["restored, timbre"] < values["clean_features, timbre"]
    assert {"restored, pesq_wb", "restored, stoi", "restored, estoi"} < values.keys()
