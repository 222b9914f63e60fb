"""What flow matching runs have learned: python -m scripts.evidence.flow digits|swissroll --help."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from zoo.common.atomic import write_atomic
from zoo.common.reading.text import safe_load
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
from zoo.runs.folder import find_config

SAMPLES = 900
POINTS = 2048
DRAWS = 3  # sets of samples whose figures are averaged; one of some hundred images is a noisy judge
EPOCH = -7  # of the keys of this noise, see `zoo.flow.inference.drawing`
UNGUIDED = Guidance(1.0)


@dataclass(frozen=True)
class Claim:
    """A figure with its target.

    Args:
        name: what was measured.
        value: mean or median over the runs.
        values: of each run.
        least: target from below; None for none.
        most: target from above; None for none.
    """

    name: str
    value: float
    values: list[float]
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.least is None and self.most is None:
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)


@dataclass(frozen=True)
class Digits:
    """What judges runs on one split of the digits.

    Args:
        comparison: with the held-out images.
        train: the training images.
        labels: of samples, in the proportions of the held-out images.
    """

    comparison: Comparison
    train: Samples
    labels: list[int]

    def controls(self) -> dict[str, dict[str, float]]:
        """Figures of the controls, and of as many real training images as there are samples: the floor."""
        assert self.train.labels is not None
        found = {}
        for name, (images, labels) in controls(self.train.images(), self.train.labels, self.labels).items():
            if name != "train":
                found[name] = self.comparison(images, labels)
        return {"real": self._floor(), **found}

    def _floor(self) -> dict[str, float]:
        """Figures of training images, no image twice, in the samples' proportions, averaged over draws."""
        assert self.train.labels is not None
        images, labels = self.train.images(), np.array(self.train.labels)
        figures = []
        for draw in range(DRAWS):
            rng = np.random.default_rng(draw)
            rows = np.concatenate(
                [
                    rng.choice(np.flatnonzero(labels == label), self.labels.count(label), replace=False)
                    for label in sorted(set(self.labels))
                ]
            )
            figures.append(self.comparison(images[torch.from_numpy(rows)], labels[rows].tolist()))
        return _mean(figures)


def digits_of(run: Path, cache: Path | None = Path("runs/cache")) -> Digits:
    """The split that a run was trained on, with a classifier that has seen its training part alone.

    Args:
        run: run folder.
        cache: folder of trained classifiers.

    Raises:
        ValueError: when the run was trained on something else, or its training part has too few images of a class.
    """
    data = safe_load(find_config(run).read_text(encoding="utf-8"))["data"]["init_args"]
    if data.get("root") is not None or "image_resolution" not in data:
        raise ValueError(f"{run} was not trained on scikit-learn's digits")
    train, held = read_digits(data["val_every"], data["split_seed"], data["image_resolution"], data["channels"])
    assert train.labels is not None and held.labels is not None
    labels = matching_labels(held.labels, SAMPLES)
    if len(train) < SAMPLES:
        raise ValueError(f"{run}: the floor needs {SAMPLES} training images, its split has {len(train)}")
    classifier = cached_digits_classifier(train.images(), train.labels, 0, cache)
    return Digits(Comparison(held, classifier, train, QUICK, cache), train, labels)


def figures_of(sampler: Sampler, judge: Digits, steps: int, scale: float) -> dict[str, float]:
    """Figures of a run's samples, averaged over sets of them."""
    chosen = sampler.using(Solver("euler", steps), Guidance(scale))
    figures = []
    for draw in range(DRAWS):
        _, seeds = requests(SAMPLES, draw, sampler.net.num_classes, None, EPOCH)
        figures.append(judge.comparison(chosen.sample(judge.labels, seeds), judge.labels))
    return _mean(figures)


