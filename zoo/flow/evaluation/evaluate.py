"""Evaluation of generated images against real ones: figures, intervals, controls and a report."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import torch
from rich.console import Console
from torch import Tensor

import zoo
from zoo.common.environment import describe_machine
from zoo.common.locks import writes_into
from zoo.common.reports import new_figure, terminal_table, write_report
from zoo.common.statistics import LEVEL, Interval, bootstrap_mean
from zoo.flow.evaluation import metrics as distances
from zoo.flow.evaluation.comparison import MANIFOLD_ROWS, METRICS, Comparison, Samples, samples_of
from zoo.flow.evaluation.controls import controls as make_controls
from zoo.flow.evaluation.controls import matching_labels
from zoo.flow.evaluation.extractors import BATCH
from zoo.flow.evaluation.files import read_samples
from zoo.flow.evaluation.references import ExtractorName, build_extractor, read_sets

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# which way is better; shares of the real images' figure are best at 1
BETTER = {
    "frechet": "↓",
    "accuracy": "↑",
    "std_ratio": "→ 1",
    "nearest": "",
    "nearest_ratio": "→ 1",
    "precision": "↑",
    "recall": "↑",
    "density": "↑",
    "coverage": "↑",
}
COLUMNS = ("system", "figure", "value", "low", "high", "samples", "reference")
NAME = "evaluation"
SCATTERED = 2000  # points of each set


def show(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the figures, a column per system, and the table of classes."""
    console = console or Console()
    rows = report["rows"]
    counts = {row["system"]: f"{row['samples']}/{row['reference'] or '?'}" for row in reversed(rows)}
    systems = list(dict.fromkeys(row["system"] for row in rows))
    heads = ["figure", *(f"{system}\n{counts[system]}" for system in systems)]
    cells = {(row["figure"], row["system"]): _cell(row, row["system"] == systems[0]) for row in rows}
    lines = [
        [f"{figure} {BETTER[figure]}", *(cells.get((figure, system), "") for system in systems)]
        for figure in dict.fromkeys(row["figure"] for row in rows)
    ]
    caption = "Under each name: images/real images. Below a value: 95 % interval of the first."
    title = f"{report['extractor']}, {report['dims']} dimensions"
    console.print(terminal_table(heads, lines, title, heads[:1], heads[:2], caption=caption, caption_justify="left"))
    if report["classes"]:
        heads = [column.replace("_", "\n") for column in report["classes"][0]]
        lines = [
            [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()]
            for row in report["classes"]
        ]
        console.print(terminal_table(heads, lines, "classes", ("class",), heads))
    for note in report["notes"]:
        console.print(note)


def _cell(row: Mapping[str, Any], with_interval: bool) -> str:
    value = f"{row['value']:{'.4g' if with_interval else '.3g'}}"
    shown = with_interval and row["low"] is not None
    return f"{value}\n{row['low']:.3g} to {row['high']:.3g}" if shown else value


def figure(report: Mapping[str, Any], comparison: Comparison, fake: Tensor) -> Figure:
    """Draw both sets in the plane of most variance of the real one, and the figures of the classes as bars."""
    bars = [key for key in ("accuracy", "std_ratio") if report["classes"] and key in report["classes"][0]]
    drawing = new_figure(5 + 4 * bool(bars), 4.5)
    panels = drawing.subplots(1, 1 + bool(bars), squeeze=False)[0]
    for name, points, colour in zip(("real", "generated"), plane(comparison, fake), ("0.6", "C1"), strict=True):
        panels[0].scatter(*points[:SCATTERED].T.numpy(), s=4, c=colour, linewidths=0, label=name)
    panels[0].set(title="features, first two directions of the real", xticks=[], yticks=[])
    panels[0].legend()
    for number, key in enumerate(bars):
        places = [place + 0.4 * number - 0.2 for place in range(len(report["classes"]))]
        panels[1].bar(places, [row[key] for row in report["classes"]], width=0.4, label=key)
    if bars:
        panels[1].axhline(1, color="0.5", linewidth=0.8)
        panels[1].set_xticks(range(len(report["classes"])), [row["class"] for row in report["classes"]])
        panels[1].set(title="classes")
        panels[1].legend(loc="lower right")
    return drawing


def plane(comparison: Comparison, fake: Tensor) -> tuple[Tensor, Tensor]:
    """Project real features and others (M, D) onto the two directions of most variance of the real: (N, 2), (M, 2)."""
    real, known = comparison.real, comparison.reference.statistics
    if known is None:
        centre = real.mean(dim=0)
        _, _, directions = torch.linalg.svd(real - centre, full_matrices=False)
    else:
        centre = known.mean.to(real)
        directions = torch.linalg.eigh(known.covariance).eigenvectors.T.flip(0).to(real)
    found = [(features - centre) @ directions[:2].T for features in (real, fake)]
    # features of a single dimension lie on a line
    padded = [torch.nn.functional.pad(points, (0, 2 - points.shape[1])) for points in found]
    return padded[0], padded[1]


