"""`zoo list`."""

from __future__ import annotations

import shutil
import sys

from zoo.cli.helps import aligned
from zoo.cli.recipes import recipes
from zoo.common.systems import OVERRIDES, systems


def main() -> None:
    """List systems and recipes by name, a line each.

    The settings at the end are laid over a recipe: `zoo fit hifigan/base trainer/gpu`.
    """
    titles = {system.name: system.title for system in systems()} | {OVERRIDES: "settings to lay over a recipe"}
    listed = recipes()
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    width = max(len(recipe.name) for recipe in listed)
    for name, title in titles.items():
        print(f"{name}: {title}")
        rows = [(f"{each.name:<{width}}", each.title) for each in listed if each.name.partition("/")[0] == name]
        for line in aligned(rows):
            print(line if columns is None or len(line) <= columns else f"{line[: columns - 1]}…")
