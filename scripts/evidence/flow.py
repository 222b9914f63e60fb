"""What flow matching runs have learned: python -m scripts.evidence.flow digits|swissroll --help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from scripts.bench.tools import Finding, evidence, save
from zoo.common.configs import load_yaml
from zoo.flow import rendering
from zoo.flow.data import points
from zoo.flow.evaluation.classifier import cached_digits_classifier
from zoo.flow.evaluation.comparison import QUICK, Comparison, Samples
from zoo.flow.evaluation.controls import controls, matching_labels
from zoo.flow.evaluation.files import read_digits
from zoo.flow.evaluation.metrics import chamfer
from zoo.flow.evaluation.references import REFERENCE_SEED
from zoo.flow.inference.drawing import load_sampler, requests
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.solvers import Solver
from zoo.runs.run_folder import find_config

SAMPLES, FEW_SAMPLES = 900, 150  # few of them are quick
DRAWS = 3  # of so many samples
POINTS, FEW_POINTS = 2048, 128
EPOCH = -7  # of the keys of this noise, see `zoo.flow.inference.drawing`
UNGUIDED = Guidance(1.0)
CONTROLS = ("accuracy", "std_ratio", "nearest_ratio")  # figures beside the Fréchet distance


@dataclass(frozen=True)
class Digits:
    """What runs on one split of the digits, or of other images, are compared with.

    Args:
        comparison: with the held-out images.
        train: the training images.
        labels: of samples, in the proportions of the held-out images.
        draws: sets of samples whose figures are averaged; one of some hundred images is a noisy measure.
    """

    comparison: Comparison
    train: Samples
    labels: list[int]
    draws: int = DRAWS

    def controls(self) -> dict[str, dict[str, float]]:
        """Figures of the controls, and of as many real training images as there are samples: the floor."""
        assert self.train.labels is not None
        found = {}
        for name, (images, labels) in controls(self.train.images(), self.train.labels, self.labels).items():
            if name != "train":
                found[name] = self.comparison(images, labels)
        return {"real": self.floor(), **found}

    def floor(self) -> dict[str, float]:
        """Figures of training images, no image twice, in the samples' proportions, averaged over draws."""
        assert self.train.labels is not None
        images, labels = self.train.images(), np.array(self.train.labels)
        figures = []
        for draw in range(self.draws):
            rng = np.random.default_rng(draw)
            rows = np.concatenate(
                [
                    rng.choice(np.flatnonzero(labels == label), self.labels.count(label), replace=False)
                    for label in sorted(set(self.labels))
                ]
            )
            figures.append(self.comparison(images[torch.from_numpy(rows)], labels[rows].tolist()))
        return _mean(figures)


def digits_of(run: Path, cache: Path | None = Path("runs/cache"), quick: bool = False, draws: int = DRAWS) -> Digits:
    """The split that a run was trained on, with a classifier that has seen its training part alone.

    Args:
        run: run folder.
        cache: folder of trained classifiers.
        quick: with one set of few samples.
        draws: sets of samples otherwise.

    Raises:
        ValueError: when the run was trained on something else, or its training part has too few images of a class.
    """
    data = load_yaml(find_config(run).read_text(encoding="utf-8"))["data"]["init_args"]
    if data.get("root") is not None or "image_resolution" not in data:
        raise ValueError(f"{run} was not trained on scikit-learn's digits")
    train, held = read_digits(data["val_every"], data["split_seed"], data["image_resolution"], data["channels"])
    assert train.labels is not None and held.labels is not None
    labels = matching_labels(held.labels, FEW_SAMPLES if quick else SAMPLES)
    if len(train) < len(labels):
        raise ValueError(f"{run}: the floor needs {len(labels)} training images, its split has {len(train)}")
    classifier = cached_digits_classifier(train.images(), train.labels, 0, cache)
    return Digits(Comparison(held, classifier, train, QUICK, cache), train, labels, 1 if quick else draws)


def figures_of(sampler: Sampler, digits: Digits, solver: Solver, scale: float = 1.0) -> dict[str, float]:
    """Figures of a run's samples, averaged over sets of them."""
    chosen = sampler.using(solver, Guidance(scale))
    figures = []
    for draw in range(digits.draws):
        _, seeds = requests(len(digits.labels), draw, sampler.net.num_classes, None, EPOCH)
        figures.append(digits.comparison(chosen.sample(digits.labels, seeds), digits.labels))
    return _mean(figures)


def gather_digits(
    pooled: Sequence[Path], independent: Sequence[Path] = (), batch: Sequence[Path] = (), quick: bool = False
) -> list[Finding]:
    """Evaluate runs of `demo_digits`; the report and a grid of samples go into `evidence/` of the first.

    Args:
        pooled: runs with noise paired within classes over the epoch, one per split.
        independent: runs on the same splits, in the same order, with independent noise.
        batch: the same with noise paired within classes of each batch.
        quick: few samples.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when the groups differ in size, or a run was trained on something else.
    """
    for group in (independent, batch):
        if group and len(group) != len(pooled):
            raise ValueError(f"expected as many runs in each group, found {len(pooled)} and {len(group)}")
    rows: list[dict[str, Any]] = []
    for number, run in enumerate(pooled):
        digits = digits_of(run, quick=quick)
        rows.append({"run": str(run), **{f"control {name}": value for name, value in digits.controls().items()}})
        rows[-1]["held-out accuracy"] = digits.comparison.figures(digits.comparison.reference)["accuracy"]
        groups = {"pooled": run}
        groups |= {"independent": independent[number]} if independent else {}
        groups |= {"batch": batch[number]} if batch else {}
        for name, path in groups.items():
            sampler = load_sampler(path)
            rows[-1][f"{name} 20"] = figures_of(sampler, digits, sampler.solver)
            rows[-1][f"{name} 5"] = figures_of(sampler, digits, Solver("euler", 5))
            if name == "pooled":
                rows[-1]["pooled 20 guidance 2"] = figures_of(sampler, digits, sampler.solver, 2.0)
    folder = Path(pooled[0]) / "evidence"
    findings = _claims(rows)
    for key in (key for key, value in rows[0].items() if isinstance(value, Mapping)):
        figures = {name: _shown([row[key].get(name) for row in rows]) for name in CONTROLS}
        name = f"{key}: Fréchet"
        findings.append(Finding(name, fmean(row[key]["frechet"] for row in rows), "", details=figures))
    save(
        folder / "evidence.json", findings, evidence="digits", samples=len(digits.labels), draws=digits.draws, rows=rows
    )
    _draw_grid(load_sampler(Path(pooled[0])), folder / "samples.png")
    return findings