def gather_digits(
    pooled: Sequence[Path], independent: Sequence[Path] = (), batch: Sequence[Path] = ()
) -> dict[str, Any]:
    """Judge runs of `demo_digits`; the report and a grid of samples go into `evidence/` of the first.

    Args:
        pooled: runs with noise paired within classes over the epoch, one per split.
        independent: runs on the same splits, in the same order, with independent noise.
        batch: the same with noise paired within classes of each batch.

    Returns:
        What evidence.json holds.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when the groups differ in size, or a run was trained on something else.
    """
    for group in (independent, batch):
        if group and len(group) != len(pooled):
            raise ValueError(f"expected as many runs in each group, found {len(pooled)} and {len(group)}")
    rows: list[dict[str, Any]] = []
    for number, run in enumerate(pooled):
        judge = digits_of(run)
        rows.append({"run": str(run), **{f"control {name}": value for name, value in judge.controls().items()}})
        rows[-1]["held-out accuracy"] = judge.comparison.figures(judge.comparison.reference)["accuracy"]
        groups = {"pooled": run}
        groups |= {"independent": independent[number]} if independent else {}
        groups |= {"batch": batch[number]} if batch else {}
        for name, path in groups.items():
            sampler = load_sampler(path)
            rows[-1][f"{name} 20"] = figures_of(sampler, judge, 20, 1.0)
            rows[-1][f"{name} 5"] = figures_of(sampler, judge, 5, 1.0)
            if name == "pooled":
                rows[-1]["pooled 20 guidance 2"] = figures_of(sampler, judge, 20, 2.0)
    folder = Path(pooled[0]) / "evidence"
    report = {"samples": SAMPLES, "draws": DRAWS, "rows": rows, "claims": [asdict(claim) for claim in _claims(rows)]}
    write_atomic(folder / "evidence.json", lambda file: file.write(json.dumps(report, indent=1).encode()))
    _draw_grid(load_sampler(Path(pooled[0])), folder / "samples.png")
    return report


def _claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    def ratio(first: str, second: str, figure: str = "frechet") -> list[float]:
        return [row[first][figure] / row[second][figure] for row in rows]

    def plain(name: str, figure: str) -> list[float]:
        return [row[name][figure] for row in rows]

    found = [
        ("classifier on held-out images, accuracy", [row["held-out accuracy"] for row in rows], 0.985, None),
        ("Euler 20: accuracy", plain("pooled 20", "accuracy"), 0.985, None),
        ("Euler 20: Fréchet to the floor's", ratio("pooled 20", "control real"), None, 1.25),
        ("Euler 20: Fréchet to the class Gaussians'", ratio("pooled 20", "control gaussian"), None, 0.6),
        ("Euler 20: spread within classes to real", plain("pooled 20", "std_ratio"), 0.85, None),
        ("Euler 20: nearest training image, to held-out", plain("pooled 20", "nearest_ratio"), 0.85, None),
        ("Euler 20, guidance 2: accuracy", plain("pooled 20 guidance 2", "accuracy"), 0.995, None),
    ]
    if "independent 5" in rows[0]:
        found.append(("Euler 5: Fréchet pooled to independent", ratio("pooled 5", "independent 5"), None, 0.85))
        found.append(("Euler 20: Fréchet pooled to independent", ratio("pooled 20", "independent 20"), None, None))
        if "batch 5" in rows[0]:
            found.append(("Euler 5: Fréchet per batch to independent", ratio("batch 5", "independent 5"), None, 0.9))
    return [Claim(name, fmean(values), values, least, most) for name, values, least, most in found]


