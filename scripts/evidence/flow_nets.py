"""Transformer against U-Net at equal processor time, and few steps: figures of one seed's runs; see `run.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from scripts.evidence.flow import FEW_SAMPLES, SAMPLES, Digits, digits_of, figures_of
from zoo.common.build import build
from zoo.common.configs import load_yaml
from zoo.flow.data.datamodule import ImageData
from zoo.flow.data.items import Items
from zoo.flow.evaluation.comparison import QUICK, Comparison
from zoo.flow.evaluation.controls import matching_labels
from zoo.flow.evaluation.digits_classifier import train_digits_classifier
from zoo.flow.evaluation.features import FeatureExtractor
from zoo.flow.evaluation.samples import SampleSet
from zoo.flow.inference.requests import load_sampler
from zoo.flow.process.solvers import Solver
from zoo.flow.rendering import to_pixels
from zoo.runs.run_folder import find_config

STEPS = 20  # of Euler, where nets are compared
FEW = (1, 2, 4)  # evaluations of the net for a sample
FEW_STEPS = (*(f"{name} {steps}" for name in ("Euler", "MeanFlow") for steps in FEW), "distilled 1")
RUNS = ("digits_unet", "digits_dit", "glyphs_unet", "glyphs_dit", "meanflow", "distilled")
DRAWS = 2
JUDGE_EPOCHS = 12  # of 6,200 glyphs
FLOOR = "Fréchet to the floor's"
FIGURES = ("accuracy", "std_ratio", "nearest_ratio")


class Colours(FeatureExtractor):
    """Mean and standard deviation of each channel: what a classifier of grey images does not see."""

    dims = 6

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 6) of images (B, 3, H, W)."""
        flat = images.flatten(2)
        return torch.cat([flat.mean(dim=2), flat.std(dim=2)], dim=1)


def glyphs_of(run: Path, quick: bool = False) -> tuple[Digits, Digits]:
    """The glyphs that a run was trained on: judged by their shapes (a classifier of grey images), and by their colours.

    Args:
        run: run folder.
        quick: with one set of few samples, and a classifier hardly trained.

    Raises:
        ValueError: when the run was trained on something else.
    """
    settings = load_yaml(find_config(run).read_text(encoding="utf-8"))["data"]
    if not settings["init_args"].get("glyphs"):
        raise ValueError(f"{run} was not trained on glyphs")
    data: ImageData = build(settings)
    data.setup("fit")
    train, held_out = (_samples(items, data.classes) for items in (data.train_set, data.val_set))
    assert train.labels is not None and held_out.labels is not None
    judge = train_digits_classifier(train.images(), train.labels, 0, 1 if quick else JUDGE_EPOCHS)
    labels = matching_labels(held_out.labels, FEW_SAMPLES if quick else SAMPLES)
    draws = 1 if quick else DRAWS
    shapes = Digits(Comparison(held_out, judge, train, QUICK), train, labels, draws)
    return shapes, Digits(Comparison(held_out, Colours(), train, ("frechet",)), train, labels, draws)


def _samples(items: Items, classes: list[str]) -> SampleSet:
    images, labels = items.examples(range(len(items)))
    return SampleSet(to_pixels(images), labels, classes)


def measure(
    digits_unet: Path,
    digits_dit: Path,
    glyphs_unet: Path,
    glyphs_dit: Path,
    meanflow: Path,
    distilled: Path,
    quick: bool = False,
) -> dict[str, float]:
    """Evaluate runs of the recipes demo_digits, demo_digits_dit, demo_glyphs, ..._dit, ..._meanflow, ..._distill.

    Raises:
        ValueError: when a run was trained on something else.
    """
    digits = digits_of(digits_unet, quick=quick, draws=DRAWS)
    floor = digits.floor()["frechet"]
    values: dict[str, float] = {}
    for name, run in (("U-Net", digits_unet), ("DiT", digits_dit)):
        values |= _with_prefix(f"digits, {name}", figures_of(load_sampler(run), digits, Solver("euler", STEPS)), floor)
    values |= _glyphs(glyphs_unet, glyphs_dit, quick)
    for data in ("digits", "glyphs"):
        dit, unet = (values[f"{data}, {net}: Fréchet to the floor's"] for net in ("DiT", "U-Net"))
        values[f"{data}: Fréchet DiT to U-Net"] = dit / unet
    for name, run, budgets in (("Euler", digits_dit, FEW), ("MeanFlow", meanflow, FEW), ("distilled", distilled, (1,))):
        sampler = load_sampler(run)
        for steps in budgets:
            values |= _with_prefix(f"{name} {steps}", figures_of(sampler, digits, Solver("euler", steps)), floor)
    euler, mean_flow = ([values[f"{name} {steps}: {FLOOR}"] for steps in FEW] for name in ("Euler", "MeanFlow"))
    for steps, slow, fast in zip(FEW, euler, mean_flow, strict=True):
        values[f"{steps} evaluation{'s' * (steps > 1)}: Fréchet MeanFlow to Euler"] = fast / slow
    values["1 evaluation: Fréchet distilled to Euler"] = values[f"distilled 1: {FLOOR}"] / euler[0]
    return values


def _glyphs(unet: Path, dit: Path, quick: bool) -> dict[str, float]:
    """Evaluate both nets on the glyphs, and the classifier on held-out ones."""
    shapes, colours = glyphs_of(unet, quick)
    floor, colours_floor = shapes.floor()["frechet"], colours.floor()["frechet"]
    values = {"glyphs: held-out images, accuracy": shapes.held_out_accuracy()}
    for name, run in (("U-Net", unet), ("DiT", dit)):
        sampler = load_sampler(run)
        values |= _with_prefix(f"glyphs, {name}", figures_of(sampler, shapes, Solver("euler", STEPS)), floor)
        frechet = figures_of(sampler, colours, Solver("euler", STEPS))["frechet"]
        values[f"glyphs, {name}: Fréchet of colours to the floor's"] = frechet / colours_floor
    return values


def _with_prefix(name: str, figures: Mapping[str, float], floor: float) -> dict[str, float]:
    values = {f"{name}: {FLOOR}": figures["frechet"] / floor}
    return values | {f"{name}: {figure}": figures[figure] for figure in FIGURES}
