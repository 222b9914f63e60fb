from pathlib import Path

import pytest
from torch import Tensor

from scripts.evidence import flow as evidence
from tests.harness import REPOSITORY
from zoo.cli.main import main
from zoo.flow.evaluation.digits_classifier import DigitsClassifier, train_digits_classifier

SMALL = ("--model.init_args.net.init_args.channels=8", "--model.init_args.scheduler.init_args.warmup_steps=0")


def hasty(images: Tensor, labels: list[int], seed: int, cache: Path | None) -> DigitsClassifier:
    return train_digits_classifier(images, labels, seed, epochs=4)


def fit(recipe: str, folder: str, *options: str) -> Path:
    args = ["fit", "--config", str(REPOSITORY / "configs" / "flow" / recipe), "--trainer.max_steps=1"]
    args += ["--trainer.val_check_interval=1", "--trainer.num_sanity_val_steps=0", "--trainer.limit_val_batches=1"]
    args += ["--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={folder}", *options]
    assert main(args) == 0
    return Path(folder)


def test_digits_are_judged_next_to_their_controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evidence, "cached_digits_classifier", hasty)
    run = fit("demo_digits.yaml", "run", *SMALL)
    figures = evidence.measure_digits(run, quick=True)
    assert figures["20 NFE: Fréchet to the floor's"] > 1.25
    assert figures["control real: Fréchet"] < figures["control gaussian: Fréchet"]


def test_swissroll_is_judged_by_the_chamfer_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = fit("demo_swissroll.yaml", "run")
    figures = evidence.measure_swissroll(run, run, run, quick=True)
    assert all(value > 0.4 for value in figures.values()) and len(figures) == 3
    with pytest.raises(ValueError, match="not trained on scikit-learn's digits"):
        evidence.measure_digits(run)
