"""The systems of the zoo and of the user's own packages, and their recipes; reads sources, imports none of them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import NamedTuple

from zoo.common.registry import allowed_packages

PACKAGE = Path(__file__).parents[1]
OVERRIDES = "trainer"  # settings that recipes share, named like a system


class System(NamedTuple):
    """A package with a task, data, a converter and recipes."""

    name: str  # what users write, `hifigan`
    package: str  # dotted name to import, `zoo.hifigan`
    title: str  # first line of the package's docstring
    recipes: tuple[Path, ...]  # its YAML files, sorted by name
    has_converter: bool  # it reads an original's files (`convert.py` or a folder `convert`)


def recipe_root() -> Path:
    """Return the folder with one folder of recipes per system, of the wheel or the checkout."""
    for folder in (PACKAGE / "_configs", PACKAGE.parent / "configs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no recipes: neither {PACKAGE / '_configs'} nor {PACKAGE.parent / 'configs'} exists")


def list_systems() -> list[System]:
    """List the zoo's systems by name, then the user's own packages (`--allow-import`) with a converter or `configs`.

    ValueError for a package that is named like another system: recipes go by that name.
    """
    folders = [path.parent for path in sorted(PACKAGE.glob("*/__init__.py"))]
    packages = [(f"zoo.{folder.name}", folder, recipe_root() / folder.name) for folder in folders]
    packages += [(name, _package_folder(name), _package_folder(name) / "configs") for name in allowed_packages()]
    systems = [_read_system(*package) for package in packages if package[2].is_dir() or _has_converter(package[1])]
    by_name: dict[str, System] = {}
    for system in systems:
        if (other := by_name.setdefault(system.name, system)) is not system:
            raise ValueError(
                f"--allow-import {system.package}: {other.package} has the same last name; rename the package"
            )
    return systems


def recipe_paths() -> dict[str, Path]:
    """Return all recipes by name (`hifigan/smoke`), then the override files (`trainer/gpu`)."""
    recipes = {f"{system.name}/{path.stem}": path for system in list_systems() for path in system.recipes}
    overrides = sorted((recipe_root() / OVERRIDES).glob("*.yaml"))
    return recipes | {f"{OVERRIDES}/{path.stem}": path for path in overrides}


def get_system(name: str) -> System:
    """Return the system called `name`; ValueError lists the names where there is none."""
    systems = {system.name: system for system in list_systems()}
    if (key := name.replace("-", "_")) not in systems:
        names = ", ".join(systems)
        raise ValueError(f"no system {name!r}; systems: {names} (--allow-import adds those of your package)")
    return systems[key]


def first_comment(file: Path) -> str:
    """Return the text of a YAML file's first comment line, "" without one."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")


def _read_system(package: str, folder: Path, recipes: Path) -> System:
    source = folder / "__init__.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) if source.is_file() else None
    title = (docstring or "").partition("\n")[0]
    name = package.rpartition(".")[2]
    return System(name, package, title, tuple(sorted(recipes.glob("*.yaml"))), _has_converter(folder))


def _has_converter(folder: Path) -> bool:
    return (folder / "convert.py").is_file() or (folder / "convert" / "__init__.py").is_file()


def _package_folder(package: str) -> Path:
    """Find a package's folder; only the finder of its first name runs, no module of it."""
    top, *rest = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise FileNotFoundError(
            f"--allow-import {package}: there is no package {top!r}; is it installed, or on PYTHONPATH?"
        )
    locations = list(spec.submodule_search_locations or [])
    return Path(locations[0], *rest) if locations else Path(spec.origin or top)
