"""Augmentation that does not leak: training images are moved a little, and the net is told how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.common.ranges import at_least, one_of, within
from zoo.common.tensors import sample_uniforms
from zoo.training.data import item_seed

AUGMENTATION = 5  # of the draws of an item's seed
PADDINGS = {"dark": "zeros", "edge": "border"}


class Augmentation:
    """Turns, scales, stretches, shears and shifts training images by bilinear interpolation.

    A net of `augmentations: 6` (`zoo.flow.UNet`) is told by how much, as shares of the most; samples are drawn with
    none of it, so that they look like the images themselves. Against overfitting where there are few images.

    Args:
        probability: that an image is augmented at all, in each epoch anew.
        rotation: most degrees.
        scale: most of the logarithm of the size.
        stretch: most of the logarithm of the width, which the height loses.
        shear: most columns by which a row is moved against the next.
        shift: most, as a share of the side.
        padding: what lies outside of the image: "dark" (-1) or the colours at its "edge".

    Source: Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models" (2022), appendix F.2;
    Jun et al., "Distribution Augmentation for Generative Modeling" (2020).
    """

    width = 6  # numbers that say what was done

    def __init__(
        self,
        probability: float = 0.5,
        rotation: float = 15.0,
        scale: float = 0.15,
        stretch: float = 0.12,
        shear: float = 0.15,
        shift: float = 0.125,
        padding: Literal["dark", "edge"] = "edge",
    ) -> None:
        within(0, 1, probability=probability)
        at_least(0, rotation=rotation, scale=scale, stretch=stretch, shear=shear, shift=shift)
        one_of(PADDINGS, padding=padding)
        self.probability = probability
        self.most = (math.radians(rotation), scale, stretch, shear, 2 * shift, 2 * shift)  # an image is 2 units wide
        self.padding = padding

    def drawn(self, seeds: Sequence[int]) -> Tensor:
        """What is done to items of these seeds: (B, 6), float32, each from -1 to 1; zeros for nothing."""
        u = sample_uniforms([item_seed(seed, 0, AUGMENTATION) for seed in seeds], 1 + self.width)
        return torch.where(u[0] < self.probability, 2 * u[1:] - 1, 0.0).T.float()

    def __call__(self, images: Tensor, how: Tensor) -> Tensor:
        """Augment images (B, C, H, W) in [-1, 1] by (B, 6) of `drawn`; rows of zeros stay as they are, to the bit."""
        angle, scale, stretch, shear, right, down = (how * how.new_tensor(self.most)).unbind(dim=1)
        cosine, sine = angle.cos() / scale.exp(), angle.sin() / scale.exp()
        rows = [cosine / stretch.exp(), sine + shear, -right, -sine, cosine * stretch.exp(), -down]
        places = F.affine_grid(torch.stack(rows, dim=1).view(-1, 2, 3), list(images.shape), align_corners=False)
        # what grid_sample pads with is 0, and dark is -1
        moved = F.grid_sample(images + 1, places, padding_mode=PADDINGS[self.padding], align_corners=False) - 1
        return torch.where(how.any(dim=1)[:, None, None, None], moved, images)
