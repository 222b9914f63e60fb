"""What the page may touch: systems, recipes, runs and checkpoints by name, never by a path that the page sends."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from zoo.common.systems import System, list_systems, recipe_root
from zoo.runs.run_info import is_run
from zoo.ui.checks import Rules

CONSOLE_NAME = "console.log"
CHANGES_NAME = "changes.yaml"
RECORD_NAME = "process.json"

Chosen = TypeVar("Chosen")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return a name that is safe as one part of a path.

    Raises:
        ValueError: it is not made of 1 to 64 of the characters A-Z a-z 0-9 . _ - or begins with a dot.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{str(name)[:80]!r} is no name: expected 1 to 64 of A-Z a-z 0-9 . _ -, no dot at the start")
    return name


@dataclass(frozen=True)
class Places:
    """The folders of one server, all absolute.

    Args:
        work: where commands run, so that relative paths in recipes mean what they mean on the command line.
        runs: root of the run folders, `<system>/<recipe>/<time>` each.
        data: the folder of data sets that the page offers.
    """

    work: Path
    runs: Path
    temp: Path
    data: Path

    def rules(self) -> Rules:
        """What a user may say in a config: paths lead below `data` and `runs` only."""
        return Rules(self.work, (self.data, self.runs))

    def systems(self) -> dict[str, System]:
        """Systems with recipes, by name."""
        return {system.name: system for system in list_systems() if system.recipes}

    def recipes(self, system: str) -> dict[str, Path]:
        """A system's recipes by name.

        Raises:
            ValueError: there is no such system.
        """
        return {recipe.stem: recipe.absolute() for recipe in choose(self.systems(), system, "system").recipes}

    def recipe(self, system: str, name: str) -> Path:
        """A recipe's file.

        Raises:
            ValueError: there is no such system or recipe.
        """
        return choose(self.recipes(system), name, "recipe")

    def fragments(self) -> dict[str, Path]:
        """The fragments for kinds of machines (`configs/trainer`) by name."""
        return {file.stem: file.absolute() for file in sorted((recipe_root() / "trainer").glob("*.yaml"))}

    def data_folders(self) -> dict[str, Path]:
        """Folders of data sets by their name below `data`, two levels deep."""
        found = {}
        for folder in sorted([*self.data.glob("*/"), *self.data.glob("*/*/")]):
            parts = folder.relative_to(self.data).parts
            if folder.is_dir() and all(_NAME.fullmatch(part) for part in parts):
                found["/".join(parts)] = folder
        return found

    def list_runs(self) -> list[str]:
        """Names of all runs, `<system>/<recipe>/<time>`, the newest first."""
        found = []
        for folder in self.runs.glob("*/*/*/"):
            parts = folder.relative_to(self.runs).parts
            if (
                all(_NAME.fullmatch(part) for part in parts)
                and (is_run(folder) or any((folder / name).is_file() for name in (CONSOLE_NAME, RECORD_NAME)))
                and self._inside(folder)
            ):
                found.append(("/".join(parts), folder.stat().st_mtime))
        return [name for name, _ in sorted(found, key=lambda entry: (-entry[1], entry[0]))]

    def run(self, name: str) -> Path:
        """A run's folder.

        Raises:
            ValueError: the name is none of a run below `runs`.
        """
        parts = [check_name(part) for part in str(name).split("/")]
        folder = self.runs.joinpath(*parts)
        if len(parts) != 3 or not folder.is_dir() or not self._inside(folder):
            raise ValueError(f"there is no run {name!r}")
        return folder

    def new_run(self, system: str, recipe: str) -> str:
        """Make a fresh run folder and return its name."""
        stamp, number = time.strftime("%Y%m%d-%H%M%S"), 1
        while True:
            name = "/".join((check_name(system), check_name(recipe), stamp if number == 1 else f"{stamp}-{number}"))
            try:
                (self.runs / name).mkdir(parents=True)
            except FileExistsError:
                number += 1
                continue
            return name

    def checkpoints(self, run: str) -> list[str]:
        """Names of a run's checkpoints, the newest first."""
        found = [path for path in self.run(run).glob("*.ckpt") if _NAME.fullmatch(path.name)]
        return [path.name for path in sorted(found, key=lambda path: -path.stat().st_mtime)]

    def checkpoint(self, run: str, name: str) -> Path:
        """A checkpoint's file (a folder under sharding strategies).

        Raises:
            ValueError: the run holds none of that name.
        """
        return self.run(run) / choose({entry: entry for entry in self.checkpoints(run)}, name, "checkpoint")

    def weights(self) -> dict[str, Path]:
        """All checkpoints of all runs, by `<run>/<file>`."""
        return {f"{run}/{name}": self.runs / run / name for run in self.list_runs() for name in self.checkpoints(run)}

    def _inside(self, folder: Path) -> bool:
        return folder.resolve().is_relative_to(self.runs.resolve())


def choose(known: Mapping[str, Chosen], name: str, kind: str) -> Chosen:
    """What is known under a name.

    Raises:
        ValueError: nothing is.
    """
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"there is no {kind} {str(name)[:80]!r}")
    return known[name]
