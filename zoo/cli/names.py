"""Names on a command line: recipes, and the nearest ones to a name that is none."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from zoo.common.options import CONFIG_OPTIONS, SETTINGS_SUFFIXES
from zoo.common.systems import first_comment, recipe_root, systems

FRAGMENTS = "trainer"  # settings that recipes share, named like a system
FLAGS = ("-h", "--help", "--print_config")  # take no value
SHOWN = 12  # names in an error


class NoRecipeError(FileNotFoundError):
    """A name or path for which there is no recipe."""

    exit_code = 2


class Recipe(NamedTuple):
    """A file of settings that has a name.

    Args:
        name: `hifigan/smoke`; `trainer/gpu` for settings to be laid over a recipe.
    """

    name: str
    path: Path

    @property
    def title(self) -> str:
        """Its first comment."""
        return first_comment(self.path)


def recipes() -> list[Recipe]:
    """All recipes of the zoo and of the admitted packages, then the settings that are laid over them."""
    found = [Recipe(f"{system.name}/{path.stem}", path) for system in systems() for path in system.recipes]
    shared = sorted((recipe_root() / FRAGMENTS).glob("*.yaml"))
    return [*found, *(Recipe(f"{FRAGMENTS}/{path.stem}", path) for path in shared)]


def find_recipe(name: str) -> Path:
    """The file that a path or a recipe's name stands for.

    Raises:
        NoRecipeError: with the nearest names.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = {recipe.name: recipe.path for recipe in recipes()}
    if name in known:
        return known[name]
    if path.is_dir():
        raise NoRecipeError(f"{name} is a folder, expected a recipe or a YAML file; --ckpt_path takes runs")
    if path.suffix in SETTINGS_SUFFIXES:
        beside = [str(file) for file in path.parent.glob("*") if file.suffix in SETTINGS_SUFFIXES]
        raise NoRecipeError(f"{name}: no such file{near(name, [*beside, *known])}")
    raise NoRecipeError(f"no recipe {name!r}{near(name, known)} (`zoo list` shows all)")


def recipes_named(args: list[str]) -> list[str]:
    """Put the files of recipes in the place of their names: `hifigan/smoke`, `--config hifigan/smoke`.

    Raises:
        NoRecipeError: with the nearest names.
    """
    named = []
    for option, value, joined in pairs(args):
        if option in ("", *CONFIG_OPTIONS) and value is not None:
            path = str(find_recipe(value))
            named += [f"{option}={path}"] if joined else [option or CONFIG_OPTIONS[0], path]
        else:
            named += [f"{option}={value}"] if joined else [option] if value is None else [option, value]
    return named


def pairs(args: Sequence[str]) -> Iterator[tuple[str, str | None, bool]]:
    """The options of a command line with their values: option ("" for a word of its own), value, written with "="."""
    pending = list(args)
    while pending:
        word = pending.pop(0)
        if not word.startswith("-"):
            yield "", word, False
            continue
        option, joined, value = word.partition("=")
        if joined:
            yield option, value, True
        elif option == "--help" and pending[:1] == ["all"]:
            yield option, pending.pop(0), False
        elif option in FLAGS or not pending or (pending[0].startswith("--") and len(pending[0]) > 2):
            yield option, None, False
        else:
            yield option, pending.pop(0), False


def near(name: str, known: Collection[str]) -> str:
    """The question whether the nearest of the known names was meant, "" where none is near."""
    found = [each for each in known if each.startswith((f"{name}/", f"{name} "))] or difflib.get_close_matches(
        name, known, n=3, cutoff=0.6
    )
    return f": did you mean {' or '.join(found)}?" if found else ""


def listed(known: Collection[str]) -> str:
    """Some names for an error, the rest counted."""
    shown = list(known)[:SHOWN]
    more = len(known) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
