"""Reading images: opened, resized and turned into values, in one place for all sources."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

MODES = {1: "L", 3: "RGB"}
FAULTS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what Pillow raises for a broken image
THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes and resizes without Python's lock
CHUNK = 256  # images that are decoded ahead of their use
_SHOWN = 20  # broken images named in a message


class Pictures(ABC):
    """Images as a source stores them, by number."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def open(self, index: int) -> Image.Image:
        """One image, of any size."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What an image is called in messages."""

    @abstractmethod
    def stamp(self, index: int) -> str:
        """One line that changes when the image does."""

    def pixels(self, index: int, resolution: int, channels: int) -> np.ndarray:
        """One image, resized without regard to its proportions.

        Args:
            index: its number.
            resolution: height and width of the result.
            channels: 3 for RGB, 1 for grey.

        Returns:
            Pixels (resolution, resolution, channels), uint8.

        Raises:
            ValueError: when it is broken, or has more than 8 bits per channel.
        """
        try:
            with self.open(index) as image:
                if image.mode[0] in "IF":  # Pillow would clip them to white
                    raise ValueError(f"mode {image.mode}, expected 8 bits per channel")
                converted = image.convert(MODES[channels])
        except FAULTS as error:
            raise ValueError(f"{self.name(index)}: {error}") from error
        if converted.size != (resolution, resolution):  # Pillow's filters are antialiased
            converted = converted.resize((resolution, resolution), Image.Resampling.BILINEAR)
        return np.array(converted, dtype=np.uint8).reshape(resolution, resolution, channels)


class FilePictures(Pictures):
    """Image files.

    Args:
        root: folder that names are given from.
        paths: the files.
    """

    def __init__(self, root: Path, paths: Sequence[Path]) -> None:
        self.root = root
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, index: int) -> Image.Image:
        """One image."""
        return Image.open(self.paths[index])

    def name(self, index: int) -> str:
        """Its path below the root."""
        return self.paths[index].relative_to(self.root).as_posix()

    def stamp(self, index: int) -> str:
        """Path, size and time of modification."""
        facts = self.paths[index].stat()
        return f"{self.name(index)}\0{facts.st_size}\0{facts.st_mtime_ns}"


class ArrayPictures(Pictures):
    """Images in memory.

    Args:
        images: (N, H, W), or (N, H, W, C) with 1, 3 or 4 channels; uint8.
    """

    def __init__(self, images: np.ndarray) -> None:
        self.images = images[..., 0] if images.ndim == 4 and images.shape[-1] == 1 else images

    def __len__(self) -> int:
        return len(self.images)

    def open(self, index: int) -> Image.Image:
        """One image."""
        return Image.fromarray(self.images[index])

    def name(self, index: int) -> str:
        """Its number."""
        return f"image {index}"

    def stamp(self, index: int) -> str:
        """A hash of its pixels."""
        return checksum(np.ascontiguousarray(self.images[index]))


def decode_all(pictures: Pictures, resolution: int, channels: int, progress: bool = True) -> Iterator[np.ndarray]:
    """Read and resize all images, in order.

    Args:
        pictures: the images.
        resolution: height and width in pixels.
        channels: 3 for RGB, 1 for grey.
        progress: show a progress bar.

    Yields:
        Pixels (resolution, resolution, channels), uint8, up to the first broken image.

    Raises:
        ValueError: when all images were looked at, naming those that are broken.
    """
    faults: list[str] = []

    def attempt(index: int) -> np.ndarray | None:
        try:
            return pictures.pixels(index, resolution, channels)
        except ValueError as error:
            faults.append(str(error))
            return None

    count = len(pictures)
    with ThreadPoolExecutor(THREADS) as pool:
        for start in track(range(0, count, CHUNK), description="reading images", disable=not progress):
            for pixels in pool.map(attempt, range(start, min(start + CHUNK, count))):
                if pixels is not None and not faults:
                    yield pixels
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise ValueError(
            f"{len(faults)} of {count} images cannot be read, replace or delete them: "
            f"{'; '.join(sorted(faults)[:_SHOWN])}{more}"
        )


def checksum(pixels: Any) -> str:
    """Hash a buffer: 16 hexadecimal digits."""
    return hashlib.blake2b(pixels, digest_size=8).hexdigest()


def to_values(pixels: np.ndarray) -> Tensor:
    """Turn pixels (n, H, W, C) uint8 into images (n, C, H, W) float32 in [-1, 1]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 127.5 - 1


class StoredPixels:
    """Serves images from memory.

    Args:
        pixels: (N, H, W, C), uint8.

    Attributes:
        checksum: of the pixels.
    """

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels
        self.checksum = checksum(np.ascontiguousarray(pixels))

    def __call__(self, indices: Sequence[int]) -> Tensor:
        """Images (n, C, H, W) float32 in [-1, 1]."""
        return to_values(self.pixels[list(indices)])


class DecodedPictures:
    """Decodes and resizes images whenever they are asked for.

    Args:
        pictures: the images.
        resolution: height and width in pixels.
        channels: 3 for RGB, 1 for grey.

    Attributes:
        checksum: of names, sizes and times, not of the pixels.
    """

    def __init__(self, pictures: Pictures, resolution: int, channels: int) -> None:
        self.pictures = pictures
        self.resolution = resolution
        self.channels = channels
        self.checksum = checksum(stamps(pictures, resolution, channels))

    def __call__(self, indices: Sequence[int]) -> Tensor:
        """Images (n, C, H, W) float32 in [-1, 1]."""
        return to_values(np.stack([self.pictures.pixels(i, self.resolution, self.channels) for i in indices]))


def stamps(pictures: Pictures, resolution: int, channels: int) -> bytes:
    """What changes when an image, their order or their size does."""
    lines = [f"{resolution} {channels}", *(pictures.stamp(index) for index in range(len(pictures)))]
    return "\n".join(lines).encode()
