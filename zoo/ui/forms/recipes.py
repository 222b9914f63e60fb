"""What a recipe does, needs and takes, for who chooses one."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.common.environment import available_cores
from zoo.runs.run_info import RunInfo, trained_seconds
from zoo.ui.forms.values import flatten

_VARIABLE = re.compile(r"\$\{oc\.env:([A-Z_][A-Z0-9_]*)(?:,([^}]*))?\}")
ENOUGH_STEPS = 3  # of a former run, to tell how long one takes


def comment_of(file: Path) -> str:
    """The comment at a recipe's head, its lines joined."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    return " ".join(lines)


@dataclass(frozen=True)
class Need:
    """A file or folder that a recipe reads.

    Args:
        path: as the config gives it.
        is_there: seen from where trainings run.
    """

    key: str
    path: str
    is_there: bool


def needs(contents: Iterable[Mapping[str, Any]], edits: Mapping[str, Any], work: Path) -> list[Need]:
    """What config files read besides themselves: the keys that lead somewhere by `${oc.env:...}`.

    Args:
        contents: of the files, as written.
        edits: values that stand in their place, by key.
    """
    wanted: dict[str, Any] = {}
    for content in contents:
        for key, value in flatten(content).items():
            if isinstance(value, str) and _VARIABLE.search(value):
                wanted[key] = _VARIABLE.sub(lambda found: os.environ.get(found[1], found[2] or ""), value)
            else:
                wanted.pop(key, None)
    wanted |= {key: edits[key] for key in wanted.keys() & edits.keys()}
    return [Need(key, path, (work / path).exists()) for key, path in wanted.items() if isinstance(path, str) and path]


@dataclass(frozen=True)
class FormerRun:
    """How fast a run of a recipe was on this machine.

    Args:
        seconds: that a batch took, validations and all else shared out.
    """

    run: str
    seconds: float


def former_run_of(runs: Sequence[RunInfo], recipe: str) -> FormerRun | None:
    """The pace of the newest run of `<system>/<recipe>` that went on for a while; None without one."""
    for run in sorted(runs, key=lambda run: -run.changed):
        if run.recipe == recipe and run.step >= ENOUGH_STEPS:
            seconds = trained_seconds(run.folder)
            if seconds:
                return FormerRun(run.name, seconds / run.step)
    return None


def device_of(accelerator: Any, gpus: Collection[str]) -> tuple[str, bool]:
    """Which device a training would use, in words, and whether this machine has it.

    Args:
        accelerator: `trainer.accelerator`.
        gpus: names of those that this machine shows.
    """
    cpu = f"the CPU ({available_cores()} cores)"
    if accelerator == "cpu":
        return cpu, True
    if gpus:
        return f"the GPU ({', '.join(gpus)})", True
    if accelerator in (None, "auto"):
        return f"{cpu}; it would take a GPU, and this machine shows none", True
    return f"a device of kind {accelerator}, and this machine shows none", False
