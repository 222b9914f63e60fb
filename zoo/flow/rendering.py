"""Images and animations of samples: grids of images, scatter plots of points, PNG, GIF and MP4 files."""

from __future__ import annotations

import functools
import math
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.common.atomic_files import replace_atomically, write_atomic
from zoo.common.checks import check_one_of
from zoo.common.reports import HOLD_SECONDS, encode_gif

if TYPE_CHECKING:
    from PIL.Image import Image

Animation = Literal["none", "gif", "mp4"]

ANIMATIONS = ("none", "gif", "mp4")
FRAMES_PER_SECOND = 30
MIN_SIDE = 240  # pixels; smaller images are enlarged by a whole factor
MIN_TILE = 48  # pixels of an image in a row of several
TILE_GAP = 2
CAPTION_HEIGHT = 12  # pixels, of Pillow's own font
FIGURE_INCHES, FIGURE_DPI = 4.8, 100
DOTS_SIDE = 360  # pixels of a quick scatter plot
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


def grid(images: np.ndarray) -> np.ndarray:
    """Lay images (B, H, W, C) out row by row, about as many columns as rows; places that stay empty are black."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = -(-count // columns)
    sheet = np.zeros((rows * columns, height, width, channels), dtype=images.dtype)
    sheet[:count] = images
    laid = sheet.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return laid.reshape(rows * height, columns * width, channels)


def enlarged(image: np.ndarray, least: int = MIN_SIDE) -> np.ndarray:
    """Repeat the pixels of a small image (H, W, C) until its longer side has about `least`; larger ones stay."""
    factor = max(1, round(least / max(image.shape[:2])))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def sheet(images: np.ndarray, names: Sequence[str] | None = None) -> np.ndarray:
    """Lay images (B, H, W, C) out as `grid` does, small ones `enlarged`, each above its name if there are any."""
    if names is None:
        return enlarged(grid(images))
    factor = len(enlarged(grid(images))) // len(grid(images))
    tiles = images.repeat(factor, axis=1).repeat(factor, axis=2)
    strips = {name: _caption(name, *tiles.shape[2:]) for name in set(names)}
    return grid(np.concatenate([tiles, np.stack([strips[name] for name in names])], axis=1))


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


def picture(
    samples: Tensor,
    labels: Sequence[int] | None = None,
    data: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> np.ndarray:
    """Draw all samples (B, ...) as one image (H, W, C), uint8: a grid, or a scatter plot of points; see `frames`."""
    return frames(samples[None], labels, data, names)[0]


def frames(
    trajectory: Tensor,
    labels: Sequence[int] | None = None,
    data: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> np.ndarray:
    """Draw each state of a trajectory as an image, all to one scale: (N, H, W, C), uint8.

    Args:
        trajectory: states (N, B, C, H, W) of images in [-1, 1] or (N, B, 2) of points of the plane, float.
        labels: of points, for their colours.
        data: real points (M, 2) to plot below the points.
        names: of the samples' classes, written below images and into the legend of points.
    """
    if not check_drawable(trajectory.shape[2:]):
        return _scatter_frames(trajectory, labels, data, names)
    names = None if names is None else names[: trajectory.shape[1]]
    return np.stack([sheet(to_pixels(state), names) for state in trajectory])


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Write an image (H, W, C), uint8 with 1 or 3 channels, as a PNG that appears only when it is whole."""
    write_atomic(path, lambda file: _image(pixels).save(file, format="PNG"))


def write_animation(path: Path, images: np.ndarray, fps: int = FRAMES_PER_SECOND) -> None:
    """Write images (N, H, W, C), uint8, as a `.gif` or `.mp4` that appears only when it is whole and rests on the last.

    GIF counts in steps of 10 ms, so that 30 images per second become 33; MP4 needs ffmpeg.
    """
    if path.suffix == ".gif":
        write_atomic(path, lambda file: file.write(encode_gif(images, fps)))
    elif path.suffix == ".mp4":
        _write_mp4(path, images, fps)
    else:
        raise ValueError(f"{path}: animations end in .gif or .mp4")


def check_animation(kind: str) -> None:
    """Find out before the work whether an animation can be written: its kind is known, and ffmpeg there if needed."""
    check_one_of(ANIMATIONS, trajectory=kind)
    if kind == "mp4":
        _find_ffmpeg()