log = logging.getLogger(__name__)

GENERATED = "generated"
GROUPS = 10  # of the jackknife
SHARE_TOLERANCE = 0.01  # of a class; twice the rounding of some hundred samples


@writes_into("output", positional=False)
def evaluate(
    generated: Path,
    output: Path,
    reference: Path | None = None,
    train: Path | None = None,
    extractor: ExtractorName = "digits",
    weights: Path | None = None,
    resolution: int | None = None,
    metrics: Sequence[str] | None = None,
    controls: bool = False,
    val_every: int = 10,
    split_seed: int | None = None,
    seed: int = 0,
    batch_size: int = BATCH,
    device: str = "cpu",
    cache: Path | None = Path("runs/cache"),
) -> dict[str, Any]:
    """Compare generated images with real ones: Fréchet distance, accuracy, variety, copying.

    Prints a table and writes evaluation.json, evaluation.csv, classes.csv and evaluation.png. A Fréchet distance says
    nothing without the number of images and the feature net: both stand beside it, and with fewer images than
    dimensions a warning. The interval of the Fréchet distance is of the generated images' draw.

    Args:
        generated: a folder that `zoo sample` wrote, a folder of pictures, of class folders, or an npz; see
            `zoo.flow.evaluation.files.read_samples`.
        output: folder for the report.
        reference: real images that were not trained on, in one of these forms, or the FID's statistics of some; None
            for scikit-learn's digits.
        train: the training images, likewise: for distances that show copying, the controls, and the digits classifier.
            With the digits it is the rest of them.
        extractor: "digits", a classifier of 8 x 8 images trained on `train` within seconds; "pixels"; "fid", the
            Inception of the field's FID. Files of features need none.
        weights: file of "fid".
        resolution: height and width in pixels at which all images are compared; that of the generated by default.
        metrics: of frechet, accuracy, spread, nearest, manifold; all by default.
        controls: judge class means, class Gaussians and copies of training images besides, and those themselves.
        val_every: of the digits of a class one of so many is held out, as `data.init_args.val_every` in training.
        split_seed: of the digits' split, as `data.init_args.split_seed`.
        seed: of subsets, classifier and controls.
        batch_size: images through the extractor at once.
        device: torch device of the extractor.
        cache: folder for features of the reference and trained classifiers; None for none.

    Returns:
        What evaluation.json holds: `rows`, one per system and figure; `classes`, one per class; `notes`; and the
        circumstances.
    """
    samples, real, known = _read(generated, reference, train, resolution, val_every, split_seed)
    net = None
    if samples.pixels is not None:
        size = samples.pixels.shape[1:]
        net = build_extractor(extractor, size, known, weights, seed, cache, real.statistics is not None)
    comparison = Comparison(real, net, known, metrics or METRICS, cache, batch_size, device, seed)
    systems = {GENERATED: samples}
    if controls:
        systems |= _controls(known, real, len(samples), seed)
    rows: list[dict[str, Any]] = []
    classes: list[dict[str, Any]] = []
    features: dict[str, Tensor] = {}
    for name, system in systems.items():
        features[name] = comparison.features(system)
        rows += judge(comparison, name, system, features[name], seed)
        if name == GENERATED:
            classes = comparison.by_class(system, features[name])
    dims = comparison.real.shape[1]
    report = {
        "version": zoo.__version__,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": describe_machine(),
        "generated": str(generated),
        "reference": str(reference or "scikit-learn's digits, held out"),
        "extractor": net.identity() if net is not None else "features from files",
        "dims": dims,
        "rows": rows,
        "classes": classes,
        "notes": notes(samples, real, dims),
    }
    show(report)
    files = {
        f"{NAME}.json": report,
        f"{NAME}.csv": (COLUMNS, rows),
        "classes.csv": (list(classes[0]), classes) if classes else None,
        f"{NAME}.png": figure(report, comparison, features[GENERATED]),
    }
    write_report(Path(output), files)
    return report


