"""Noto's emoji in classes, U-Net, transformer and MeanFlow at equal processor time: figures of one seed's runs."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.stats import bootstrap
from torch import Tensor, nn

from scripts.evidence.demo import EvidenceStep, Figures, data_folder, fit_step
from scripts.evidence.flow import EPOCH, UNGUIDED, Digits, draw_samples
from scripts.evidence.gallery import FOLDER
from zoo.common.configs import load_yaml
from zoo.common.tensors import seeded_rng
from zoo.flow.evaluation.comparison import METRICS, Comparison
from zoo.flow.evaluation.features import ClassifierFeatures
from zoo.flow.evaluation.metrics import Moments, frechet_distance
from zoo.flow.evaluation.samples import SampleSet, matching_labels, read_samples
from zoo.flow.inference.requests import load_sampler, sample_requests
from zoo.flow.inference.sampler import Sampler
from zoo.flow.nets.unet import UNet
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.solvers import Solver
from zoo.flow.rendering import nearest, titled_rows, to_pixels
from zoo.runs.run_folder import find_config

DATA, RUNS, FLOOR = "noto_emoji_{}", ("unet", "dit", "meanflow"), "Fréchet to the floor's"  # of so many pixels
STEPS, GUIDANCE, FEW = 10, 2.0, (1, 2, 4)  # of Euler
RESAMPLES = 200
SHOWN = 2  # images of a class in the gallery
LARGE_STEPS = (1050, 1800, 650)  # of the trainings at 64 x 64 pixels, eight minutes each
LARGE_UNET: dict[str, Any] = {"channels": 16, "channel_mult": [1, 2, 4, 4], "attention_levels": [3]}
LARGE_DIT: dict[str, Any] = {"patch": 8, "dim": 256}  # wider than the 192 values of a patch
LARGE_CLAIMS = (  # at 64 x 64 pixels; figure, what it is a share of, title, at most
    (f"U-Net, guided: {FLOOR}", None, "U-Net, guidance 2: Fréchet distance to real images'", 12.0),
    (f"DiT, guided: {FLOOR}", None, "DiT, guidance 2: Fréchet distance to real images'", 20.0),
    (f"U-Net: {FLOOR}", f"torchcfm: {FLOOR}", "Fréchet distance, U-Net to the same net by torchcfm's loop", 0.8),
    *(
        (f"MeanFlow {steps}: {FLOOR}", f"DiT {steps}: {FLOOR}",
         f"{steps} evaluations: Fréchet distance, MeanFlow to Euler of the DiT", limit)
        for steps, limit in zip(FEW, (0.6, 0.7, 0.8), strict=True)
    ),
)  # fmt: skip
WIDTH, DIMS, EPOCHS, BATCH, SHIFT, LEARNING_RATE = 24, 64, 20, 64, 2, 3e-3  # of the classifier; shifts in pixels


class EmojiClassifier(ClassifierFeatures):
    """Convolutions over images (B, 3, H, W) of at least 32 x 32; features (B, 64) are what the last layer sees."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.dims, self.num_classes = DIMS, num_classes
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((3, WIDTH, 2 * WIDTH, 4 * WIDTH)):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.SiLU(), nn.MaxPool2d(2)]
        layers.append(nn.AdaptiveMaxPool2d(4))
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * WIDTH, DIMS), nn.SiLU())
        self.head = nn.Linear(DIMS, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 64) of images (B, 3, H, W), float in [-1, 1]."""
        return self.body(images)

    def logits(self, features: Tensor) -> Tensor:
        """Scores (B, K) of features (B, 64); column 0 is label 1."""
        return self.head(features)


def train_classifier(train: SampleSet, epochs: int = EPOCHS) -> EmojiClassifier:
    """Train the classifier on shifted images, in evaluation mode; the same call gives the same net."""
    images, labels = train.images(), torch.tensor(train.labels) - 1
    batches = math.ceil(len(images) / BATCH)
    with seeded_rng(0):
        net = EmojiClassifier(int(labels.max()) + 1)
        optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, epochs * batches)
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).tensor_split(batches):
                down, right = (int(shift) for shift in torch.randint(-SHIFT, SHIFT + 1, (2,)))
                scores = net.logits(net(images[rows].roll((down, right), (2, 3))))
                _update(optimizer, F.cross_entropy(scores, labels[rows], label_smoothing=0.05))
                schedule.step()
    return net.eval().requires_grad_(False)


def _update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train_by_torchcfm(run: Path, train: SampleSet, seconds: float, seed: int) -> Sampler:
    """Train a run's U-Net by the loop of torchcfm's conditional example: Adam, no schedule, no average.

    Batch and precision are the run's; `seconds` are of processor time.
    """
    try:
        from torchcfm import ExactOptimalTransportConditionalFlowMatcher
    except ImportError as error:
        raise ValueError(f"flow/emoji needs torchcfm and POT ({error}): pip install 'zoo[evidence]'") from error
    config = load_yaml(find_config(run).read_text(encoding="utf-8"))
    images, labels, began = train.images(), torch.tensor(train.labels), time.process_time()
    with seeded_rng(seed):
        net = UNet(**config["model"]["init_args"]["net"]["init_args"])
        matcher, optimizer = ExactOptimalTransportConditionalFlowMatcher(0.0), torch.optim.Adam(net.parameters())
        while time.process_time() - began < seconds:
            rows = torch.randint(len(images), (config["data"]["init_args"]["batch_size"],))
            x0, x1 = torch.randn_like(images[rows]), images[rows]
            t, xt, ut, _, y1 = matcher.guided_sample_location_and_conditional_flow(x0, x1, y1=labels[rows])
            with torch.autocast("cpu", torch.bfloat16):
                loss = (net(xt, t, y1).float() - ut).square().mean()
            _update(optimizer, loss)
    sampler = load_sampler(run)
    sampler.net.load_state_dict(net.state_dict())
    return sampler


def standard_error(features: Tensor, moments: Moments) -> float:
    """Return the bootstrap's standard error of the Fréchet distance of samples, (N, D), to the reference's moments.

    An interval comes of it: that of percentiles is too high, since samples drawn twice make the distance larger.
    """
    result = bootstrap(
        (np.arange(len(features)),), lambda rows: frechet_distance(features[rows], moments), n_resamples=RESAMPLES,
        vectorized=False, method="percentile", rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(result.standard_error)


def plan(root: Path, seed: int, quick: bool, size: int = 32) -> list[EvidenceStep]:
    """U-Net, transformer and MeanFlow at equal processor time, the last with the transformer's weights."""
    changes: list[dict[str, Any]] = [{}, {}, {"init_from": root / RUNS[1]}]
    if size != 32:
        large = {"data__init_args__root": data_folder() / DATA.format(size), "data__init_args__image_resolution": size}
        for each, steps, net in zip(changes, LARGE_STEPS, (LARGE_UNET, LARGE_DIT, LARGE_DIT), strict=True):
            each |= {**large, "trainer__max_steps": steps}
            each |= {f"model__init_args__net__init_args__{key}": value for key, value in net.items()}
    names = zip(RUNS, changes, strict=True)
    return [fit_step(root, name, f"flow/emoji_{name}", seed, **each) for name, each in names]