def _image(pixels: np.ndarray) -> Image:
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _find_ffmpeg() -> str:
    found = shutil.which("ffmpeg")
    if found is None:
        raise FileNotFoundError("no ffmpeg on PATH, which MP4 needs: install it, or take trajectory: gif")
    return found


def _write_mp4(path: Path, images: np.ndarray, fps: int) -> None:
    """Through ffmpeg's standard input. The tests run a stand-in for ffmpeg; with the real one it was not tried here."""
    height, width, channels = images.shape[1:]
    command = [
        _find_ffmpeg(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "gray" if channels == 1 else "rgb24",
        "-s", f"{width}x{height}", "-r", str(fps), "-i", "-",
        # the pixel format that every player knows takes even sides only
        "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-f", "mp4",
    ]  # fmt: skip
    held = np.concatenate([images, images[-1:].repeat(round(fps * HOLD_SECONDS), axis=0)])
    with replace_atomically(path) as temporary:
        # the path is absolute, so that no name is taken for an option
        result = subprocess.run(
            [*command, str(temporary.absolute())], input=held.tobytes(), capture_output=True, check=False
        )
        if result.returncode:
            said = result.stderr.decode(errors="replace").strip()[-300:]
            raise RuntimeError(f"ffmpeg failed on {path} ({said}); trajectory: gif does without it")


def dots(states: Tensor, labels: Sequence[int] | None = None, data: Tensor | None = None) -> np.ndarray:
    """Scatter plots (N, S, S, 3), uint8, of points (N, B, 2) over grey ones (M, 2), without axes: in milliseconds."""
    shown = states.flatten(0, 1) if data is None else torch.cat([states.flatten(0, 1), data])
    low, high = shown.min(dim=0).values, shown.max(dim=0).values
    middle, reach = (low + high) / 2, (high - low).max().clamp(min=1e-6) * (0.5 + MARGIN)
    colours = np.array(COLOURS, np.uint8)[0 if labels is None else np.asarray(labels) % len(COLOURS)]

    def put(canvas: np.ndarray, points: Tensor, colour: np.ndarray) -> None:
        places = ((points - middle) / reach / 2 + 0.5) * (DOTS_SIDE - 2)
        columns, rows = places.round().long().numpy().T
        for right in (0, 1):
            for down in (0, 1):
                canvas[DOTS_SIDE - 2 - rows + down, columns + right] = colour

    drawn = np.full((len(states), DOTS_SIDE, DOTS_SIDE, 3), 255, np.uint8)
    for canvas, points in zip(drawn, states, strict=True):
        if data is not None:
            put(canvas, data, np.full(3, 190, np.uint8))
        put(canvas, points, colours)
    return drawn


def _scatter_frames(
    states: Tensor, labels: Sequence[int] | None, data: Tensor | None, names: Sequence[str] | None
) -> np.ndarray:
    """Scatter plots (N, H, W, 3) of states (N, B, 2) with the same axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = states.float().cpu().numpy()
    figure = Figure(figsize=(FIGURE_INCHES, FIGURE_INCHES), dpi=FIGURE_DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    shown = [points.reshape(-1, 2)]
    if data is not None:
        real = data.float().cpu().numpy()
        shown.append(real)
        axes.scatter(real[:, 0], real[:, 1], s=3, c="0.75", linewidths=0)
    colours = {"c": "C0"} if labels is None else {"c": np.asarray(labels), "cmap": "tab10"}
    dots = axes.scatter(points[0, :, 0], points[0, :, 1], s=3, linewidths=0, **colours)
    if labels is not None and names is not None:
        named = dict(sorted(zip(labels, names, strict=True)))
        axes.legend(dots.legend_elements(num=list(named))[0], list(named.values()))
    everything = np.concatenate(shown)
    low, high = everything.min(axis=0), everything.max(axis=0)
    room = MARGIN * max(float((high - low).max()), 1e-6)
    axes.set(xlim=(low[0] - room, high[0] + room), ylim=(low[1] - room, high[1] + room), aspect="equal")
    drawn = []
    for state in points:
        dots.set_offsets(state)
        canvas.draw()
        drawn.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    return np.stack(drawn)
