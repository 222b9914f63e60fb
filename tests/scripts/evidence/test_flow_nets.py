from pathlib import Path

import pytest

from scripts.evidence import flow, flow_nets
from scripts.evidence.claims import CLAIMS
from tests.scripts.evidence.test_flow import fit, hasty

TINY = [f"--model.init_args.net.init_args.{key}=1" for key in ("depth", "heads")]
TINY += ["--model.init_args.net.init_args.dim=8", "--model.init_args.scheduler.init_args.warmup_steps=0"]


def test_nets_and_steps_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flow, "cached_digits_classifier", hasty)
    digits = fit("demo_digits_dit.yaml", "digits", *TINY)
    values = flow_nets.measure(digits, digits, digits, digits, quick=True)
    assert values["digits, DiT: Fréchet to the floor's"] == values["digits, U-Net: Fréchet to the floor's"] > 1
    assert values["digits: Fréchet DiT to U-Net"] == 1
    assert values["4 evaluations: Fréchet MeanFlow to Euler"] == 1  # all are one run
    named = {claim.figure for claim in CLAIMS if claim.demo == "flow/nets"}
    assert {name for name in named if not name.startswith("CPU seconds")} <= values.keys()
