"""What a command line says before it is parsed: names of recipes, files that are laid over one another, options.

Nothing here imports torch, so a wrong name, file or section is answered at once.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.common.options import CONFIG_OPTIONS, SETTINGS_SUFFIXES
from zoo.common.systems import first_comment, recipe_paths

GROUPS = ("trainer", "checkpoints", "samples", "wandb", "terminal")  # mappings of a config
CLASSES = ("model", "data")  # a class and its arguments
VALUES = ("seed_everything", "loggers", "init_from", "init_from_min_matched", "ckpt_path")
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
FLAGS = ("-h", "--help", "--print_config")  # take no value
SHOWN = 12  # names in an error


class WrongNameError(ValueError):
    """A name that nothing has, or a value that nothing takes."""

    exit_code = 2


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
    return [Recipe(name, path) for name, path in recipe_paths().items()]


def find_recipe(name: str) -> Path:
    """The file that a path or a recipe's name stands for.

    Raises:
        NoRecipeError: with the nearest names.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = recipe_paths()
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


def read_files(args: Sequence[str]) -> tuple[list[tuple[Path, dict[str, Any]]], list[str]]:
    """Read the files of settings that a command line names: by `--config`, or for a section by `--data FILE.yaml`.

    Args:
        args: after `recipes_named`.

    Returns:
        The files in their order with what they say, and the other arguments.

    Raises:
        WrongNameError: for a section that a config has not, and for an option that belongs to none.
        ConfigFileError: for a file that is no mapping, or holds a key twice.
        FileNotFoundError: for a file that is not there.
    """
    from zoo.common.reading.configs import load_recipe, read_mapping  # OmegaConf: help need not wait for it

    files: list[tuple[Path, dict[str, Any]]] = []
    options: list[str] = []
    for option, value, joined in pairs(args):
        section = option.removeprefix("--")
        if option in CONFIG_OPTIONS and value is not None:
            path = find_recipe(value)
            files.append((path, load_recipe(path)))
        elif section in (*GROUPS, *CLASSES) and value and value.endswith(SETTINGS_SUFFIXES) and Path(value).is_file():
            files.append((Path(value), {section: read_mapping(Path(value))}))
        else:
            check_option(option)
            options += [f"{option}={value}"] if joined else [word for word in (option, value) if word]
    for path, content in files:
        check_layout(content, path)
    return files, options


def compose_config(args: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Lay all files of a command line over one another; see `read_files`.

    Returns:
        One config, empty without files, and the other arguments.
    """
    from zoo.common.reading.configs import merge

    files, options = read_files(args)
    return functools.reduce(merge, [content for _, content in files], {}), options


def compose_arguments(args: Sequence[str]) -> list[str]:
    """Put one `--config` with the text of all files before the other options, which win wherever they stand."""
    from zoo.common.reading.text import dump_yaml

    config, options = compose_config(args)
    return [f"--config={dump_yaml(config)}", *options] if config else options


def check_option(option: str) -> None:
    """Refuse an option of fit, validate or test that belongs to no section.

    Raises:
        WrongNameError: with the nearest.
    """
    first, *rest = option.removeprefix("--").removesuffix("+").split(".")
    if not option.startswith("--") or first in (*GROUPS, *CLASSES):
        return
    if rest or first not in (*VALUES, "config", "print_config", "help"):
        known = [".".join([f"--{name}", *rest]) for name in (*GROUPS, *CLASSES, *(() if rest else VALUES))]
        raise WrongNameError(f"unknown option {option}{near(option, known)} (`--help all` shows every option)")


def check_layout(content: Mapping[str, Any], path: Path) -> None:
    """Refuse what the parser would pass over or report as something else.

    Unknown sections, also empty ones; a text in the place of a section; keys beside a `class_path` that belong below
    its `init_args`.

    Raises:
        WrongNameError: naming the file and the key.
    """
    known = (*GROUPS, *CLASSES, *VALUES)
    for key, value in content.items():
        if key not in known:
            raise WrongNameError(f"{path}: unknown key {key}{near(str(key), known)} (keys: {listed(sorted(known))})")
        if key in GROUPS and not isinstance(value, Mapping):
            raise WrongNameError(f'{path}: "{key}" is {value!r}, expected a mapping; name other files by --config')
    pending: list[tuple[str, Any]] = [("", content)]
    while pending:
        place, node = pending.pop()
        if not isinstance(node, Mapping):
            continue
        stray = [str(key) for key in node if key not in CLASS_KEYS]
        if "class_path" in node and stray:
            raise WrongNameError(
                f'{path}: unknown key "{place}{stray[0]}" beside class_path; arguments of a class go below init_args'
            )
        for key, value in node.items():
            pending += [(f"{place}{key}.", item) for item in (value if isinstance(value, list) else [value])]
