"""The space of latents that a flow learns in: those of an autoencoder of images, per channel shifted and scaled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.checks import check_at_least


class ImageAutoencoder(nn.Module, ABC):
    """Base of autoencoders of images with Gaussian latents, which are not trained here.

    Attributes:
        config: in diffusers' words, for the scale of the latents.
        image_channels: of an image.
        latent_channels: of a latent.
        factor: how many times smaller than the image's the height and width of a latent are.
    """

    config: dict[str, Any]
    image_channels: int
    latent_channels: int
    factor: int

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Encode images (B, C, H, W) in [-1, 1] as moments (B, 2 * latent_channels, h, w): means, log-variances."""

    @abstractmethod
    def decode(self, z: Tensor) -> Tensor:
        """Decode latents (B, latent_channels, h, w) as images (B, C, H, W)."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the weights."""

    def latent_shape(self, image: Sequence[int]) -> tuple[int, int, int]:
        """Return the shape of the latents of images of a shape (C, H, W)."""
        channels, *sides = image
        if channels != self.image_channels or any(side % self.factor for side in sides):
            raise ValueError(
                f"the autoencoder takes images of {self.image_channels} channels whose sides are multiples of "
                f"{self.factor}, not {tuple(image)}"
            )
        return (self.latent_channels, sides[0] // self.factor, sides[1] // self.factor)


class LatentSpace(nn.Module):
    """Latents of an autoencoder on the scale that a flow learns on: (z - shift) * scale, per channel.

    Shift and scale are those of the autoencoder's config, or, where `statistics` is set or the config has none, those
    that bring the training set's latents to zero mean and unit deviation. They are saved with the weights.

    Args:
        autoencoder: of images.
        statistics: take them from the training set, whatever the config says.
        chunk: latents decoded together; more need more memory.
    """

    shift: Tensor
    scale: Tensor
    is_fitted: Tensor

    def __init__(self, autoencoder: ImageAutoencoder, statistics: bool = False, chunk: int = 8) -> None:
        super().__init__()
        check_at_least(1, chunk=chunk)
        self.autoencoder = autoencoder
        self.chunk = chunk
        channels = autoencoder.latent_channels
        fixed_scale = None if statistics else scale_of(autoencoder.config, channels)
        shift, scale = fixed_scale or (torch.zeros(channels), torch.ones(channels))
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)
        self.register_buffer("is_fitted", torch.tensor(fixed_scale is not None))

    def fit(self, mean: Tensor, deviation: Tensor) -> None:
        """Take the statistics (C,) of a training set's latents, unless there is a scale already."""
        if bool(self.is_fitted):
            return
        if not bool((deviation > 0).all()):
            raise ValueError("a channel of the training set's latents is constant: look at the images")
        self.shift.copy_(mean)
        self.scale.copy_(1 / deviation)
        self.is_fitted.fill_(True)

    def normalise(self, z: Tensor) -> Tensor:
        """Latents (B, C, h, w) of the autoencoder, on any device, as the flow sees them."""
        shift, scale = (each.to(z.device)[:, None, None] for each in (self.shift, self.scale))
        return (z - shift) * scale

    def denormalise(self, z: Tensor) -> Tensor:
        """The flow's latents (B, C, h, w) on the autoencoder's own scale."""
        return z / self.scale[:, None, None] + self.shift[:, None, None]

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Moments of images (B, C, H, W) in [-1, 1], of the autoencoder's own scale, float32 whatever is trained in."""
        with torch.autocast(images.device.type, enabled=False):
            return self.autoencoder.encode(images.float())

    def condition(self, image: Tensor, masked: bool) -> Tensor:
        """An image condition (B, C, H, W) in the latents' size: the image encoded, a mask 1 where anything is missing.

        Args:
            masked: whether the first channel is a mask.
        """
        mask, images = image[:, : int(masked)], image[:, int(masked) :]
        latents = self.normalise(self.encode(images).chunk(2, dim=1)[0])
        return torch.cat([F.max_pool2d(mask, self.autoencoder.factor), latents], dim=1) if masked else latents

    @torch.no_grad()
    def decode(self, z: Tensor) -> Tensor:
        """Images (B, C, H, W), about in [-1, 1], of the flow's latents, a chunk at a time, in float32."""
        with torch.autocast(z.device.type, enabled=False):
            latents = self.denormalise(z.float())
            return torch.cat([self.autoencoder.decode(part) for part in latents.split(self.chunk)])


def scale_of(config: Mapping[str, Any], channels: int) -> tuple[Tensor, Tensor] | None:
    """Shift and scale (C,) that a config gives; None where it gives none."""
    if config.get("latents_mean") is not None and config.get("latents_std") is not None:
        mean, deviation = (torch.tensor(config[key], dtype=torch.float32) for key in ("latents_mean", "latents_std"))
        return mean, float(config.get("scaling_factor") or 1.0) / deviation
    if config.get("scaling_factor") is None:
        return None
    shift = float(config.get("shift_factor") or 0.0)
    return torch.full((channels,), shift), torch.full((channels,), float(config["scaling_factor"]))