def measure(root: Path, quick: bool = False, size: int = 32) -> Figures:
    """Evaluate a seed's runs of emoji_unet, emoji_dit and emoji_meanflow, and the loop of torchcfm for as long."""
    data = data_folder() / DATA.format(size)
    train, held_out = read_samples(data / "train"), read_samples(data / "val")
    assert held_out.labels is not None
    labels = matching_labels(held_out.labels, 40 if quick else len(held_out))
    classifier = train_classifier(train, 1 if quick else EPOCHS)
    images = Digits(Comparison(held_out, classifier, train, METRICS), train, labels, 1)
    steps = json.loads((root / "steps.json").read_text(encoding="utf-8"))
    values = {f"CPU seconds, {name}": steps[name]["cpu_seconds"] for name in RUNS}
    floor, accuracy = replace(images, draws=3).floor(), images.held_out_accuracy()
    values["classifier on held-out images, accuracy"] = accuracy
    unet, dit, mean_flow = (load_sampler(root / name) for name in RUNS)
    plain = train_by_torchcfm(root / RUNS[0], train, 1 if quick else values["CPU seconds, unet"], int(root.name))

    def evaluate(name: str, sampler: Sampler, count: int, scale: float = 1.0) -> None:
        samples = draw_samples(sampler, labels, Solver("euler", count), scale)
        features = images.comparison.features(samples)
        figures = images.comparison.figures(samples, features)
        values[f"{name}: {FLOOR}"] = figures["frechet"] / floor["frechet"]
        half = 1.96 * standard_error(features, images.comparison.moments)  # of a 95 % interval
        values[f"{name}: {FLOOR}: low"] = (figures["frechet"] - half) / floor["frechet"]
        values[f"{name}: {FLOOR}: high"] = (figures["frechet"] + half) / floor["frechet"]
        values[f"{name}: accuracy to held-out images'"] = figures["accuracy"] / accuracy
        values.update({f"{name}: {key}": figures[key] for key in ("accuracy", "std_ratio", "nearest_ratio")})

    for name, sampler in (("U-Net", unet), ("DiT", dit), ("torchcfm", plain)):
        evaluate(name, sampler, STEPS)
    for name, sampler in (("U-Net", unet), ("DiT", dit)):
        evaluate(f"{name}, guided", sampler, STEPS, GUIDANCE)
    for count in FEW:
        for name, sampler in (("U-Net", unet), ("DiT", dit), ("MeanFlow", mean_flow)):
            evaluate(f"{name} {count}", sampler, count)
    _show(root, unet, mean_flow, train, held_out)
    return values


def _show(root: Path, unet: Sampler, mean_flow: Sampler, train: SampleSet, held_out: SampleSet) -> None:
    """Write a picture for the gallery: of each class held-out images and samples, with the nearest training image."""
    assert held_out.labels is not None
    classes = sorted(set(held_out.labels))
    labels = classes * SHOWN
    rows = [np.flatnonzero(np.array(held_out.labels) == label)[draw] for draw in range(SHOWN) for label in classes]
    _, seeds = sample_requests(len(labels), 0, unet.net.num_classes, None, EPOCH)
    guided = unet.using(Solver("euler", STEPS), Guidance(GUIDANCE)).sample(labels, seeds)
    pictures = {
        "held-out images": held_out.images()[rows],
        f"U-Net, {STEPS} steps, guidance {GUIDANCE:g}": guided,
        "the nearest training image of each": nearest(guided, train.images()),
        "MeanFlow, one step": mean_flow.using(Solver("euler", 1), UNGUIDED).sample(labels, seeds),
    }
    sheet = titled_rows([(title, to_pixels(each)) for title, each in pictures.items()])
    (root / FOLDER).mkdir(exist_ok=True)
    Image.fromarray(sheet).save(root / FOLDER / "samples.png")
