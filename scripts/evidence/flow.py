"""What flow matching runs have learned: figures of one seed's runs; see `run.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from zoo.common.configs import load_yaml
from zoo.flow.data import points
from zoo.flow.evaluation.comparison import METRICS, Comparison
from zoo.flow.evaluation.digits_classifier import train_digits_classifier
from zoo.flow.evaluation.metrics import chamfer
from zoo.flow.evaluation.references import REFERENCE_SEED
from zoo.flow.evaluation.samples import SampleSet, matching_labels, quantise_samples, read_digits
from zoo.flow.inference.requests import load_sampler, sample_requests
from zoo.flow.inference.sampler import Sampler
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.solvers import Solver
from zoo.runs.run_folder import find_config
from zoo.training.resume import item_seed

SAMPLES, FEW_SAMPLES = 900, 150  # few of them are quick
DRAWS = 3  # of so many samples
POINTS, FEW_POINTS = 2048, 128
EPOCH = -7  # of the keys of this noise, see `zoo.flow.inference.requests`
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
    train: SampleSet
    labels: list[int]
    draws: int = DRAWS

    def controls(self) -> dict[str, dict[str, float]]:
        """Figures of the controls, and of as many real training images as there are samples: the floor."""
        assert self.train.labels is not None
        figures = {}
        for name, images in control_sets(self.train.images(), self.train.labels, self.labels).items():
            figures[name] = self.comparison(images, sorted(self.labels))
        return {"real": self.floor(), **figures}

    def held_out_accuracy(self) -> float:
        """Share of the held-out images that the classifier takes for their label."""
        assert self.comparison.reference is not None
        return self.comparison.figures(self.comparison.reference)["accuracy"]

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
        cache: folder for features of the held-out images.
        quick: with one set of few samples.
        draws: sets of samples otherwise.

    Raises:
        ValueError: when the run was trained on something else, or its training part has too few images of a class.
    """
    data = load_yaml(find_config(run).read_text(encoding="utf-8"))["data"]["init_args"]
    if data.get("root") is not None or "image_resolution" not in data:
        raise ValueError(f"{run} was not trained on scikit-learn's digits")
    train, held_out = read_digits(data["val_every"], data["split_seed"], data["image_resolution"], data["channels"])
    assert train.labels is not None and held_out.labels is not None
    labels = matching_labels(held_out.labels, FEW_SAMPLES if quick else SAMPLES)
    if len(train) < len(labels):
        raise ValueError(f"{run}: the floor needs {len(labels)} training images, its split has {len(train)}")
    classifier = train_digits_classifier(train.images(), train.labels)
    return Digits(Comparison(held_out, classifier, train, METRICS, cache), train, labels, 1 if quick else draws)


def figures_of(sampler: Sampler, digits: Digits, solver: Solver, scale: float = 1.0) -> dict[str, float]:
    """Figures of a run's samples, averaged over sets of them."""
    sets = [draw_samples(sampler, digits.labels, solver, scale, draw) for draw in range(digits.draws)]
    return _mean([digits.comparison.figures(samples) for samples in sets])


def draw_samples(sampler: Sampler, labels: list[int], solver: Solver, scale: float = 1.0, draw: int = 0) -> SampleSet:
    """A set of samples of a run, one for each label; `draw` chooses their noise."""
    _, seeds = sample_requests(len(labels), draw, sampler.net.num_classes, None, EPOCH)
    return quantise_samples(sampler.using(solver, Guidance(scale)).sample(labels, seeds), labels)


