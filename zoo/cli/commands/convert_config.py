"""`zoo convert-config`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import yaml

from zoo.common.systems import find_system


def main(system: str, file: Path, output: Path | None = None) -> None:
    """Translate an original's configuration file into a recipe of ours.

    Keys without a counterpart are listed as comments of the recipe and on standard error.

    Args:
        system: which system's format, as `zoo list` names it.
        file: the original's configuration.
        output: the YAML file to write; standard output when None.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the system is unknown or translates no configurations.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    chosen = find_system(system)
    translate = None
    if chosen.has_converter:
        translate = getattr(importlib.import_module(f"{chosen.package}.convert"), "convert_config", None)
    if translate is None:
        raise ValueError(f"system {chosen.name!r} translates no configurations")
    recipe, unmapped = translate(file)
    lines = [f"# Translated from {file.name} by `zoo convert-config {chosen.name}`."]
    lines += [f"# not translated: {key}" for key in unmapped]
    text = "\n".join(lines) + "\n" + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    if output is None:
        print(text, end="")
    else:
        from zoo.common.atomic import write_atomic

        write_atomic(output, lambda stream: stream.write(text.encode()))
        print(f"{file} -> {output}", file=sys.stderr)
    for key in unmapped:
        print(f"not translated: {key}", file=sys.stderr)
