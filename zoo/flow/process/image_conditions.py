"""Images that a net is conditioned on: an image with holes, a small one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.common.checks import check_at_least
from zoo.common.tensors import sample_uniforms


class ImageCondition(ABC):
    """Makes the image condition of a net, in training and in sampling.

    Attributes:
        masked: whether a mask is the first channel, 1 where the image is missing.
    """

    masked = False

    def channels(self, image: int) -> int:
        """Its channels, for images of so many."""
        return image + int(self.masked)

    def side(self, resolution: int) -> int:
        """Height and width that a given image is brought to, for samples of a resolution."""
        return resolution

    @abstractmethod
    def from_training(self, images: Tensor, seeds: Sequence[int]) -> Tensor:
        """The condition (B, channels, H, W) of data (B, C, H, W) in [-1, 1]; what is random follows the seeds."""

    @abstractmethod
    def from_user(self, images: Tensor, masks: Tensor | None, seeds: Sequence[int]) -> Tensor:
        """The condition of a user's images (B, C, side, side).

        Args:
            masks: (B, 1, side, side), 1 where the image is missing; None where none were given.
            seeds: of what is drawn instead.
        """


class Inpainting(ImageCondition):
    """The image without a rectangle, and a mask of it.

    Args:
        least: smallest height and width of the rectangle, as a share of the image's, > 0.
        most: largest, at most 1.
    """

    masked = True

    def __init__(self, least: float = 0.25, most: float = 0.75) -> None:
        if not 0 < least <= most <= 1:
            raise ValueError(f"Inpainting: expected 0 < least <= most <= 1, found {least} and {most}")
        self.least = least
        self.most = most

    def from_training(self, images: Tensor, seeds: Sequence[int]) -> Tensor:
        """Cut a rectangle of random size and place out of each image."""
        return self.from_user(images, None, seeds)

    def from_user(self, images: Tensor, masks: Tensor | None, seeds: Sequence[int]) -> Tensor:
        """Take the pixels of a mask away, or a random rectangle where there is none."""
        masks = self._holes(images.shape[-2:], seeds) if masks is None else (masks > 0.5).float()
        masks = masks.to(images)
        return torch.cat([masks, images * (1 - masks)], dim=1)

    def _holes(self, shape: Sequence[int], seeds: Sequence[int]) -> Tensor:
        u = sample_uniforms(seeds, 4).float()
        inside = []
        for axis, length in enumerate(shape):
            size = ((self.least + (self.most - self.least) * u[axis]) * length).round().clamp(1, length)
            first = (u[axis + 2] * (length - size + 1)).floor()
            place = torch.arange(length)
            inside.append((place >= first[:, None]) & (place < (first + size)[:, None]))  # (B, length)
        rows, columns = inside
        return (rows[:, :, None] & columns[:, None, :])[:, None].float()


class SuperResolution(ImageCondition):
    """A small copy of the image, brought back to its size.

    Args:
        factor: how many times smaller its height and width are, >= 2; the resolution is a multiple of it.

    Source: Saharia et al., "Image Super-Resolution via Iterative Refinement" (2022), which joins it to the noise.
    """

    def __init__(self, factor: int = 4) -> None:
        check_at_least(2, factor=factor)
        self.factor = factor

    def side(self, resolution: int) -> int:
        """That of the small image."""
        if resolution % self.factor:
            raise ValueError(f"SuperResolution: the resolution {resolution} is no multiple of the factor {self.factor}")
        return resolution // self.factor

    def from_training(self, images: Tensor, seeds: Sequence[int]) -> Tensor:
        """The means of squares of pixels, enlarged."""
        self.side(images.shape[-1])
        return self.from_user(F.avg_pool2d(images, self.factor), None, seeds)

    def from_user(self, images: Tensor, masks: Tensor | None, seeds: Sequence[int]) -> Tensor:
        """Enlarge small images, bilinearly."""
        return F.interpolate(images, scale_factor=float(self.factor), mode="bilinear", align_corners=False)
