"""Nets that turn images into features for the metrics.

Images always go to 8 bits first, as they would in a file: a metric must not tell floats from pixels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from zoo.common.atomic_files import write_atomic
from zoo.flow.data.images import checksum, to_values

BATCH = 64


class FeatureExtractor(nn.Module):
    """Base of feature nets."""

    dims: int  # of a feature

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, dims) of images (B, C, H, W), float in [-1, 1], 1 or 3 channels."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def identity(self) -> str:
        """Return a name that is unique to this extractor and its weights, for caches and reports."""
        state = {key: value.detach().cpu().contiguous() for key, value in self.state_dict().items()}
        return f"{type(self).__name__} {checksum(save(state))}"


class ClassifierFeatures(FeatureExtractor):
    """Base of feature nets that know classes."""

    def logits(self, features: Tensor) -> Tensor:
        """Scores (B, K) of features (B, dims); column 0 is label 1."""
        raise NotImplementedError(f"{type(self).__name__} defines no logits()")

    @torch.no_grad()
    def predict(self, features: Tensor) -> list[int]:
        """Labels, 1 to K, of features (B, dims)."""
        device = next(self.parameters()).device
        return [int(label) for label in (self.logits(features.to(device)).argmax(dim=1) + 1).tolist()]


class PixelFeatures(FeatureExtractor):
    """The pixels themselves."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims  # channels x height x width of the images

    def forward(self, images: Tensor) -> Tensor:
        """Flattened images (B, dims)."""
        features = images.flatten(1)
        if features.shape[1] != self.dims:
            raise ValueError(f"expected images of {self.dims} values, found {tuple(images.shape[1:])}")
        return features

    def identity(self) -> str:
        """Its width."""
        return f"PixelFeatures {self.dims}"


def resized(images: Tensor, resolution: int) -> Tensor:
    """Resize images (B, C, H, W) to squares, bilinear and antialiased; those of that size stay as they are."""
    if images.shape[-2:] == (resolution, resolution):
        return images
    return F.interpolate(images, (resolution, resolution), mode="bilinear", align_corners=False, antialias=True)


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Images (B, channels, H, W): grey is repeated, colours are averaged."""
    if images.shape[1] == channels:
        return images
    grey = images.mean(dim=1, keepdim=True)
    return grey.expand(-1, channels, -1, -1)


@torch.no_grad()
def extract(extractor: FeatureExtractor, pixels: np.ndarray, device: str = "cpu") -> Tensor:
    """Features (N, dims), float32 on the CPU, of images (N, H, W, C), uint8, as `rendering.to_pixels` makes."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] not in (1, 3) or not len(pixels):
        raise ValueError(f"expected images (N, H, W, 1 | 3) uint8, N >= 1, found {pixels.shape} {pixels.dtype}")
    extractor = extractor.eval().to(device)
    parts = [
        extractor(to_values(pixels[first : first + BATCH]).to(device)).float().cpu()
        for first in range(0, len(pixels), BATCH)
    ]
    features = torch.cat(parts)
    if not features.isfinite().all():
        raise ValueError(f"{type(extractor).__name__} gives features that are not finite")
    return features


def cached_features(extractor: FeatureExtractor, pixels: np.ndarray, cache: Path | None, device: str = "cpu") -> Tensor:
    """As `extract`, and kept in `<cache>/features/<hash>.npy`; the hash is of images and extractor."""
    if cache is None:
        return extract(extractor, pixels, device)
    key = f"{checksum(np.ascontiguousarray(pixels))} {pixels.shape} {extractor.identity()}"
    path = Path(cache) / "features" / f"{checksum(key.encode())}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path, allow_pickle=False))
    features = extract(extractor, pixels, device)
    write_atomic(path, lambda file: np.save(file, features.numpy()))
    return features
