"""Request files: what samples are asked for, a JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.common.foreign_files import read_lines
from zoo.flow.process.conditions import GenerationConditions

if TYPE_CHECKING:
    from zoo.flow.inference.sampler import Sampler

CONDITION_KEYS = ("prompt", "image", "mask")


def read_request_file(path: Path, sampler: Sampler) -> tuple[list[int] | None, list[int], GenerationConditions | None]:
    """Labels (None without classes), seeds and conditions of the samples of a request file; see `Sampler`."""
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
    conditions = sampler.read_conditions(seeds, prompts, files["image"], files["mask"])
    return labels if sampler.net.num_classes else None, seeds, conditions


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
    return [{**row, "seed": row["seed"] + offset} for offset in range(row.get("count", 1))]
