"""Resized images in one memory-mapped file, so that an epoch decodes nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from torch import Tensor

from zoo.common.atomic_files import TEMPORARY_MARK, delete_path, write_atomic
from zoo.flow.data.image_sets import ImageSet
from zoo.flow.data.images import Framing, check_bad_images, decode_all, stamps, to_values

log = logging.getLogger(__name__)

CACHES = "runs/cache"
VERSION = 2  # 1 knew no rotation by EXIF, no transparency and no 16-bit grey
STALE_SECONDS = 600  # a file aside that has not grown for so long belongs to a process that was killed


class ImageCache:
    """Serves images of a cache that `build` wrote; may be pickled, every process maps the file itself.

    Args:
        path: the `.npy`; its index is the `.json` beside it.

    Attributes:
        key: of the images that it was made from.
        bad: what is wrong with the images that it leaves out, by their numbers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        index = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        self.key, self.checksum = str(index.get("key")), str(index.get("checksum"))
        self.bad = {int(number): str(cause) for number, cause in index.get("bad", {}).items()}
        self._pixels = np.load(path, mmap_mode="r", allow_pickle=False)
        expected = (index.get("count"), index.get("resolution"), index.get("resolution"), index.get("channels"))
        if self._pixels.shape != expected or self._pixels.dtype != np.uint8:
            raise ValueError(f"{path}: {self._pixels.shape} {self._pixels.dtype}, the index expects {expected} uint8")

    def __reduce__(self) -> tuple[type[ImageCache], tuple[Path]]:
        return ImageCache, (self.path,)

    def __call__(self, indices: Sequence[int]) -> Tensor:
        """Images (n, C, H, W) float32 in [-1, 1]."""
        return to_values(np.asarray(self._pixels[list(indices)]))


def build(
    images: ImageSet,
    folder: Path,
    framing: Framing,
    max_bad_share: float = 0.0,
) -> ImageCache:
    """Decode and resize images into one file, unless the cache of the same images exists.

    Its name has a hash of the names, sizes and modification times of the images, and of the size: any change makes
    another cache. Processes that build the same one at once do not disturb each other; what a killed one left aside is
    removed by a later build. A share of broken images is named in a warning and left out.

    Raises:
        ValueError: when more images are broken; all are named, and nothing is kept.
        OSError: when the disk is full or the folder is not writable; nothing is kept.
    """
    source, resolution, channels = images.source, framing.resolution, framing.channels
    key = hashlib.sha256(f"{VERSION}\n".encode() + stamps(source, framing)).hexdigest()
    stem = re.sub(r"[^\w.-]+", "-", "-".join(Path(images.name).parts[-2:])).strip("-.")
    path = folder / f"{stem}-{resolution}x{channels}-{key[:16]}.npy"
    if path.is_file():
        try:
            cache = ImageCache(path)
        except (OSError, ValueError, EOFError) as error:
            log.info("building the image cache anew: %s", error)
        else:
            if cache.key == key:
                check_bad_images(cache.bad, len(source), max_bad_share)
                return cache
            log.info("building the image cache anew: %s is of other images", path)
    for left in folder.glob(f".{stem}-*{TEMPORARY_MARK}*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            delete_path(left)
    bad: dict[int, str] = {}
    rows = partial(decode_all, source, framing, max_bad_share=max_bad_share, bad=bad)
    index: dict[str, Any] = {"key": key, "resolution": resolution, "channels": channels}
    shape = (len(source), resolution, resolution, channels)
    try:
        write_atomic(path, lambda file: index.update(checksum=_write(file, rows(), shape, bad)))
        index |= {"count": len(source) - len(bad), "bad": bad}
        text = json.dumps(index, indent=1)
        write_atomic(path.with_suffix(".json"), lambda file: file.write(text.encode()))
    except OSError as error:
        raise OSError(error.errno, f"{path}: image cache not built, nothing kept ({error})") from error
    return ImageCache(path)


def _write(file: BinaryIO, rows: Iterable[np.ndarray], shape: tuple[int, ...], bad: Collection[int]) -> str:
    """Write the array row by row, so that a full disk is an error and no crash; returns the checksum of the pixels."""
    header = {"descr": "|u1", "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
    digest = hashlib.blake2b(digest_size=8)
    for pixels in rows:
        data = pixels.tobytes()
        file.write(data)
        digest.update(data)
    if bad:  # NumPy leaves room in the header, so that it keeps its length
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (shape[0] - len(bad), *shape[1:])})
    return digest.hexdigest()
