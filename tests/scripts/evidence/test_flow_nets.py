from pathlib import Path

import pytest
from torch import Tensor

from scripts.evidence import flow, flow_nets
from scripts.evidence.claims import CLAIMS
from tests.scripts.evidence.test_flow import fit, hasty
from zoo.flow.evaluation.digits_classifier import DigitsClassifier, train_digits_classifier

TINY = [f"--model.init_args.net.init_args.{key}=1" for key in ("depth", "heads")]
TINY += ["--model.init_args.net.init_args.dim=8", "--model.init_args.scheduler.init_args.warmup_steps=0"]


def hastier(images: Tensor, labels: list[int], seed: int, epochs: int) -> DigitsClassifier:
    return train_digits_classifier(images, labels, seed, 1)


def test_nets_and_steps_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flow, "cached_digits_classifier", hasty)
    monkeypatch.setattr(flow_nets, "train_digits_classifier", hastier)
    digits = fit("demo_digits_dit.yaml", "digits", *TINY)
    glyphs = fit("demo_glyphs_dit.yaml", "glyphs", *TINY, "--data.init_args.glyphs.init_args.per_class=4")
    values = flow_nets.measure(digits, digits, glyphs, glyphs, digits, digits, quick=True)
    for name in ("digits", "glyphs"):
        assert values[f"{name}, DiT: Fréchet to the floor's"] == values[f"{name}, U-Net: Fréchet to the floor's"] > 1
        assert values[f"{name}: Fréchet DiT to U-Net"] == 1
    assert values["4 evaluations: Fréchet MeanFlow to Euler"] == 1  # all are one run
    assert values["glyphs, DiT: Fréchet of colours to the floor's"] > 1
    named = {claim.figure for claim in CLAIMS if claim.demo == "flow/nets"}
    assert {name for name in named if not name.startswith("CPU seconds")} <= values.keys()
    with pytest.raises(ValueError, match="not trained on glyphs"):
        flow_nets.glyphs_of(digits)
