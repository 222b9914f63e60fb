"""Inference of the autoencoder: images through their latents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from zoo.blocks.autoencoder import AutoencoderKL
from zoo.flow import rendering
from zoo.flow.data.image_sets import SUFFIXES
from zoo.flow.data.images import MODES, FileImages, to_values
from zoo.runs.export import CALL_USAGE
from zoo.runs.inference.base import Inference, table_output
from zoo.runs.inference.forms import Output, Progress


class Reconstructor(Inference):
    """Encodes images and decodes them again, to see what of them the latents keep.

    A file's image is turned as its EXIF data say and cut at the right and below to a size that the net takes.

    Args:
        net: trained.
    """

    input_suffixes = SUFFIXES
    output_suffix = ".png"

    def __init__(self, net: AutoencoderKL) -> None:
        self.net = net

    @torch.no_grad()
    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Reconstruct images (B, H, W, C), uint8, whose sides are multiples of `net.factor`, by the latents' means."""
        if np.ndim(images) != 4 or images.shape[3] != self.net.image_channels or images.dtype != np.uint8:
            raise ValueError(
                f"expected images (B, H, W, {self.net.image_channels}) uint8, found {np.shape(images)} {images.dtype}"
            )
        moments = self.net.encode(to_values(np.array(images)).to(self.device))
        return rendering.to_pixels(self.net.decode(moments.chunk(2, dim=1)[0]))

    def process_file(self, source: Path, target: Path) -> dict[str, Any]:
        """Reconstruct an image file.

        Returns:
            `width` and `height` in pixels, `l1`: mean absolute error, of a range of 2.
        """
        pixels = self._read(source)
        made = self(pixels)
        rendering.write_png(target, made[0])
        error = np.abs(made.astype(np.float64) - pixels).mean() / 127.5
        return {"width": pixels.shape[2], "height": pixels.shape[1], "l1": round(float(error), 6)}

    def answer(self, values: Mapping[str, Any], folder: Path, progress: Progress) -> list[Output]:
        """The reconstruction beside the image."""
        facts = self.process_file(values["input"], folder / "result.png")
        rendering.write_png(folder / "input.png", self._read(values["input"])[0])
        parts = [Output("image", "Reconstructed", "result.png", group="see")]
        return [*parts, Output("image", "Image", "input.png", group="see"), table_output(facts)]

    def _read(self, path: Path) -> np.ndarray:
        """Pixels (1, H, W, C) of a file, cut to a size that the net takes."""
        image = FileImages(path.parent, [path]).apply_orientation(0).convert(MODES[self.net.image_channels])
        width, height = (side - side % self.net.factor for side in image.size)
        if not width or not height:
            raise ValueError(f"{path}: {image.size} pixels, the autoencoder takes {self.net.factor} and more")
        return np.asarray(image.crop((0, 0, width, height)), dtype=np.uint8).reshape(1, height, width, -1)

    @property
    def usage(self) -> str:
        """Python lines that reconstruct an image."""
        return CALL_USAGE.format("images  # (B, H, W, C), uint8")

    def dry_run(self) -> str:
        """Reconstruct a grey image."""
        side = 8 * self.net.factor
        images = self(np.full((1, side, side, self.net.image_channels), 127, np.uint8))
        return f"1 image of shape {images.shape[1:]}"

    def write_example(self, stem: Path) -> Path:
        """Write a small image of a slope."""
        path, side = stem.with_name(f"{stem.name}.png"), 8 * self.net.factor
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.linspace(0, 255, side * side).astype(np.uint8).reshape(side, side)
        Image.fromarray(values).convert(MODES[self.net.image_channels]).save(path)
        return path
