import json
import runpy
import sys
from pathlib import Path

import pytest
from torch import Tensor

from scripts.evidence import flow as evidence
from tests.harness import REPOSITORY
from zoo.cli.main import main
from zoo.flow.evaluation.classifier import DigitsClassifier, train_digits_classifier

SMALL = ("--model.init_args.net.init_args.channels=8", "--model.init_args.scheduler.init_args.warmup_steps=0")


def hasty(images: Tensor, labels: list[int], seed: int, cache: Path | None) -> DigitsClassifier:
    return train_digits_classifier(images, labels, seed, epochs=4)


def fit(recipe: str, folder: str, *options: str) -> Path:
    args = ["fit", "--config", str(REPOSITORY / "configs" / "flow" / recipe), "--trainer.max_steps=1"]
    args += ["--trainer.val_check_interval=1", "--trainer.num_sanity_val_steps=0", "--trainer.limit_val_batches=1"]
    args += ["--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={folder}", *options]
    assert main(args) == 0
    return Path(folder)


def test_digits_are_judged_beside_their_controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evidence, "cached_digits_classifier", hasty)
    run = fit("demo_digits.yaml", "run", *SMALL)
    findings = evidence.gather_digits([run], [run], [run], quick=True)
    claims = {each.name: each for each in findings}
    assert claims["20 NFE: Fréchet to the floor's"].passed is False
    assert claims["Euler 5: Fréchet per batch to independent"].value == pytest.approx(1)
    report = json.loads((run / "evidence" / "evidence.json").read_text())
    (row,) = report["rows"]
    assert claims["control copier: Fréchet"].value == row["control copier"]["frechet"]
    assert row["control real"]["frechet"] < row["control gaussian"]["frechet"] < row["control class means"]["frechet"]
    assert row["control copier"]["nearest_ratio"] == 0
    assert [each["name"] for each in report["findings"]] == [each.name for each in findings]
    assert (run / "evidence" / "samples.png").stat().st_size > 500
    with pytest.raises(ValueError, match="as many runs"):
        evidence.gather_digits([run], [run, run])


def test_swissroll_is_judged_by_the_chamfer_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = fit("demo_swissroll.yaml", "run")
    script = REPOSITORY / "scripts" / "evidence" / "flow.py"
    arguments = ["swissroll", "--assigned", str(run), "--transport", str(run), "--quick"]
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")
    report = json.loads((run / "evidence" / "evidence.json").read_text())
    values = {claim["name"]: claim["value"] for claim in report["findings"]}
    assert report["points"] == evidence.FEW_POINTS
    assert 0 < values["two samples of the set: Chamfer"] < values["as assigned, Euler 50: Chamfer"]
    assert (run / "evidence" / "samples.png").is_file()
    with pytest.raises(ValueError, match="not trained on scikit-learn's digits"):
        evidence.gather_digits([run])
