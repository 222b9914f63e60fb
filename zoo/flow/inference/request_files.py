"""Files of samples to draw: requests, a JSON object a line, and the images and masks that they name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.common.foreign_files import read_lines
from zoo.flow import rendering
from zoo.flow.data.images import WHITE, FileImages, Framing
from zoo.flow.process.conditions import GenerationConditions

if TYPE_CHECKING:
    from zoo.flow.inference.sampler import Sampler

CONDITION_KEYS = ("prompt", "image", "mask")


def read_request_file(path: Path, sampler: Sampler) -> tuple[list[int] | None, list[int], GenerationConditions | None]:
    """Read labels (None without classes), seeds and conditions of the samples of a request file.

    A line is a sample, `{"label": 3, "seed": 7}`, or several of neighbouring seeds: with `"count": 100` the seeds 7 to
    106. A label may be the name of a class. Where the net takes them, a line has `"prompt": "..."` ("" when left out),
    `"image": "cat.png"` and perhaps `"mask": "hole.png"` (white is missing), from the folder of the file.
    """
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                rows += _read_row(line, sampler)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    if not rows:
        raise ValueError(f"{path} asks for nothing: it has no line")
    labels, seeds = [row.get("label", 0) for row in rows], [row["seed"] for row in rows]
    files: dict[str, list[Path]] = {}
    for key in ("image", "mask"):
        files[key] = [path.parent / row[key] for row in rows if key in row]
        if files[key] and len(files[key]) < len(rows):
            raise ValueError(f"{path}: some lines have an {key}, others none: give one in each")
    prompts = [row.get("prompt", "") for row in rows] if sampler.text is not None else None
    conditions = read_conditions(sampler, seeds, prompts, files["image"], files["mask"])
    return labels if sampler.net.num_classes else None, seeds, conditions


def named_files(path: Path) -> list[Path]:
    """The images and masks that a request file names, once each, as far as it can be read and they exist."""
    names = set()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            names |= {row[key] for key in ("image", "mask") if isinstance(row, dict) and isinstance(row.get(key), str)}
    return sorted(file for name in names if (file := path.parent / name).is_file())


def write_request_file(stem: Path, sampler: Sampler) -> Path:
    """Write a request for one sample of each class, four at most; for four samples of a net without classes."""
    rows: list[dict[str, Any]]
    rows = [{"label": k + 1, "seed": k} for k in range(min(sampler.net.num_classes, 4))] or [{"seed": 0, "count": 4}]
    stem.parent.mkdir(parents=True, exist_ok=True)
    if sampler.text is not None:
        rows = [{**row, "prompt": "an example"} for row in rows]
    if sampler.image_condition is not None:
        rendering.write_png(stem.with_name(f"{stem.name}.png"), sampler.blank_image()[0])
        rows = [{**row, "image": f"{stem.name}.png"} for row in rows]
    path = stem.with_name(f"{stem.name}.jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def read_conditions(
    sampler: Sampler,
    seeds: Sequence[int],
    prompts: Sequence[str] | None,
    images: Sequence[Path],
    masks: Sequence[Path],
) -> GenerationConditions | None:
    """`Sampler.make_conditions` of image files and masks (white is missing), resized as the training images were."""
    if not images and not masks:
        return sampler.make_conditions(seeds, prompts)
    if sampler.image_condition is None:
        raise ValueError("the net takes no images")
    framing = sampler.framing(sampler.image_condition.side(sampler.sample_shape[-1]))
    pixels = _read_images(images, framing) if images else None
    holes = _read_images(masks, replace(framing, channels=1, background=WHITE))[..., 0] > 127 if masks else None
    return sampler.make_conditions(seeds, prompts, pixels, holes)


def _read_images(paths: Sequence[Path], framing: Framing) -> np.ndarray:
    """Pixels (B, H, W, C) of files, each read once."""
    read: dict[Path, np.ndarray] = {}
    for path in paths:
        if path not in read:
            if not path.is_file():
                raise FileNotFoundError(f"no image {path}")
            read[path] = FileImages(path.parent, [path]).pixels(0, framing)
    return np.stack([read[path] for path in paths])


def _read_row(line: str, sampler: Sampler) -> list[dict[str, Any]]:
    """The samples of a line, labels as numbers."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error})") from error
    required = {"label", "seed"} if sampler.net.num_classes else {"seed"}
    types = {"label": int, "seed": int, "count": int, **dict.fromkeys(sampler.request_keys, str)}
    if isinstance(row, dict) and isinstance(row.get("label"), str):
        row["label"] = (sampler.label_numbers([row["label"]]) or [0])[0]
    valid = isinstance(row, dict) and required <= row.keys() <= types.keys()
    if not valid or any(type(value) is not types[key] for key, value in row.items()) or row.get("count", 1) < 1:
        raise ValueError(
            f"expected whole numbers {' and '.join(sorted(required))}, count from 1 at will"
            f"{''.join(f', a text {key}' for key in sampler.request_keys)}; found {line[:80]}"
        )
    if not 0 <= row["seed"] < 2**63:
        raise ValueError(f"seed lies between 0 and 2**63 - 1, found {row['seed']}")
    return [{**row, "seed": row["seed"] + offset} for offset in range(row.get("count", 1))]
