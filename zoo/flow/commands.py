"""Tools of flow matching alone; each imports what it needs when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from zoo.common.locks import writes_into

if TYPE_CHECKING:
    from zoo.flow.process.guidance import Guidance
    from zoo.flow.process.solvers import Solver


@writes_into("output")
def sample(
    run: Path,
    output: Path,
    count: int = 500,
    labels: list[str | int] | None = None,
    seed: int = 63,
    solver: Solver | None = None,
    guidance: Guidance | None = None,
    chunk: int | None = None,
    grid: bool = True,
    trajectory: Literal["none", "gif", "mp4"] = "none",
    device: str = "cpu",
) -> None:
    """Draw samples from a run into a folder: 0.png, 1.png, ..., labels.csv, a grid and an animation.

    Sample i is the same for any chunk, device or number of processes, up to rounding. The same call goes on after a
    kill. Under torchrun the processes share the work.

    Args:
        run: run folder, checkpoint or export; its averaged weights, where it has them.
        output: folder to write.
        count: samples.
        labels: classes by number (1 to K) or name, taken in turns; all when not given. A name of digits needs quotes:
            --labels '["7"]'.
        seed: of the noise.
        solver: the run's when not given, e.g. --solver.method heun2 --solver.steps 10.
        guidance: the run's when not given, e.g. --guidance.scale 2; 1 is the conditional field.
        chunk: samples integrated together; as the run says when not given.
        grid: write the first 100 as one picture, OUTPUT_grid.png.
        trajectory: none, gif or mp4: the way of the first 64 from noise to data.
        device: torch device.
    """
    from zoo.common.hardware import processes
    from zoo.flow.inference.drawing import load_sampler
    from zoo.flow.inference.generate import generate

    sampler = load_sampler(run, solver, guidance, chunk, device)
    result = generate(sampler, output, count, labels, seed, *processes(), grid, trajectory)
    print(f"{output}: {', '.join(f'{key} {value}' for key, value in result.items())}")
    if result["missing"]:
        print(f"{result['missing']} samples are missing: the other processes, or the same command again, write them")


@writes_into("output")
def sweep(
    run: Path,
    output: Path,
    point_set: Literal["gaussian", "shifted_gaussian", "circles", "s_curve", "moons", "swiss_roll", "checkerboard"]
    | None = None,
    reference: Path | None = None,
    train: Path | None = None,
    extractor: Literal["digits", "pixels", "inception", "script"] = "digits",
    weights: Path | None = None,
    count: int = 900,
    labels: list[str | int] | None = None,
    seed: int = 63,
    methods: list[Literal["euler", "midpoint", "heun2", "rk4", "ab2", "dopri5"]] | None = None,
    budgets: tuple[int, ...] = (1, 2, 5, 10, 20, 50),
    scales: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 5.0, 7.5),
    guidance: Guidance | None = None,
    val_every: int = 10,
    split_seed: int | None = None,
    device: str = "cpu",
) -> None:
    """Compare solvers and guidance scales by quality at equal numbers of net calls (NFE): tables, JSON and plots.

    Args:
        run: run folder, checkpoint or export.
        output: folder for solvers.json, solvers.png, guidance.json and guidance.png.
        point_set: the set that a net of points was trained on; judged by the Chamfer distance to as many points.
        reference: real images, as for `zoo evaluate flow`; scikit-learn's digits when not given.
        train: the training images, likewise.
        extractor: see `zoo evaluate flow`.
        weights: file of the extractor, where it needs one.
        count: samples in each cell.
        labels: classes by number or name, taken in turns; all when not given.
        seed: of the noise, which all cells share.
        methods: solvers; all when not given, '[]' leaves that table out.
        budgets: net calls for a sample.
        scales: of guidance, for a net with classes.
        guidance: of the first table; the run's when not given.
        val_every: of the digits' split, as in training.
        split_seed: of the digits' split, as in training.
        device: torch device.
    """
    from zoo.flow.evaluation import tables
    from zoo.flow.evaluation.references import build_quality
    from zoo.flow.inference.drawing import load_sampler

    sampler = load_sampler(run, None, guidance, device=device)
    quality = build_quality(
        sampler, point_set, reference, train, extractor, weights, val_every, split_seed, device=device
    )
    tables.sweep(
        sampler,
        output,
        quality,
        count,
        sampler.label_numbers(labels),
        seed,
        tables.METHODS if methods is None else methods,
        budgets,
        scales,
    )


@writes_into("output")
def make_pairs(
    run: Path,
    output: Path,
    count: int = 50000,
    labels: list[str | int] | None = None,
    seed: int = 63,
    solver: Solver | None = None,
    guidance: Guidance | None = None,
    shard_size: int = 1024,
    chunk: int | None = None,
    classes: list[str] | None = None,
    device: str = "cpu",
) -> None:
    """Write a run's samples with the noise that each was made of, to train on: reflow and distillation.

    A pair is the same for any chunk, shard size or number of processes, up to rounding. The same call goes on after a
    kill. Under torchrun the processes share the work.

    Args:
        run: run folder, checkpoint or export of the teacher.
        output: folder to write.
        count: pairs in all.
        labels: classes by number or name, taken in turns; all when not given.
        seed: of the noise.
        solver: the run's when not given; pairs deserve more steps than samples.
        guidance: the run's when not given; it is baked into the pairs.
        shard_size: pairs per file.
        chunk: pairs sampled at once; as the run says when not given.
        classes: names of the classes, to be noted; those of the run when not given.
        device: torch device.
    """
    from zoo.common.hardware import processes
    from zoo.flow.inference import pairs
    from zoo.flow.inference.drawing import load_sampler

    sampler = load_sampler(run, solver, guidance, chunk, device)
    rank, world_size = processes()
    counts = pairs.make_pairs(
        sampler, output, count, labels, seed, shard_size, rank, world_size, run=str(run), classes=classes
    )
    print(f"{output}: {', '.join(f'{key} {value}' for key, value in counts.items())}")


def straightness(
    run: Path,
    count: int = 256,
    seed: int = 63,
    solver: Solver | None = None,
    guidance: Guidance | None = None,
    device: str = "cpu",
) -> None:
    """Tell how far a run's paths are from straight lines; 0 is a net that one Euler step samples exactly.

    Args:
        run: run folder, checkpoint or export.
        count: paths.
        seed: of the noise.
        solver: the run's when not given; its grid is that of the integral.
        guidance: the run's when not given.
        device: torch device.
    """
    from zoo.flow.evaluation.tables import evaluate_straightness
    from zoo.flow.inference.drawing import load_sampler, requests

    sampler = load_sampler(run, solver, guidance, device=device)
    labels, seeds = requests(count, seed, sampler.net.num_classes)
    print(f"straightness of {count} paths: {evaluate_straightness(sampler, labels, seeds):.4f}")


@writes_into("output")
def evaluate(
    *,
    generated: Path,
    output: Path,
    reference: Path | None = None,
    train: Path | None = None,
    extractor: Literal["digits", "pixels", "inception", "script"] = "digits",
    weights: Path | None = None,
    weights_resolution: int = 299,
    resolution: int | None = None,
    metrics: list[str] | None = None,
    controls: bool = False,
    val_every: int = 10,
    split_seed: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    device: str = "cpu",
    cache: Path = Path("runs/cache"),
) -> None:
    """Compare generated images with real ones: Fréchet and kernel distance, accuracy, variety, copying.

    Prints a table and writes evaluation.json, evaluation.csv, classes.csv and evaluation.png. A Fréchet distance says
    nothing without the number of images and the feature net; both stand beside it.

    Args:
        generated: a folder that `zoo sample` wrote, a folder of pictures or of class folders, an npz of images and
            labels, or one of features.
        output: folder for the report.
        reference: real images that were not trained on, likewise; scikit-learn's digits when not given.
        train: the training images, likewise: for copying, the controls and the digits classifier.
        extractor: digits (a classifier trained on `train` within seconds), pixels, inception (AFHQ's) or script
            (TorchScript).
        weights: file of the last two; none is shipped.
        weights_resolution: height and width in pixels that script takes.
        resolution: height and width in pixels of the comparison; that of the generated images when not given.
        metrics: of frechet, accuracy, spread, nearest, kid, manifold, sliced_wasserstein; all when not given.
        controls: judge class means, class Gaussians and copies of training images besides.
        val_every: of the digits' split, as in training.
        split_seed: of the digits' split, as in training.
        seed: of subsets, projections, classifier and controls.
        batch_size: images through the extractor at once.
        device: torch device of the extractor.
        cache: folder for features of the reference and trained classifiers.
    """
    from zoo.flow.evaluation import evaluate as evaluation

    evaluation.evaluate(
        generated, output, reference, train, extractor, weights, weights_resolution, resolution, metrics, controls,
        val_every, split_seed, seed, batch_size, device, cache,
    )  # fmt: skip
