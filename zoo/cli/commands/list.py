"""`zoo list`."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.common.systems import first_comment, systems


def main() -> None:
    """List systems and recipes, a line each."""
    for system in systems():
        print(f"{system.name}: {system.title}")
        names = [_shown(recipe) for recipe in system.recipes]
        width = max(map(len, names), default=0)
        for name, recipe in zip(names, system.recipes, strict=True):
            print(f"  {name:<{width}}  {first_comment(recipe)}".rstrip())


def _shown(path: Path) -> str:
    """Name a file as the user would type it here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
