"""Images and animations of samples: grids of images, scatter plots of points, PNG and GIF files."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.common.reports import encode_gif

if TYPE_CHECKING:
    from PIL.Image import Image

FRAMES_PER_SECOND = 30
MIN_SIDE = 240  # pixels; smaller images are enlarged by a whole factor
MIN_TILE = 48  # pixels of an image in a row of several
TILE_GAP = 2
CAPTION_HEIGHT = 12  # pixels, of Pillow's own font
PLOT_SIDE = 360  # pixels of a scatter plot
COLOURS = ((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75))
MARGIN = 0.05  # of the range of a scatter plot, on each side


def is_image(shape: Sequence[int]) -> bool:
    """Whether samples of this shape are images: (C, H, W) with 1 or 3 channels."""
    return len(shape) == 3 and shape[0] in (1, 3)


def check_drawable(shape: Sequence[int]) -> bool:
    """Whether samples of this shape are images; refused when they are no points (2,) of the plane either."""
    if not is_image(shape) and tuple(shape) != (2,):
        raise ValueError(
            f"samples of shape {tuple(shape)} are neither images nor points of the plane and cannot be drawn: "
            "switch off grid and trajectory, or use Sampler.sample()"
        )
    return is_image(shape)


def to_pixels(images: Tensor) -> np.ndarray:
    """Turn images (B, C, H, W) in [-1, 1] into pixels (B, H, W, C), uint8, rounded and clamped."""
    return (images / 2 + 0.5).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def image_grid(images: np.ndarray) -> np.ndarray:
    """Lay images (B, H, W, C) out row by row, about as many columns as rows; places that stay empty are black."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = -(-count // columns)
    sheet = np.zeros((rows * columns, height, width, channels), dtype=images.dtype)
    sheet[:count] = images
    rows_of_tiles = sheet.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return rows_of_tiles.reshape(rows * height, columns * width, channels)


def enlarge(image: np.ndarray, least: int = MIN_SIDE) -> np.ndarray:
    """Repeat the pixels of a small image (H, W, C) until its longer side has about `least`; larger ones stay."""
    factor = max(1, round(least / max(image.shape[:2])))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def labelled_grid(images: np.ndarray, names: Sequence[str] | None = None) -> np.ndarray:
    """Lay images (B, H, W, C) out as `image_grid` does, small ones enlarged, each above its name if there are any."""
    if names is None:
        return enlarge(image_grid(images))
    factor = len(enlarge(image_grid(images))) // len(image_grid(images))
    tiles = images.repeat(factor, axis=1).repeat(factor, axis=2)
    strips = {name: _caption(name, *tiles.shape[2:]) for name in set(names)}
    return image_grid(np.concatenate([tiles, np.stack([strips[name] for name in names])], axis=1))


def titled_rows(rows: Sequence[tuple[str, np.ndarray]], names: Sequence[str] | None = None) -> np.ndarray:
    """Lay rows of images (B, H, W, C) out below one another, each under its title, all under names of the columns."""
    count, height, width, channels = rows[0][1].shape
    factor = max(1, round(MIN_TILE / max(height, width)))
    pitch = factor * width + TILE_GAP
    parts = []
    if names is not None:
        parts.append(np.concatenate([_caption(name, pitch, channels) for name in names], axis=1))
    for title, images in rows:
        tiles = np.zeros((count, factor * height + TILE_GAP, pitch, channels), np.uint8)
        tiles[:, :-TILE_GAP, :-TILE_GAP] = images.repeat(factor, axis=1).repeat(factor, axis=2)
        parts += [_caption(title, pitch * count, channels), np.concatenate(list(tiles), axis=1)]
    return np.concatenate(parts)


def nearest(images: Tensor, others: Tensor) -> Tensor:
    """The nearest of others (M, ...) to each image (B, ...), by Euclidean distance: (B, ...)."""
    return others[torch.cdist(images.flatten(1), others.flatten(1)).argmin(dim=1)]


@functools.lru_cache(maxsize=256)  # those of an animation's frames are the same
def _caption(text: str, width: int, channels: int) -> np.ndarray:
    """White text on black (CAPTION_HEIGHT, width, channels), cut at the right where it is too long."""
    from PIL import Image, ImageDraw

    strip = Image.new("L", (width, CAPTION_HEIGHT))
    ImageDraw.Draw(strip).text((1, 0), text, fill=255)
    return np.asarray(strip)[..., None].repeat(channels, axis=2)


def frames(trajectory: Tensor, labels: Sequence[int] | None = None, names: Sequence[str] | None = None) -> np.ndarray:
    """Draw each state of a trajectory, all to one scale: (N, H, W, C), uint8.

    Args:
        trajectory: states (N, B, C, H, W) of images in [-1, 1], drawn as a grid, or (N, B, 2) of points of the plane.
        labels: of points, for their colours.
        names: of the images' classes, written below them.
    """
    if not check_drawable(trajectory.shape[2:]):
        return point_plots(trajectory.float().cpu(), labels)
    names = None if names is None else names[: trajectory.shape[1]]
    return np.stack([labelled_grid(to_pixels(state), names) for state in trajectory])


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Write an image (H, W, C), uint8 with 1 or 3 channels, as a PNG that appears only when it is whole."""
    write_atomic(path, lambda file: _image(pixels).save(file, format="PNG"))


def write_gif(path: Path, images: np.ndarray, fps: int = FRAMES_PER_SECOND) -> None:
    """Write images (N, H, W, C), uint8, as an animation that appears only when it is whole and rests on the last one.

    GIF counts in steps of 10 ms, so that 30 images per second become 33.
    """
    write_atomic(path, lambda file: file.write(encode_gif(images, fps)))


def _image(pixels: np.ndarray) -> Image:
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def point_plots(states: Tensor, labels: Sequence[int] | None = None, data: Tensor | None = None) -> np.ndarray:
    """Scatter plots (N, S, S, 3), uint8, of points (N, B, 2) over grey ones (M, 2), without axes: in milliseconds."""
    points = states.flatten(0, 1) if data is None else torch.cat([states.flatten(0, 1), data])
    low, high = points.min(dim=0).values, points.max(dim=0).values
    middle, reach = (low + high) / 2, (high - low).max().clamp(min=1e-6) * (0.5 + MARGIN)
    colours = np.array(COLOURS, np.uint8)[0 if labels is None else np.asarray(labels) % len(COLOURS)]

    def put(canvas: np.ndarray, points: Tensor, colour: np.ndarray) -> None:
        places = ((points - middle) / reach / 2 + 0.5) * (PLOT_SIDE - 2)
        columns, rows = places.round().long().numpy().T
        for right in (0, 1):
            for down in (0, 1):
                canvas[PLOT_SIDE - 2 - rows + down, columns + right] = colour

    plots = np.full((len(states), PLOT_SIDE, PLOT_SIDE, 3), 255, np.uint8)
    for canvas, points in zip(plots, states, strict=True):
        if data is not None:
            put(canvas, data, np.full(3, 190, np.uint8))
        put(canvas, points, colours)
    return plots
