"""Digits and letters drawn by code, in colour: a set of images whose distribution is known and cannot run out."""

from __future__ import annotations

import colorsys
import importlib.util
import math
import string
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from zoo.common.checks import check_at_least, check_one_of
from zoo.flow.data.image_sets import ImageSet
from zoo.flow.data.images import ArrayImages

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono")  # what matplotlib brings along
SIDE = 32  # pixels of an image as it is drawn
MASK_SIDE = 3 * SIDE  # pixels of the mask that it is made of
FONT_SIZE = 84  # pixels of the mask: capitals are about 61 high, descenders reach 20 below the line
BASELINE = 72  # rows of the mask above the line
# jitter, each uniform in plus or minus
ROTATION_DEGREES = 8.0
SHIFT = 0.05  # of the side
SCALE = 0.08
SHEAR = 0.1
# colours: hue, saturation and value, uniform; the glyph is bright, what is behind it dark
GLYPH_COLOUR = ((0.0, 1.0), (0.3, 0.9), (0.75, 1.0))
GROUND_COLOUR = ((0.0, 1.0), (0.0, 1.0), (0.0, 0.2))
NUMBERS = 12  # that an image is drawn from, see `draw`
TRAIN, HELD_OUT = 0, 1  # of the keys of the random numbers


class Glyphs:
    """Digits, capitals and small letters (62 classes), in four fonts, moved a little, in random colours.

    Training and held-out images are draws of one distribution, and image i of a class is the same for any number of
    images.

    Args:
        per_class: training images of each class.
        held_out: validation images of each class.
        seed: of all that is random.
    """

    def __init__(self, per_class: int = 100, held_out: int = 15, seed: int = 0) -> None:
        check_at_least(1, per_class=per_class, held_out=held_out)
        check_at_least(0, seed=seed)
        self.per_class = per_class
        self.held_out = held_out
        self.seed = seed

    def sets(self) -> list[ImageSet]:
        """The training and the held-out images, 32 x 32 pixels in RGB, class by class."""
        return [self._draw_set("training", TRAIN, self.per_class), self._draw_set("held-out", HELD_OUT, self.held_out)]

    def _draw_set(self, name: str, part: int, count: int) -> ImageSet:
        pixels = [
            draw(character, numbers)
            for label, character in enumerate(CLASSES)
            for numbers in np.random.default_rng([self.seed, part, label]).random((count, NUMBERS))
        ]
        labels = [label for label in range(1, len(CLASSES) + 1) for _ in range(count)]
        return ImageSet(f"glyphs, {name}", list(CLASSES), labels, ArrayImages(np.stack(pixels)))


def draw(character: str, numbers: Sequence[float]) -> np.ndarray:
    """Draw one character: (32, 32, 3), uint8.

    Args:
        numbers: 12, each uniform in [0, 1): which font; rotation, shifts (2), scale and shear; hue, saturation and
            value of the glyph, then of what is behind it.
    """
    font = FONTS[int(numbers[0] * len(FONTS))]
    turn, right, down, scale, shear = (2 * number - 1 for number in numbers[1:6])
    mask = _transform(_mask(character, font), math.radians(ROTATION_DEGREES) * turn, SHIFT * right, SHIFT * down,
                  1 + SCALE * scale, SHEAR * shear)  # fmt: skip
    glyph, ground = _colour(numbers[6:9], GLYPH_COLOUR), _colour(numbers[9:12], GROUND_COLOUR)
    return np.rint(ground + mask[:, :, None] * (glyph - ground)).astype(np.uint8)


def _colour(numbers: Sequence[float], ranges: Sequence[tuple[float, float]]) -> np.ndarray:
    """Red, green and blue (3,), 0 to 255, of numbers from 0 to 1."""
    hsv = (low + number * (high - low) for number, (low, high) in zip(numbers, ranges, strict=True))
    return 255 * np.array(colorsys.hsv_to_rgb(*hsv))


def _transform(mask: Image.Image, angle: float, right: float, down: float, scale: float, shear: float) -> np.ndarray:
    """A mask (32, 32), 0 to 1, turned and scaled around its middle, sheared, then shifted by shares of the side."""
    cosine, sine, middle = math.cos(angle) / scale, math.sin(angle) / scale, MASK_SIDE / 2
    a, b, d, e = cosine, sine + shear / scale, -sine, cosine  # where a pixel of the result comes from
    x, y = middle + right * MASK_SIDE, middle + down * MASK_SIDE
    affine = (a, b, middle - a * x - b * y, d, e, middle - d * x - e * y)
    moved = mask.transform((MASK_SIDE, MASK_SIDE), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    return np.asarray(moved.reduce(MASK_SIDE // SIDE), dtype=np.float64) / 255


@cache
def _mask(character: str, font: str) -> Image.Image:
    """A character on its line, in the middle of 96 x 96 pixels, 8-bit grey."""
    image = Image.new("L", (MASK_SIDE, MASK_SIDE))
    ImageDraw.Draw(image).text((MASK_SIDE / 2, BASELINE), character, 255, _font(font), anchor="ms")
    return image


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    check_one_of(FONTS, font=name)
    package = importlib.util.find_spec("matplotlib")  # its place alone: importing it takes time
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the fonts of the glyphs come with matplotlib: pip install matplotlib")
    path = Path(package.origin).parent / "mpl-data" / "fonts" / "ttf" / f"{name}.ttf"
    return ImageFont.truetype(str(path), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