def gather_swissroll(
    assigned: Sequence[Path], transport: Sequence[Path] = (), distilled: Sequence[Path] = ()
) -> dict[str, Any]:
    """Judge runs of `demo_swissroll` by the Chamfer distance of 2048 points; medians over the runs.

    The report and a scatter plot go into `evidence/` of the first run.

    Args:
        assigned: runs of the recipe as it is.
        transport: runs with minibatch optimal transport.
        distilled: runs of `demo_swissroll_distill`.

    Returns:
        What evidence.json holds.

    Raises:
        FileNotFoundError: when a run is missing.
        ValueError: when a run is of something else.
    """
    real = points.draw("swiss_roll", POINTS, REFERENCE_SEED)
    claims = []
    for name, runs, steps, most in (
        ("as assigned, Euler 50: Chamfer", assigned, 50, 25.0),
        ("optimal transport, Euler 50: Chamfer", transport, 50, 15.0),
        ("distilled, one step: Chamfer", distilled, 1, 40.0),
    ):
        values = []
        for run in runs:
            sampler = load_sampler(run, Solver("euler", steps), chunk=POINTS)
            if tuple(sampler.net.sample_shape) != (2,):
                raise ValueError(f"{run} makes samples of shape {tuple(sampler.net.sample_shape)}, expected points")
            values.append(chamfer(sampler.sample(None, requests(POINTS, 0, 0, None, EPOCH)[1]), real))
        if values:
            claims.append(Claim(name, median(values), values, None, most))
    others = [chamfer(points.draw("swiss_roll", POINTS, seed), real) for seed in (2, 3, 4)]
    claims.append(Claim("two draws of the set: Chamfer", median(others), others))
    folder = Path(assigned[0]) / "evidence"
    report = {"points": POINTS, "claims": [asdict(claim) for claim in claims]}
    write_atomic(folder / "evidence.json", lambda file: file.write(json.dumps(report, indent=1).encode()))
    sampler = load_sampler(assigned[0], Solver("euler", 50), chunk=POINTS)
    drawn = sampler.sample(None, requests(POINTS, 0, 0, None, EPOCH)[1])
    rendering.write_png(folder / "samples.png", rendering.picture(drawn, None, real))
    return report


def show(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the claims with their verdicts, and the controls."""
    table = Table()
    for column in ("figure", "value", "runs", "target", "verdict"):
        table.add_column(column, overflow="fold")
    for entry in report["claims"]:
        claim = Claim(**entry)
        target = (
            f">= {claim.least}" if claim.least is not None else f"<= {claim.most}" if claim.most is not None else ""
        )
        verdict = {True: "met", False: "NOT MET", None: ""}[claim.holds]
        table.add_row(claim.name, f"{claim.value:.4g}", _list(claim.values), target, verdict)
    console = console or Console()
    console.print(table)
    if "rows" in report:
        console.print(_control_table(report["rows"]))


def _control_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    keys = [key for key, value in rows[0].items() if isinstance(value, Mapping)]
    columns = ("frechet", "accuracy", "std_ratio", "nearest_ratio")
    table = Table("of each run", *columns)
    for key in keys:
        table.add_row(key.removeprefix("control "), *(_list([row[key].get(name) for row in rows]) for name in columns))
    return table


def _list(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.3g}" for value in values)


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: fmean(each[key] for each in figures) for key in figures[0]}


def _draw_grid(sampler: Sampler, path: Path) -> None:
    """A hundred samples, a class in each row."""
    labels = [index // 10 + 1 for index in range(100)]
    _, seeds = requests(len(labels), 0, sampler.net.num_classes, None, EPOCH)
    images = rendering.to_pixels(sampler.using(Solver("euler", 20), UNGUIDED).sample(labels, seeds))
    rendering.write_png(path, rendering.enlarged(rendering.grid(images)))


def main() -> None:
    """Gather, print and keep the evidence; exits with 1 and one line when there is none to be had."""
    parser = argparse.ArgumentParser(description="Figures with targets and controls, written into the first run")
    sets = parser.add_subparsers(dest="set", required=True)
    digits = sets.add_parser("digits", help="runs of demo_digits, one per seed")
    digits.add_argument("--pooled", type=Path, nargs="+", required=True, help="runs of the recipe as it is")
    digits.add_argument("--independent", type=Path, nargs="+", default=[], help="runs with independent noise")
    digits.add_argument("--batch", type=Path, nargs="+", default=[], help="runs with noise paired in each batch")
    roll = sets.add_parser("swissroll", help="runs of demo_swissroll, one per seed")
    roll.add_argument("--assigned", type=Path, nargs="+", required=True, help="runs of the recipe as it is")
    roll.add_argument("--transport", type=Path, nargs="+", default=[], help="runs with minibatch optimal transport")
    roll.add_argument("--distilled", type=Path, nargs="+", default=[], help="runs of demo_swissroll_distill")
    options = parser.parse_args()
    try:
        if options.set == "digits":
            show(gather_digits(options.pooled, options.independent, options.batch))
        else:
            show(gather_swissroll(options.assigned, options.transport, options.distilled))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