def measure_digits(run: Path, quick: bool = False) -> dict[str, float]:
    """Evaluate a run of `demo_digits` beside controls.

    Raises:
        ValueError: when the run was trained on something else.
    """
    digits, sampler = digits_of(run, quick=quick), load_sampler(run)
    controls = {name: figures["frechet"] for name, figures in digits.controls().items()}
    samples = figures_of(sampler, digits, sampler.solver)
    return {
        "classifier on held-out images, accuracy": digits.held_out_accuracy(),
        "20 NFE: accuracy": samples["accuracy"],
        "20 NFE: Fréchet to the floor's": samples["frechet"] / controls["real"],
        "20 NFE: Fréchet to the class Gaussians'": samples["frechet"] / controls["gaussian"],
        "20 NFE: deviation within classes to real": samples["std_ratio"],
        "20 NFE: nearest training image, to held-out": samples["nearest_ratio"],
        "20 NFE, guidance 2: accuracy": figures_of(sampler, digits, sampler.solver, 2.0)["accuracy"],
        "pooled 20: Fréchet": samples["frechet"],
        "pooled 5: Fréchet": figures_of(sampler, digits, Solver("euler", 5))["frechet"],
        **{f"control {name}: Fréchet": value for name, value in controls.items()},
    }


def measure_swissroll(assigned: Path, transport: Path, distilled: Path, quick: bool = False) -> dict[str, float]:
    """Measure the Chamfer distance of points from three runs of `demo_swissroll` to the set.

    Args:
        assigned: run of the recipe as it is.
        transport: with minibatch optimal transport.
        distilled: of `demo_swissroll_distill`.
        quick: few points.

    Raises:
        ValueError: when a run is of something else.
    """
    count = FEW_POINTS if quick else POINTS
    real = points.draw("swiss_roll", count, REFERENCE_SEED)
    figures = {}
    for name, run, steps in (
        ("as assigned, Euler 50", assigned, 50),
        ("optimal transport, Euler 50", transport, 50),
        ("distilled, one step", distilled, 1),
    ):
        sampler = load_sampler(run, Solver("euler", steps), chunk=count)
        if tuple(sampler.net.sample_shape) != (2,):
            raise ValueError(f"{run} makes samples of shape {tuple(sampler.net.sample_shape)}, expected points")
        figures[f"{name}: Chamfer"] = chamfer(sampler.sample(None, sample_requests(count, 0, 0, None, EPOCH)[1]), real)
    return figures


def class_means(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The mean of images (N, C, H, W), `count` times."""
    return images.mean(dim=0, keepdim=True).repeat(count, 1, 1, 1)


def gaussian(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draws from the Gaussian with mean and full (unbiased) covariance of images (N, C, H, W), in float64 inside.

    Mixing the centred images by normal numbers gives this covariance without ever forming it. Values may leave [-1, 1].
    """
    if len(images) < 2:
        raise ValueError(f"a covariance needs at least 2 images of a class, found {len(images)}")
    flat = images.flatten(1).double()
    mean = flat.mean(dim=0)
    weights = torch.randn(count, len(flat), generator=generator, dtype=torch.float64) / (len(flat) - 1) ** 0.5
    return (mean + weights @ (flat - mean)).float().reshape(count, *images.shape[1:])


def copies(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Images of (N, C, H, W) drawn with replacement."""
    return images[torch.randint(len(images), (count,), generator=generator)]


CONTROL_SETS = {"copier": copies, "gaussian": gaussian, "class means": class_means}


def control_sets(images: Tensor, labels: Sequence[int], target_labels: Sequence[int]) -> dict[str, Tensor]:
    """Images (N, C, H, W) of all controls by name, as many of each label as there are targets, sorted by label.

    A generator must beat a Gaussian and a mean of each class; copies of training images are what a nearest-neighbour
    check must find out.
    """
    classes, counts = torch.tensor(list(labels)), Counter(target_labels)
    made = {}
    for number, (name, make) in enumerate(CONTROL_SETS.items()):
        made[name] = torch.cat(
            [
                make(images[classes == label], count, torch.Generator().manual_seed(item_seed(0, number, label)))
                for label, count in sorted(counts.items())
            ]
        )
    return made


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: fmean(each[key] for each in figures) for key in figures[0]}