def judge(comparison: Comparison, name: str, samples: Samples, features: Tensor, seed: int = 0) -> list[dict[str, Any]]:
    """Figures of one system as rows of `COLUMNS`, with intervals where there are; counts are what a value rests on."""
    figures = comparison.figures(samples, features)
    intervals: dict[str, Interval] = {}
    if "frechet" in figures:
        intervals["frechet"] = frechet_interval(comparison.statistics, features, seed=seed)
    right = comparison.right(samples, features)
    if "accuracy" in figures and right is not None:
        intervals["accuracy"] = bootstrap_mean(right, seed=seed)
    rows = []
    for figure, value in figures.items():
        limit = MANIFOLD_ROWS if figure in ("precision", "recall", "density", "coverage") else len(features)
        interval = intervals.get(figure)
        low, high = interval[1:] if interval and math.isfinite(interval.low) else (None, None)
        counts = min(len(features), limit), min(len(comparison.real), limit) or None
        rows.append(dict(zip(COLUMNS, (name, figure, value, low, high, *counts), strict=True)))
    return rows


def notes(samples: Samples, reference: Samples, dims: int) -> list[str]:
    """What to know beside the figures, also logged as warnings."""
    found, counts = [], {"samples": len(samples)}
    if reference.statistics is None:
        counts["real images"] = len(reference)
    else:
        found.append("the reference is mean and covariance, of how many images is not known: only a Fréchet distance")
    if min(counts.values()) <= dims:
        found.append(
            f"{' and '.join(f'{count} {name}' for name, count in counts.items())} in {dims} dimensions: a covariance "
            "is singular and the Fréchet distance far too large; compare it only with others of the same numbers"
        )
    if samples.labels and reference.labels:
        ours, theirs = Counter(samples.labels), Counter(reference.labels)
        differences = [abs(ours[label] / len(samples) - theirs[label] / len(reference)) for label in ours | theirs]
        if max(differences) > SHARE_TOLERANCE:
            found.append(
                f"a class's share of the samples differs by {max(differences):.1%} from that of the real images, which "
                "adds to the Fréchet distance: sample labels in their proportions "
                "(zoo.flow.evaluation.controls.matching_labels)"
            )
    for note in found:
        log.warning(note)
    return found


def frechet_interval(real: distances.Statistics, fake: Tensor, groups: int = GROUPS, seed: int = 0) -> Interval:
    """Fréchet distance with the 95 % interval of a grouped jackknife over the samples; the real ones are kept.

    Each group of samples is left out in turn. The interval tells how the value changes from draw to draw of as many
    samples, not its bias: few samples make it too large. Drawing with replacement would make it larger still. It has
    no ends for fewer than two samples in a group.

    Source: Efron and Tibshirani, "An introduction to the bootstrap" (1993), chapter 11.
    """
    statistics = distances.moments(real)
    value = distances.frechet_distance(statistics, fake)
    if len(fake) < 2 * groups:
        return Interval(value, float("nan"), float("nan"))
    order = torch.randperm(len(fake), generator=torch.Generator().manual_seed(seed))
    kept = torch.ones(len(fake), dtype=torch.bool)
    values = []
    for part in order.tensor_split(groups):
        kept[part] = False
        values.append(distances.frechet_distance(statistics, fake[kept]))
        kept[part] = True
    error = float(np.std(values) * (groups - 1) ** 0.5)
    width = float(scipy.stats.t.ppf((1 + LEVEL) / 2, groups - 1)) * error
    return Interval(value, max(0.0, value - width), value + width)


def _read(
    generated: Path,
    reference: Path | None,
    train: Path | None,
    resolution: int | None,
    val_every: int,
    split_seed: int | None,
) -> tuple[Samples, Samples, Samples | None]:
    """Generated, held-out and training images, all of one size."""
    samples = read_samples(generated, resolution)
    size = None if samples.pixels is None else (samples.pixels.shape[1], samples.pixels.shape[3])
    real, known = read_sets(reference, train, size, val_every, split_seed)
    if samples.statistics is not None:
        raise ValueError(
            f"{generated} holds mean and covariance, which only the reference may: give images or features"
        )
    if real.statistics is None and (samples.features is None) != (real.features is None):
        raise ValueError(f"{generated} and {reference}: one holds images, the other features; both must be alike")
    named = {tuple(part.classes) for part in (samples, real, known) if part is not None and part.classes}
    if len(named) > 1:
        said = "; ".join(", ".join(names) for names in sorted(named))
        raise ValueError(f"generated, reference and training images have different classes: {said}")
    return samples, real, known


def _controls(train: Samples | None, real: Samples, count: int, seed: int) -> dict[str, Samples]:
    if train is None or train.pixels is None or train.labels is None or real.labels is None:
        raise ValueError("--controls needs labelled images in --train and --reference")
    made = make_controls(train.images(), train.labels, matching_labels(real.labels, count), seed)
    return {name: dataclasses.replace(samples_of(*pair), classes=train.classes) for name, pair in made.items()}
