"""Preparation of AFHQ: unpack, compare with the known counts, resize."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.common.foreign_files import extract_archive
from zoo.flow.data import image_sets
from zoo.flow.data.image_cache import CACHES, build
from zoo.flow.data.image_sets import ImageSet
from zoo.flow.data.images import Framing, decode_all
from zoo.flow.rendering import write_png

CLASSES = ["cat", "dog", "wild"]
V1_COUNTS = {"train": (5153, 4739, 4738), "val": (500, 500, 500)}
V2_TOTAL = 15_803
log = logging.getLogger(__name__)


def find_home(folder: Path) -> Path:
    """The folder that holds `train` and `val` (v2: `test`), which archives put one level down."""
    children = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    for home in (folder, *children):
        if (home / "train").is_dir() and any((home / part).is_dir() for part in ("val", "test")):
            return home
    raise FileNotFoundError(
        f"{folder}: expected AFHQ's folders train and val (v2: test), each with {', '.join(CLASSES)}, here or one "
        "level down"
    )


def prepare(
    sources: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    resolution: int = 64,
    max_per_class: int = 0,
    cache: str | os.PathLike[str] | None = CACHES,
    eval_folder: str | os.PathLike[str] | None = None,
    strict: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Check AFHQ and resize it: the cache that training uses, and a flat folder of the validation images.

    Nothing is downloaded.

    Args:
        sources: the folder of AFHQ (v1 or v2), or its archives (`.zip`, `.tar`, ...).
        output: folder that archives are unpacked into.
        resolution: height and width of the resized images, in pixels.
        max_per_class: first images of each class in the cache, as in the recipe; 0 or less for all.
        cache: folder of the caches, as in the recipe; None for no cache.
        eval_folder: where the validation images go as PNG, all in one folder; None for no such folder.
        strict: raise where the counts are those of no known version, instead of warning.
        progress: show progress bars.

    Returns:
        Facts: folder, version, counts of train and val, and what was written.
    """
    paths = [Path(source) for source in sources]
    if len(paths) == 1 and not paths[0].is_file():
        home = find_home(paths[0])
    elif output is None or any(path.is_dir() for path in paths):
        raise ValueError(f"expected one folder of AFHQ, or archives and --output, got {', '.join(map(str, paths))}")
    else:
        for path in paths:
            extract_archive(path, Path(output))
        home = find_home(Path(output))
    val = home / "val" if (home / "val").is_dir() else home / "test"
    sets = {"train": image_sets.folder(home / "train"), "val": image_sets.folder(val)}
    facts: dict[str, Any] = {"folder": str(home), "version": version(sets, strict)}
    facts |= {part: ", ".join(f"{k} {v}" for k, v in images.counts().items()) for part, images in sets.items()}
    if cache is not None:
        for images in (image_sets.folder(part, max_per_class) for part in (home / "train", val)):
            build(images, Path(cache), Framing(resolution), progress)
        facts["cache"] = str(cache)
    if eval_folder is not None:
        facts["eval_images"] = write_flat(sets["val"], Path(eval_folder), resolution, progress)
    return facts


def version(sets: dict[str, ImageSet], strict: bool = False) -> str:
    """Tell by the counts of `train` and `val` which AFHQ this is: `v1`, `v2` or, with a warning, `unknown`.

    Raises:
        ValueError: when the classes are not AFHQ's; under `strict` also for other counts.
    """
    for images in sets.values():
        if images.classes != CLASSES:
            raise ValueError(
                f"{images.name}: expected the classes {', '.join(CLASSES)}, found {', '.join(images.classes)}; every "
                "folder with images counts as a class, so move others away"
            )
    counts = {part: tuple(images.counts().values()) for part, images in sets.items()}
    if counts == V1_COUNTS:
        return "v1"
    total = sum(map(sum, counts.values()))
    if total == V2_TOTAL:
        return "v2"
    message = (
        f"{sets['train'].name}: these are not the counts of AFHQ: found {counts}, {total} together; v1 has "
        f"{V1_COUNTS}, v2 has {V2_TOTAL} images; files are missing or were added"
    )
    if strict:
        raise ValueError(message)
    log.warning(message)
    return "unknown"


def write_flat(images: ImageSet, folder: Path, resolution: int, progress: bool = True) -> int:
    """Write resized images into a folder of their own, as `<class>_<number>.png`; returns how many."""
    class_ranks = image_sets.class_ranks(images.labels)
    names = [f"{images.classes[k - 1]}_{rank:05d}.png" for k, rank in zip(images.labels, class_ranks, strict=True)]
    others = sorted({path.name for path in folder.iterdir()} - set(names)) if folder.is_dir() else []
    if others:
        raise ValueError(f"{folder}: holds {len(others)} other files, e.g. {others[0]}; give a folder of its own")
    for name, pixels in zip(names, decode_all(images.source, Framing(resolution), progress), strict=True):
        write_png(folder / name, pixels)
    return len(names)