def _claims(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    def ratio(first: str, second: str, figure: str = "frechet") -> list[float]:
        return [row[first][figure] / row[second][figure] for row in rows]

    def plain(name: str, figure: str) -> list[float]:
        return [row[name][figure] for row in rows]

    found = [
        _claim("classifier on held-out images, accuracy", [row["held-out accuracy"] for row in rows], at_least=0.985),
        _claim("20 NFE: accuracy", plain("pooled 20", "accuracy"), at_least=0.985),
        _claim("20 NFE: Fréchet to the floor's", ratio("pooled 20", "control real"), at_most=1.25),
        _claim("20 NFE: Fréchet to the class Gaussians'", ratio("pooled 20", "control gaussian"), at_most=0.6),
        _claim("20 NFE: deviation within classes to real", plain("pooled 20", "std_ratio"), at_least=0.85),
        _claim("20 NFE: nearest training image, to held-out", plain("pooled 20", "nearest_ratio"), at_least=0.85),
        _claim("20 NFE, guidance 2: accuracy", plain("pooled 20 guidance 2", "accuracy"), at_least=0.995),
    ]
    if "independent 5" in rows[0]:
        found.append(_claim("Euler 5: Fréchet pooled to independent", ratio("pooled 5", "independent 5"), at_most=0.85))
        found.append(_claim("20 NFE: Fréchet pooled to independent", ratio("pooled 20", "independent 20")))
        if "batch 5" in rows[0]:
            name = "Euler 5: Fréchet per batch to independent"
            found.append(_claim(name, ratio("batch 5", "independent 5"), at_most=0.9))
    return found


def _claim(name: str, values: Sequence[float], **limits: float) -> Finding:
    return Finding(name, fmean(values), "", **limits, details={"runs": _shown(values)})


def gather_swissroll(
    assigned: Sequence[Path], transport: Sequence[Path] = (), distilled: Sequence[Path] = (), quick: bool = False
) -> list[Finding]:
    """Evaluate runs of `demo_swissroll` by the Chamfer distance of 2048 points; medians over the runs.

    The report and a scatter plot go into `evidence/` of the first run.

    Args:
        assigned: runs of the recipe as it is.
        transport: runs with minibatch optimal transport.
        distilled: runs of `demo_swissroll_distill`.
        quick: few points.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run is of something else.
    """
    count = FEW_POINTS if quick else POINTS
    real = points.draw("swiss_roll", count, REFERENCE_SEED)
    findings = []
    for name, runs, steps, most in (
        ("as assigned, Euler 50: Chamfer", assigned, 50, 25.0),
        ("optimal transport, Euler 50: Chamfer", transport, 50, 15.0),
        ("distilled, one step: Chamfer", distilled, 1, 40.0),
    ):
        values = []
        for run in runs:
            sampler = load_sampler(run, Solver("euler", steps), chunk=count)
            if tuple(sampler.net.sample_shape) != (2,):
                raise ValueError(f"{run} makes samples of shape {tuple(sampler.net.sample_shape)}, expected points")
            values.append(chamfer(sampler.sample(None, requests(count, 0, 0, None, EPOCH)[1]), real))
        if values:
            findings.append(Finding(name, median(values), "", at_most=most, details={"runs": _shown(values)}))
    others = [chamfer(points.draw("swiss_roll", count, seed), real) for seed in (2, 3, 4)]
    details = {"runs": _shown(others)}
    findings.append(Finding("two samples of the set: Chamfer", median(others), "", details=details))
    folder = Path(assigned[0]) / "evidence"
    save(folder / "evidence.json", findings, evidence="swissroll", points=count)
    sampler = load_sampler(assigned[0], Solver("euler", 50), chunk=count)
    drawn = sampler.sample(None, requests(count, 0, 0, None, EPOCH)[1])
    rendering.write_png(folder / "samples.png", rendering.picture(drawn, None, real))
    return findings


def _shown(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.3g}" for value in values)


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: fmean(each[key] for each in figures) for key in figures[0]}


def _draw_grid(sampler: Sampler, path: Path) -> None:
    """A hundred samples, a class in each row."""
    labels = [index // 10 + 1 for index in range(100)]
    _, seeds = requests(len(labels), 0, sampler.net.num_classes, None, EPOCH)
    images = rendering.to_pixels(sampler.using(Solver("euler", 20), UNGUIDED).sample(labels, seeds))
    rendering.write_png(path, rendering.enlarged(rendering.grid(images)))


if __name__ == "__main__":
    evidence({"digits": gather_digits, "swissroll": gather_swissroll})
