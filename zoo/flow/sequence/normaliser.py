"""The scale that sequence nets work on: each bin of sequences and conditions at zero mean and unit deviation."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

LEAST_DEVIATION = 0.01  # of the mean deviation: what a bin that never changes is divided by


class Normaliser(nn.Module):
    """Brings each bin of a sequence and of its condition to zero mean and unit deviation; saved with the weights."""

    mean: Tensor
    deviation: Tensor
    condition_mean: Tensor
    condition_deviation: Tensor
    frames: Tensor

    def __init__(self, channels: int, condition_channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.condition_channels = condition_channels
        for prefix, size in (("", channels), ("condition_", condition_channels)):
            self.register_buffer(f"{prefix}mean", torch.zeros(size))
            self.register_buffer(f"{prefix}deviation", torch.ones(size))
        self.register_buffer("frames", torch.zeros((), dtype=torch.int64))

    @property
    def is_fitted(self) -> bool:
        """Whether it has statistics."""
        return bool(self.frames > 0)

    def fit(self, examples: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take the statistics of sequences (channels, T) with their conditions (condition_channels, T).

        Raises:
            ValueError: when there is no frame, the bins are others, or no bin of either kind changes.
        """
        sums = [torch.zeros(2, size, dtype=torch.float64) for size in (self.channels, self.condition_channels)]
        frames = 0
        for example in examples:
            for total, sequence in zip(sums, example, strict=True):
                if sequence.shape != (total.shape[1], example[0].shape[1]):
                    raise ValueError(
                        f"expected {self.channels} and {self.condition_channels} bins (model.normaliser) of as many "
                        f"frames, found {' and '.join(str(tuple(each.shape)) for each in example)}"
                    )
                values = sequence.double().cpu()
                total += torch.stack([values.sum(dim=1), values.square().sum(dim=1)])
            frames += example[0].shape[1]
        if not frames:
            raise ValueError("no example to take the statistics of the features from")
        for prefix, total in zip(("", "condition_"), sums, strict=True):
            mean, square = total / frames
            deviation = (square - mean.square()).clamp(min=0).sqrt()
            if not bool(torch.isfinite(deviation).all()) or not bool(deviation.mean() > 0):
                kind = "conditions" if prefix else "sequences"
                raise ValueError(f"the {kind} of the training set are constant or not finite: look at its files")
            getattr(self, f"{prefix}mean").copy_(mean)
            getattr(self, f"{prefix}deviation").copy_(deviation.clamp(min=LEAST_DEVIATION * float(deviation.mean())))
        self.frames.fill_(frames)

    def normalise(self, sequence: Tensor) -> Tensor:
        """Sequences (B, channels, T) as the net sees them."""
        return (sequence - self.mean[:, None]) / self.deviation[:, None]

    def normalise_condition(self, condition: Tensor) -> Tensor:
        """Conditions (B, condition_channels, T) as the net sees them."""
        return (condition - self.condition_mean[:, None]) / self.condition_deviation[:, None]

    def restore(self, sequence: Tensor) -> Tensor:
        """Sequences (B, channels, T) of the net in their own units."""
        return sequence * self.deviation[:, None] + self.mean[:, None]
