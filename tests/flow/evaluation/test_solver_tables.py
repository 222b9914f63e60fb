import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from zoo.flow import ConditionalOT, Guidance, NestedGuidance, Sampler, Solver, VelocityNet
from zoo.flow.data import points
from zoo.flow.evaluation import solver_tables as tables
from zoo.flow.evaluation.references import build_quality
from zoo.flow.inference.requests import GenerationRequest

SEEDS = [3, 4, 5, 6]
SAMPLES = [1, 2, 1, 2], SEEDS


class Growth(VelocityNet):
    """x' = 0.5 k x with k the label: the samples are the noise times exp(0.5 k)."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.sample_shape, self.num_classes = (2,), classes

    def forward(self, x: Tensor, t: float, label: Tensor | None = None) -> Tensor:
        return 0.5 * (label.reshape(-1, 1) if label is not None else 1) * x


def build(classes: int = 2, guidance: Guidance | None = None) -> Sampler:
    return Sampler(Growth(classes), ConditionalOT(0.0), Solver("euler", 7), guidance, chunk=3)


def error(samples: Tensor, labels: list[int] | None) -> dict[str, float]:
    rates = torch.tensor(labels or [1] * len(samples)) * 0.5
    exact = build().noise(SEEDS) * rates.exp()[:, None]
    return {"error": float((samples - exact).abs().max()), "mean": float(samples.mean())}


def test_solver_table_counts_what_was_evaluated() -> None:
    model, methods = build(), ["euler", "rk4", "dopri5"]
    rows = tables.solver_table(model, SAMPLES, error, methods, budgets=(1, 10), tolerances=(1e-3, 1e-5))
    result = {(row["method"], row["budget"]): row for row in rows}
    assert {key[0] for key in result if key[1] == 1} == {"euler"}  # one step of the others costs more
    assert (result["rk4", 10]["steps"], result["rk4", 10]["nfe"], result["rk4", 10]["passes"]) == (2, 8, 8)
    loose, tight = (row for row in rows if row["method"] == "dopri5")
    assert (loose["budget"], loose["tolerance"], tight["tolerance"]) == (None, 1e-3, 1e-5)
    assert 6 < loose["nfe"] < tight["nfe"] and loose["quality"]["error"] > tight["quality"]["error"]


def test_grids_are_shifted_as_the_run_has_them() -> None:
    model = build().using(Solver("euler", 7, shift=3.0), None)
    (row,) = tables.solver_table(model, SAMPLES, error, ["euler"], budgets=(4,))
    (guided,) = tables.guidance_table(model, SAMPLES, error, scales=(1.0,), budgets=(4,))
    shifted = model.using(Solver("euler", 4, shift=3.0), None).sample(*SAMPLES)
    assert row["quality"]["mean"] == guided["quality"]["mean"] == float(shifted.mean())


def test_guidance_costs_passes_not_evaluations() -> None:
    model = build(guidance=Guidance(4.0, interval=(0.0, 0.5)))
    rows = tables.guidance_table(model, SAMPLES, error, scales=(1.0, 2.0), budgets=(4,))
    assert [(row["scale"], row["nfe"], row["passes"]) for row in rows] == [(1.0, 4, 4), (2.0, 4, 7)]
    assert model.guidance.scale == 4.0
    (row,) = tables.guidance_table(build(), SAMPLES, error, scales=(2.0,), budgets=(200,), method="rk4")
    assert row["passes"] == 400
    # all labels of the field doubled, for the null class stands still
    doubled = build().noise(SEEDS) * torch.tensor([1.0, 2.0, 1.0, 2.0]).exp()[:, None]
    assert row["quality"]["mean"] == pytest.approx(float(doubled.mean()), abs=1e-4)


def test_sweep_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = GenerationRequest(4)
    result = tables.compare(build(), tmp_path / "out", error, request, ["euler", "dopri5"], (1, 4), (1.0, 3.0), (1e-2,))
    for name, count in (("solvers", 3), ("guidance", 4)):
        written = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert written["rows"] == result[name] and len(result[name]) == count
    assert "guidance: mean" in capsys.readouterr().out
    unconditional = tables.compare(build(0), tmp_path / "free", error, request, methods=["euler"], budgets=(1,))
    assert list(unconditional) == ["solvers"]
    nested = build().using(Solver(), NestedGuidance({"label": 2.0}))
    with pytest.raises(ValueError, match="one scale"):
        tables.compare(nested, tmp_path / "nested", error, request)


def test_points_are_judged_by_their_set() -> None:
    quality = build_quality((2,), "swiss_roll")
    real = points.draw("swiss_roll", 400, 5)
    assert quality(real, None)["chamfer"] < 5 < quality(torch.randn(400, 2), None)["chamfer"]
