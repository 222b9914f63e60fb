"""`zoo convert`."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from zoo.common.systems import find_system


def main(system: str, source: Path, target: Path, *, backbone: Path | None = None, allow_partial: bool = False) -> None:
    """Convert an original's checkpoint to ours, or ours to the original's format.

    Pickled code in the source is never executed; the direction follows from the source. Which options a system has, its
    `convert` declares as arguments of the same names.

    Args:
        system: which system's formats, as `zoo list` names it.
        source: the file or folder to read.
        target: the file or folder to write.
        backbone: folder of the frozen backbone, for systems whose files need one.
        allow_partial: pass over members of an ensemble whose files are missing, for systems that have members.

    Raises:
        FileNotFoundError: there is no source.
        ValueError: the system is unknown or has no converter or no such option, or the source is none of its formats.
    """
    chosen = find_system(system)
    if not source.exists():
        raise FileNotFoundError(f"{source}: no such file or folder")
    if not chosen.has_converter:
        raise ValueError(f"system {chosen.name!r} has no converter ({chosen.package}.convert does not exist)")
    convert = importlib.import_module(f"{chosen.package}.convert").convert
    given = {"backbone": backbone, "allow_partial": allow_partial}
    options = {name: value for name, value in given.items() if value}
    known = inspect.signature(convert).parameters
    for name in options:
        if name not in known:
            raise ValueError(f"--{name}: the converter of {chosen.name!r} has no such option; leave it out")
    report = convert(source, target, **options)
    print(f"{source} -> {target}")
    width = max(map(len, report), default=0)
    for key, value in report.items():
        shown = ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple | set) else value
        print(f"  {key:<{width}}  {shown}")
