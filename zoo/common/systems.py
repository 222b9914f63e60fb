"""The systems of the zoo and of the user's own packages, and their recipes; reads sources, imports none of them."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from zoo.common.registry import allowed_packages

PACKAGE = Path(__file__).parents[1]
OVERRIDES = "trainer"  # settings that recipes share, named like a system
# Packages of the zoo that serve every system.
SHARED = ("audio", "cli", "common", "convert", "runs", "training", "ui")


@dataclass(frozen=True)
class System:
    """A package with a task, data, a converter and recipes.

    Args:
        name: what users write, `hifigan`.
        package: dotted name to import, `zoo.hifigan`.
        title: first line of the package's docstring.
        recipes: its YAML files, sorted by name.
    """

    name: str
    package: str
    title: str
    recipes: tuple[Path, ...]

    @property
    def has_converter(self) -> bool:
        """Whether the package reads an original's files (`convert.py` or a folder `convert`)."""
        return _converts(_folder_of(self.package))


def recipe_root() -> Path:
    """Return the folder with one folder of recipes per system.

    Raises:
        FileNotFoundError: neither the wheel's recipes nor those of a checkout are there.
    """
    for folder in (PACKAGE / "_configs", PACKAGE.parent / "configs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no recipes: neither {PACKAGE / '_configs'} nor {PACKAGE.parent / 'configs'} exists")


def list_systems() -> list[System]:
    """List all systems.

    Returns:
        The zoo's by name, then the user's own admitted packages (`--allow-import`) that have a converter or a folder
        `configs`.

    Raises:
        FileNotFoundError: a package is not installed.
    """
    found = []
    for folder in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        recipes = recipe_root() / folder.name
        if folder.name not in SHARED and (_converts(folder) or recipes.is_dir()):
            found.append(_system(f"zoo.{folder.name}", folder, recipes))
    for package in allowed_packages():
        folder = _folder_of(package)
        if _converts(folder) or (folder / "configs").is_dir():
            found.append(_system(package, folder, folder / "configs"))
    return found


def recipe_paths() -> dict[str, Path]:
    """All recipes by name (`hifigan/smoke`), then the override files (`trainer/gpu`)."""
    found = {f"{system.name}/{path.stem}": path for system in list_systems() for path in system.recipes}
    shared = sorted((recipe_root() / OVERRIDES).glob("*.yaml"))
    return found | {f"{OVERRIDES}/{path.stem}": path for path in shared}


def _converts(folder: Path) -> bool:
    return (folder / "convert.py").is_file() or (folder / "convert" / "__init__.py").is_file()


def get_system(name: str) -> System:
    """Return the system called `name`.

    Raises:
        ValueError: there is none; the message lists the known names.
    """
    known = {system.name: system for system in list_systems()}
    if name.replace("-", "_") not in known:
        raise ValueError(f"no system {name!r}; systems: {', '.join(known)} (--allow-import adds those of your package)")
    return known[name.replace("-", "_")]


def first_comment(file: Path) -> str:
    """Return the text of a YAML file's first comment line, "" without one."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            return line.lstrip("# ").strip()
    return ""


def _system(package: str, folder: Path, recipes: Path) -> System:
    source = folder / "__init__.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) if source.is_file() else None
    title = (docstring or "").split("\n")[0]
    return System(package.rpartition(".")[2], package, title, tuple(sorted(recipes.glob("*.yaml"))))


def _folder_of(package: str) -> Path:
    """Find a package's folder; only the finder of its first name runs, no module of it."""
    top, *rest = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise FileNotFoundError(
            f"--allow-import {package}: there is no package {top!r}; is it installed, or on PYTHONPATH?"
        )
    places = list(spec.submodule_search_locations or [])
    return Path(places[0], *rest) if places else Path(spec.origin or top)
