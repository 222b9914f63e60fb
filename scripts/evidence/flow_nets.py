"""Transformer against U-Net at equal processor time on the digits, and few steps: figures of one seed's runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scripts.evidence.flow import digits_of, figures_of
from zoo.flow.inference.requests import load_sampler
from zoo.flow.process.solvers import Solver

STEPS = 20  # of Euler, where nets are compared
FEW = (1, 2, 4)  # evaluations of the net for a sample
RUNS = ("digits_unet", "digits_dit", "meanflow", "distilled")
DRAWS = 2
FLOOR = "Fréchet to the floor's"
FIGURES = ("accuracy", "std_ratio", "nearest_ratio")


def measure(
    digits_unet: Path, digits_dit: Path, meanflow: Path, distilled: Path, quick: bool = False
) -> dict[str, float]:
    """Evaluate runs of the recipes demo_digits, demo_digits_dit, ..._meanflow and ..._distill.

    Raises:
        ValueError: when a run was trained on something else.
    """
    digits = digits_of(digits_unet, quick=quick, draws=DRAWS)
    floor = digits.floor()["frechet"]
    values: dict[str, float] = {}
    for name, run in (("U-Net", digits_unet), ("DiT", digits_dit)):
        values |= _with_prefix(f"digits, {name}", figures_of(load_sampler(run), digits, Solver("euler", STEPS)), floor)
    values["digits: Fréchet DiT to U-Net"] = values[f"digits, DiT: {FLOOR}"] / values[f"digits, U-Net: {FLOOR}"]
    for name, run, budgets in (("Euler", digits_dit, FEW), ("MeanFlow", meanflow, FEW), ("distilled", distilled, (1,))):
        sampler = load_sampler(run)
        for steps in budgets:
            values |= _with_prefix(f"{name} {steps}", figures_of(sampler, digits, Solver("euler", steps)), floor)
    euler, mean_flow = ([values[f"{name} {steps}: {FLOOR}"] for steps in FEW] for name in ("Euler", "MeanFlow"))
    for steps, slow, fast in zip(FEW, euler, mean_flow, strict=True):
        values[f"{steps} evaluation{'s' * (steps > 1)}: Fréchet MeanFlow to Euler"] = fast / slow
    values["1 evaluation: Fréchet distilled to Euler"] = values[f"distilled 1: {FLOOR}"] / euler[0]
    return values


def _with_prefix(name: str, figures: Mapping[str, float], floor: float) -> dict[str, float]:
    values = {f"{name}: {FLOOR}": figures["frechet"] / floor}
    return values | {f"{name}: {figure}": figures[figure] for figure in FIGURES}
