"""Reading images: opened, resized and turned into values, in one place for all sources."""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from rich.progress import track
from torch import Tensor

from zoo.common.checks import check_one_of, check_unreadable_share

log = logging.getLogger(__name__)

Resize = Literal["squash", "crop"]

MODES = {1: "L", 3: "RGB"}
SIXTEEN_BIT_FORMATS = ("PNG", "PPM")  # whose 16-bit grey some versions of Pillow open in 32 bits
FAULTS = (
    OSError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    Image.DecompressionBombError,
)  # what Pillow raises for a broken image
THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes and resizes without Python's lock
CHUNK = 256  # images that are decoded ahead of their use
MAX_NAMED = 20  # broken images named in a message
WHITE = (255, 255, 255)


@dataclass(frozen=True)
class Framing:
    """How images of any kind become opaque squares of one size; see `ImageData`."""

    resolution: int  # height and width in pixels
    channels: int = 3
    resize: Resize = "squash"
    background: tuple[int, int, int] = WHITE

    def __post_init__(self) -> None:
        check_one_of(MODES, channels=self.channels)
        check_one_of(("squash", "crop"), resize=self.resize)
        if len(self.background) != 3 or not all(value in range(256) for value in self.background):
            raise ValueError(f"background is red, green and blue from 0 to 255, not {list(self.background)}")


class ImageSource(ABC):
    """Images as they are stored, by number."""

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

    def apply_orientation(self, index: int, background: tuple[int, int, int] = WHITE) -> Image.Image:
        """One image as it is meant to be seen: turned as its EXIF data say, opaque, 8 bits per channel."""
        try:
            with self.open(index) as image:
                return _opaque(_eight_bits(ImageOps.exif_transpose(image), image), background)
        except FAULTS as error:
            raise ValueError(f"{self.name(index)}: {error}") from error

    def pixels(self, index: int, framing: Framing) -> np.ndarray:
        """One image, upright and resized: (resolution, resolution, channels), uint8; see `upright`."""
        converted = self.apply_orientation(index, framing.background).convert(MODES[framing.channels])
        size = (framing.resolution, framing.resolution)
        if framing.resize == "crop":
            side = min(converted.size)
            left, top = ((length - side) // 2 for length in converted.size)
            converted = converted.crop((left, top, left + side, top + side))
        if converted.size != size:  # Pillow's filters are antialiased
            converted = converted.resize(size, Image.Resampling.BILINEAR)
        return np.array(converted, dtype=np.uint8).reshape(*size, framing.channels)


def _eight_bits(image: Image.Image, file: Image.Image) -> Image.Image:
    """An image of 12- or 16-bit grey in 8 bits, others as they are; `transparency` of a PNG becomes an alpha channel.

    `file` is the image as Pillow opened it, which has the tags of a TIFF.
    """
    if image.mode[0] not in "IF":
        return image
    if not image.mode.startswith("I;16") and not (image.mode == "I" and file.format in SIXTEEN_BIT_FORMATS):
        raise ValueError(f"mode {image.mode}, whose range is not stated: expected 8 or 16 bits per channel")
    values, tags = np.asarray(image), getattr(file, "tag_v2", {})
    white = 2 ** tags.get(ExifTags.Base.BitsPerSample, (16,))[0] - 1
    eight = np.rint(values / (white / 255)).astype(np.uint8)
    grey = Image.fromarray(255 - eight if tags.get(ExifTags.Base.PhotometricInterpretation) == 0 else eight)
    if "transparency" in image.info:
        grey.putalpha(Image.fromarray(((values != image.info["transparency"]) * 255).astype(np.uint8)))
    return grey


def _opaque(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if not image.has_transparency_data:
        return image.copy()
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, (*background, 255)), layer).convert("RGB")


@dataclass(eq=False)
class FileImages(ImageSource):
    """Image files."""

    root: Path  # folder that names are given from
    paths: Sequence[Path]

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


class ArrayImages(ImageSource):
    """Images in memory: (N, H, W), or (N, H, W, C) with 1, 3 or 4 channels; uint8."""

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


def decode_all(
    source: ImageSource,
    framing: Framing,
    progress: bool = True,
    max_bad_share: float = 0.0,
    bad: dict[int, str] | None = None,
) -> Iterator[np.ndarray]:
    """Read and resize all images, in order: pixels (H, W, C), uint8, of the sound ones, until too many are broken.

    Args:
        max_bad_share: share of broken images, 0 to 1, that are named in a warning and left out.
        bad: filled with what is wrong with each broken image, by its number.

    Raises:
        ValueError: more images are broken, or all of them; after all were read, with the names of the broken ones.
    """
    faults: dict[int, str] = {} if bad is None else bad

    def attempt(index: int) -> np.ndarray | None:
        try:
            return source.pixels(index, framing)
        except ValueError as error:
            faults[index] = str(error)
            return None

    count = len(source)
    with ThreadPoolExecutor(THREADS) as pool:
        for start in track(range(0, count, CHUNK), description="reading images", disable=not progress):
            for pixels in pool.map(attempt, range(start, min(start + CHUNK, count))):
                if pixels is not None and len(faults) <= max_bad_share * count:
                    yield pixels
    check_bad_images(faults, count, max_bad_share)


def check_bad_images(bad: Mapping[int, str], count: int, max_bad_share: float) -> None:
    """Name broken images, given with their causes by number, in a warning; raise where they are more, or all."""
    causes = [bad[index] for index in sorted(bad)]
    check_unreadable_share(
        causes, count, max_bad_share if len(bad) < count else 0.0, "images cannot be read", MAX_NAMED
    )
    for cause in causes:
        log.warning("image left out: %s", cause)


def checksum(pixels: Any) -> str:
    """Hash a buffer: 16 hexadecimal digits."""
    return hashlib.blake2b(pixels, digest_size=8).hexdigest()


def to_values(pixels: np.ndarray) -> Tensor:
    """Turn pixels (n, H, W, C) uint8 into images (n, C, H, W) float32 in [-1, 1]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float() / 127.5 - 1


class StoredPixels:
    """Serves images (N, H, W, C), uint8, from memory."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels
        self.checksum = checksum(np.ascontiguousarray(pixels))

    def __call__(self, indices: Sequence[int]) -> Tensor:
        """Images (n, C, H, W) float32 in [-1, 1]."""
        return to_values(self.pixels[list(indices)])


class DecodedImages:
    """Decodes and resizes images whenever they are asked for, but for the bad ones, given by their numbers."""

    def __init__(self, source: ImageSource, framing: Framing, bad: Collection[int] = ()) -> None:
        self.source = source
        self.framing = framing
        self.kept = [index for index in range(len(source)) if index not in bad]
        self.checksum = checksum(stamps(source, framing))  # of names, sizes and times, not of the pixels

    def __call__(self, indices: Sequence[int]) -> Tensor:
        """Images (n, C, H, W) float32 in [-1, 1]."""
        return to_values(np.stack([self.source.pixels(self.kept[index], self.framing) for index in indices]))


def stamps(source: ImageSource, framing: Framing) -> bytes:
    """What changes when an image, their order or how they are read does."""
    how = f"Framing(resize={framing.resize!r}, background={framing.background!r})"
    lines = [f"{framing.resolution} {framing.channels} {how}", *(source.stamp(index) for index in range(len(source)))]
    return "\n".join(lines).encode()
