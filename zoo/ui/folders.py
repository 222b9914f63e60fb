"""The folders of the page; runs, recipes, data sets and uploads are known by name and found in lists."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from zoo.common.systems import System, list_systems, recipe_root
from zoo.runs.checkpoints import find_checkpoints

CONSOLE_NAME = "console.log"
CHANGES_NAME = "changes.yaml"
MEDIA_TYPES = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".gif": "image/gif",
}
MAX_NAME = 1024  # characters of a relative path
MAX_STEM = 50  # characters of an upload's name, four bytes each at most


def resolve_below(root: Path, name: str) -> Path:
    """Return the path of a name below a folder, when it stays there with links followed; ValueError otherwise."""
    path = root / name
    try:
        with contextlib.suppress(FileNotFoundError):
            path.resolve(strict=True)  # from Python 3.13 on the other call takes loops as they are
        inside = len(name) <= MAX_NAME and root.resolve() in path.resolve().parents
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a zero byte
        inside = False
    if not inside:
        raise ValueError(f"{name[:80]!r} is not below {root}")
    return path


@dataclass(frozen=True)
class Folders:
    """The folders of one server, all absolute."""

    work: Path  # where commands run
    runs: Path  # root of the run folders
    data: Path  # its sub-folders are offered as data sets
    temp: Path  # for uploads and results; removed when the server ends

    def systems(self) -> dict[str, System]:
        """Return the systems with recipes by name."""
        return {system.name: system for system in list_systems() if system.recipes}

    def recipes(self, system: str) -> dict[str, Path]:
        """Return a system's recipes by name."""
        return {recipe.stem: recipe.absolute() for recipe in self.systems()[system].recipes}

    def machine_presets(self) -> dict[str, Path]:
        """Return the overrides for kinds of machines (`configs/trainer`) by name."""
        return {file.stem: file.absolute() for file in sorted((recipe_root() / "trainer").glob("*.yaml"))}

    def data_sets(self) -> dict[str, Path]:
        """Return the folders below `data`, two levels deep, by name."""
        folders = sorted([*self.data.glob("*/"), *self.data.glob("*/*/")])
        names = {folder.relative_to(self.data).as_posix(): folder for folder in folders if folder.is_dir()}
        return {name: folder for name, folder in names.items() if name.isprintable()}  # a page cannot show other bytes

    def run(self, name: str) -> Path:
        """Return a run's folder; ValueError when there is none."""
        folder = resolve_below(self.runs, name)
        if not folder.is_dir():
            raise ValueError(f"there is no run {name[:80]!r}")
        return folder

    def checkpoint(self, run: str, name: str) -> Path:
        """Return a run's folder for the name "", else its checkpoint of that name; ValueError when there is none."""
        if not name:
            return self.run(run)
        for path in find_checkpoints(self.run(run)):
            if path.name == name:
                return path
        raise ValueError(f"{run} has no checkpoint {name[:80]!r}")

    def store_upload(self, name: str, content: IO[bytes]) -> str:
        """Store an uploaded file under a harmless name with its suffix; returns the key that stands for it."""
        stem, suffix = (re.sub(r"\W+", "_", part).strip("_") for part in (Path(name).stem, Path(name).suffix))
        key = secrets.token_hex(8)
        path = self.temp / "uploads" / key / f"{stem[:MAX_STEM] or 'upload'}{f'.{suffix[:8]}' if suffix else ''}"
        path.parent.mkdir(parents=True)
        with path.open("xb") as file:
            shutil.copyfileobj(content, file)
        return key

    def upload(self, key: str) -> Path:
        """Return the file that a key stands for; ValueError when there is none."""
        for path in resolve_below(self.temp / "uploads", key).glob("*"):
            return path
        raise ValueError("the upload is gone: upload the file again")

    def delete_uploads(self, keys: Collection[str]) -> None:
        """Delete uploaded files by their keys."""
        for folder in (self.temp / "uploads").glob("*/"):
            if folder.name in keys:
                shutil.rmtree(folder, ignore_errors=True)

    def relative(self, path: Path) -> str:
        """Return a path as a command in the working folder takes it."""
        return str(path.relative_to(self.work) if path.is_relative_to(self.work) else path)
