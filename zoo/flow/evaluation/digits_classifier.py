"""A small classifier of 8 x 8 digits, trained in seconds: the judge and the feature net of the digits' figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.tensors import seeded_rng
from zoo.flow.evaluation.features import ClassifierFeatures, resized, with_channels

RESOLUTION = 8  # pixels, of scikit-learn's digits
DIMS = 64
WIDTH = 32
DROPOUT = 0.3
EPOCHS = 40
BATCH = 64
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
WARM_UP = 0.1  # of the training
SMOOTHING = 0.05  # of the labels; keeps the features of classes from drifting apart
# augmentation, each uniform in plus or minus
SHIFT_PIXELS = 0.8
ROTATION_DEGREES = 10.0
SCALE = 0.1
SHEAR = 0.1
NOISE = 0.2  # standard deviation, where images lie in [-1, 1]


class DigitsClassifier(ClassifierFeatures):
    """Four convolutions and two linear layers on 8 x 8 grey images; features are what the last layer sees."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.dims = DIMS
        self.body = nn.Sequential(
            *_convolution(1, WIDTH),
            *_convolution(WIDTH, WIDTH),
            nn.MaxPool2d(2),
            *_convolution(WIDTH, 2 * WIDTH),
            *_convolution(2 * WIDTH, 2 * WIDTH),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(DROPOUT),
            nn.Linear(2 * WIDTH * (RESOLUTION // 4) ** 2, DIMS),
            nn.SiLU(),
        )
        self.drop = nn.Dropout(DROPOUT)
        self.head = nn.Linear(DIMS, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 64) of images (B, C, H, W), float in [-1, 1]; resized to 8 x 8, colours averaged."""
        return self.body(with_channels(resized(images, RESOLUTION), 1))

    def logits(self, features: Tensor) -> Tensor:
        """Scores (B, K) of features (B, 64); column 0 is label 1."""
        return self.head(self.drop(features))


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()]


def train_digits_classifier(
    images: Tensor, labels: Sequence[int], seed: int = 0, epochs: int = EPOCHS
) -> DigitsClassifier:
    """Train the classifier, in evaluation mode on the CPU; on 900 digits about 6 seconds of one core.

    The same call gives the same net on the same machine; the global generators are left as they were.

    Args:
        images: (N, C, H, W), float in [-1, 1].
        labels: of the images, 1 to K.
        seed: of weights, order, dropout and augmentation.
    """
    if images.dim() != 4 or len(images) != len(labels) or len(labels) < 2:
        raise ValueError(f"expected images (N, C, H, W) and N >= 2 labels, found {tuple(images.shape)}, {len(labels)}")
    if min(labels) < 1:
        raise ValueError(f"labels count from 1, found {min(labels)}")
    x = with_channels(resized(images.float().cpu(), RESOLUTION), 1)
    y = torch.tensor(list(labels)) - 1
    with seeded_rng(seed):
        net = DigitsClassifier(max(labels))
        _fit(net, x, y, epochs)
    return net.eval().requires_grad_(False)


def _fit(net: DigitsClassifier, x: Tensor, y: Tensor, epochs: int) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = math.ceil(len(x) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, epochs * batches, pct_start=WARM_UP)
    for _ in range(epochs):
        # parts of like size: batch normalisation cannot train on a single image
        for rows in torch.randperm(len(x)).tensor_split(batches):
            scores = net.logits(net(_augmented(x[rows])))
            loss = F.cross_entropy(scores, y[rows], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def _augmented(images: Tensor) -> Tensor:
    """Shift, rotate, scale and shear each image a little, and add noise."""

    def around(width: float) -> Tensor:
        return (torch.rand(len(images)) * 2 - 1) * width

    angle, scale = around(math.radians(ROTATION_DEGREES)), 1 + around(SCALE)
    right, down = (around(2 * SHIFT_PIXELS / RESOLUTION) for _ in range(2))  # an image is 2 units wide
    sine, cosine = angle.sin() * scale, angle.cos() * scale
    maps = torch.stack([cosine, around(SHEAR) - sine, right, sine, cosine, down], dim=1).reshape(-1, 2, 3)
    places = F.affine_grid(maps, list(images.shape), align_corners=False)
    # the border of a sampled grid is 0, that of a digit -1
    moved = F.grid_sample(images + 1, places, align_corners=False) - 1
    return moved + NOISE * torch.randn_like(moved)
