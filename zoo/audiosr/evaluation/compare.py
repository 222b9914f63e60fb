"""Comparing two checkpoints: which tensors of which component differ, and by how much."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from zoo.common import reports
from zoo.common.atomic_files import write_atomic
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.convert.tensor_names import strip_wrappers
from zoo.runs.checkpoints import find_checkpoint, load_checkpoint
from zoo.runs.components import WEIGHTS_NAME, is_export

WRAPPERS = ("state_dict", "model", "generator")  # keys below which other projects' files keep their weights


@dataclass(frozen=True)
class Difference:
    """How far apart two tensors of a name are."""

    name: str
    largest: float  # absolute difference; infinite where only one of them is finite
    relative: float  # root of the squared differences' sum over that of the first tensor's squares


@dataclass
class Component:
    """What was found in one component."""

    equal: int = 0  # tensors that are bitwise equal or within the tolerance
    different: list[Difference] = field(default_factory=list)  # the others, the most different first
    other_shape: list[str] = field(default_factory=list)  # names with both shapes
    only_first: list[str] = field(default_factory=list)
    only_second: list[str] = field(default_factory=list)


def compare(
    first: Path, second: Path, tolerance: float = 0.0, depth: int = 2, ema: bool = False
) -> dict[str, Component]:
    """Compare two files tensor by tensor; arguments as of `compare_files`.

    Returns:
        Findings by component, in the order of the first file.

    Raises:
        FileNotFoundError: there is nothing at a path.
        ValueError: a file is torn or holds no tensors, or the two share no name.
    """
    ours, theirs = read_tensors(first, ema), read_tensors(second, ema)
    if not ours.keys() & theirs.keys():
        raise ValueError(
            f"{first} and {second} share no tensor: {next(iter(ours))} against {next(iter(theirs))}; convert one of "
            "them first"
        )
    found: dict[str, Component] = {}
    for name in dict.fromkeys([*ours, *theirs]):
        key = ".".join(name.split(".")[:-1][:depth]) or name
        part = found.setdefault(key, Component())
        if name not in theirs:
            part.only_first.append(name)
        elif name not in ours:
            part.only_second.append(name)
        elif ours[name].shape != theirs[name].shape:
            part.other_shape.append(f"{name} {tuple(ours[name].shape)} against {tuple(theirs[name].shape)}")
        elif (difference := _difference(name, ours[name], theirs[name])).largest > tolerance:
            part.different.append(difference)
        else:
            part.equal += 1
    for part in found.values():
        part.different.sort(key=lambda difference: (-difference.largest, -difference.relative))
    return found


def read_tensors(path: Path, ema: bool = False) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU; nothing that it holds is executed.

    Prefixes of torch.compile and DataParallel are taken off.

    Args:
        ema: averaged weights in the place of those that have an average.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: the file is torn or holds no tensors.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if is_export(path):
        content: Any = load_file(path / WEIGHTS_NAME)
    elif path.is_dir() or path.suffix == ".ckpt":
        content = load_checkpoint(find_checkpoint(path))
    else:
        content = load_foreign_checkpoint(path)
    outer = content if isinstance(content, Mapping) else {}
    wrapper = next((key for key in WRAPPERS if any(_tensors(outer.get(key)))), None)
    state = dict(_tensors(content if wrapper is None else outer[wrapper]))
    if ema and isinstance(averages := outer.get("ema"), Mapping):
        state |= dict(_tensors(averages.get("shadow", averages)))
    if not state:
        raise ValueError(f"{path}: holds no tensors")
    return state


def _tensors(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _tensors(entry, f"{prefix}.{strip_wrappers(key)}" if prefix else strip_wrappers(key))


def summary(found: Mapping[str, Component], most: int = 5) -> str:
    """A table of the findings that names the first `most` tensors of each component."""
    width = max(map(len, found)) + 2
    lines = [f"{'component':<{width}}{'equal':>7}{'differ':>8}{'missing':>9}  largest     relative"]
    for name, part in found.items():
        missing = {title: getattr(part, title) for title in ("only_first", "only_second", "other_shape")}
        figures = ""
        if part.different:
            figures = f"  {part.different[0].largest:<10.3g}  {max(d.relative for d in part.different):.3g}"
        count = sum(map(len, missing.values()))
        lines.append(f"{name:<{width}}{part.equal:>7}{len(part.different):>8}{count:>9}{figures}")
        lines += [f"    {d.name}  {d.largest:.3g} ({d.relative:.3g})" for d in part.different[:most]]
        for title, names in missing.items():
            if names:
                lines.append(f"    {title.replace('_', ' ')}: {', '.join(names[:most])}{', …' * (len(names) > most)}")
    return "\n".join(lines)


def _difference(name: str, first: Tensor, second: Tensor) -> Difference:
    if torch.equal(first, second):
        return Difference(name, 0.0, 0.0)
    one, two = first.double(), second.double()
    same = (one == two) | (one.isnan() & two.isnan())
    gap = torch.where(same, 0.0, one - two)  # inf - inf would be NaN
    largest = float(gap.abs().nan_to_num(nan=math.inf).max())
    relative = float(gap.norm() / one[one.isfinite()].norm().clamp_min(torch.finfo(torch.float64).tiny))
    return Difference(name, largest, relative if math.isfinite(largest) else math.inf)


def compare_files(
    first: Path,
    second: Path,
    tolerance: float = 0.0,
    depth: int = 2,
    most: int = 5,
    ema: bool = False,
    output: Path | None = None,
) -> None:
    """Tell which tensors of two checkpoints differ, component by component, and by how much.

    Args:
        first: run folder, checkpoint or export, safetensors, or an original's file.
        second: likewise.
        tolerance: absolute difference that still counts as equal.
        depth: parts of a tensor's name that make its component.
        most: different tensors to name for each component.
        ema: compare averaged weights, where they are there.
        output: JSON file for all findings.
    """
    found = compare(first, second, tolerance, depth, ema)
    print(summary(found, most))
    if output is not None:
        text = json.dumps(reports.replace_non_finite({name: asdict(part) for name, part in found.items()}), indent=1)
        write_atomic(output, lambda file: file.write(text.encode()))
        print(f"wrote {output}")
