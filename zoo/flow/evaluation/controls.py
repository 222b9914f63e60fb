"""What a generator must beat, and what it cannot: samples made from the training images without any net.

- `train`: the training images themselves. Against held-out images they give the floor of a Fréchet distance at these
  numbers of images, which depends on both numbers: compare with samples about as many, of the same classes.
- `copier`: training images drawn again, which a nearest-neighbour check must find out.
- `gaussian`: one Gaussian per class, with mean and full covariance of its pixels.
- `class means`: one image per class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zoo.training.resume import item_seed

Draw = Callable[[Tensor, int, torch.Generator], Tensor]
"""Makes images (n, C, H, W) from those of one class (N, C, H, W)."""


def matching_labels(labels: Sequence[int], count: int) -> list[int]:
    """So many labels, sorted, in the proportions of others: the classes' shares then add nothing to a distance.

    Source: the method of largest remainders.
    """
    if count < 1 or not labels:
        raise ValueError(f"expected a count of at least 1 and some labels, found {count} and {len(labels)} labels")
    shares = {label: count * number / len(labels) for label, number in sorted(Counter(labels).items())}
    counts = {label: int(share) for label, share in shares.items()}
    by_remainder = sorted(shares, key=lambda label: counts[label] - shares[label])
    for label in by_remainder[: count - sum(counts.values())]:
        counts[label] += 1
    return [label for label, number in counts.items() for _ in range(number)]


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


DRAWS: dict[str, Draw] = {"copier": copies, "gaussian": gaussian, "class means": class_means}


def control_sets(
    images: Tensor, labels: Sequence[int], target_labels: Sequence[int], seed: int = 0
) -> dict[str, tuple[Tensor, list[int]]]:
    """Make all controls: images and labels by name, `train` as given, the others with as many of each label as wanted.

    Args:
        images: training images (N, C, H, W), float in [-1, 1].
        labels: of them, 1 to K.
        wanted: labels to make images of; `matching_labels(held-out labels, count)` for a fair comparison.
        seed: of the draws; those of a class depend on nothing but it and the class.
    """
    if len(images) != len(labels):
        raise ValueError(f"expected one label per image, found {len(images)} images and {len(labels)} labels")
    counts = Counter(target_labels)
    unknown = sorted(counts.keys() - set(labels))
    if unknown or not counts:
        raise ValueError(f"labels {unknown} are wanted, the training images have {sorted(set(labels))}")
    classes = torch.tensor(list(labels))
    made = {"train": (images, list(labels))}
    for number, (name, draw) in enumerate(DRAWS.items()):
        parts = [
            draw(images[classes == label], count, torch.Generator().manual_seed(item_seed(seed, number, label)))
            for label, count in sorted(counts.items())
        ]
        made[name] = torch.cat(parts), sorted(target_labels)
    return made
