"""Recipes on a command line: find them by name, merge their files, split options from values.

Nothing here imports torch, so a wrong name, file or section is answered at once.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.cli.options import CONFIG_OPTIONS, SETTINGS_SUFFIXES
from zoo.common.systems import first_comment, recipe_paths

GROUPS = ("trainer", "checkpoints", "samples", "wandb", "terminal")  # mappings of a config
CLASSES = ("model", "data")  # a class and its arguments
VALUES = ("seed_everything", "loggers", "init_from", "init_from_min_matched", "ckpt_path")
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
FLAGS = ("-h", "--help", "--print_config")  # take no value
MAX_NAMES = 12  # names in an error


class WrongNameError(ValueError):
    """A name that nothing has, or a value that nothing takes."""

    exit_code = 2


class NoRecipeError(FileNotFoundError):
    """A name or path for which there is no recipe."""

    exit_code = 2


class Recipe(NamedTuple):
    """A file of settings that has a name.

    Args:
        name: `hifigan/smoke`; `trainer/gpu` for an override file.
    """

    name: str
    path: Path

    @property
    def title(self) -> str:
        """Its first comment."""
        return first_comment(self.path)


def recipes() -> list[Recipe]:
    """List all recipes of the zoo and of the admitted packages, then the override files."""
    return [Recipe(name, path) for name, path in recipe_paths().items()]


def find_recipe(name: str) -> Path:
    """The file that a path or a recipe's name stands for.

    Raises:
        NoRecipeError: with the nearest names.
    """
    path = Path(name)
    if path.is_file():
        return path
    candidates = recipe_paths()
    if name in candidates:
        return candidates[name]
    if "=" in name:
        raise NoRecipeError(f"no recipe {name!r}; an option begins with two dashes: --{name}")
    if path.is_dir():
        raise NoRecipeError(f"{name} is a folder, expected a recipe or a YAML file; --ckpt_path takes runs")
    if path.suffix in SETTINGS_SUFFIXES:
        siblings = [str(file) for file in path.parent.glob("*") if file.suffix in SETTINGS_SUFFIXES]
        raise NoRecipeError(f"{name}: no such file{nearest_names(name, [*siblings, *candidates])}")
    raise NoRecipeError(f"no recipe {name!r}{nearest_names(name, candidates)} (`zoo list` shows all)")


def replace_recipe_names(args: list[str]) -> list[str]:
    """Replace names of recipes by their files: `hifigan/smoke`, `--config hifigan/smoke`.

    Raises:
        NoRecipeError: with the nearest names.
    """
    named = []
    for option, value, joined in split_arguments(args):
        if option in ("", *CONFIG_OPTIONS) and value is not None:
            path = str(find_recipe(value))
            named += [f"{option}={path}"] if joined else [option or CONFIG_OPTIONS[0], path]
        else:
            named += [f"{option}={value}"] if joined else [option] if value is None else [option, value]
    return named


def split_arguments(args: Sequence[str]) -> Iterator[tuple[str, str | None, bool]]:
    """Split a command line into (option, value, whether they are joined by "="); the option of a lone word is ""."""
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


def nearest_names(name: str, candidates: Collection[str]) -> str:
    """The question whether the nearest of the known names was meant, "" where none is near."""
    matches = [each for each in candidates if each.startswith((f"{name}/", f"{name} "))] or difflib.get_close_matches(
        name, candidates, n=3, cutoff=0.6
    )
    return f": did you mean {' or '.join(matches)}?" if matches else ""


def shorten_list(candidates: Collection[str]) -> str:
    """Some names for an error, the rest counted."""
    listed = list(candidates)[:MAX_NAMES]
    more = len(candidates) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")


def read_files(args: Sequence[str]) -> tuple[list[tuple[Path, dict[str, Any]]], list[str]]:
    """Read the files of settings that a command line names: by `--config`, or for a section by `--data FILE.yaml`.

    Args:
        args: after `replace_recipe_names`.

    Returns:
        The files in their order with what they say, and the other arguments.

    Raises:
        WrongNameError: for a section that a config has not, and for an option that belongs to none.
        ConfigFileError: for a file that is no mapping, or holds a key twice.
        FileNotFoundError: for a file that is not there.
    """
    from zoo.common.configs import load_recipe, read_mapping  # OmegaConf: help need not wait for it

    files: list[tuple[Path, dict[str, Any]]] = []
    options: list[str] = []
    for option, value, joined in split_arguments(args):
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
    """Merge all files of a command line; see `read_files`.

    Returns:
        One config, empty without files, and the other arguments.
    """
    from zoo.common.configs import merge

    files, options = read_files(args)
    return functools.reduce(merge, [content for _, content in files], {}), options


def compose_arguments(args: Sequence[str]) -> list[str]:
    """Put one `--config` with the text of all files before the other options, which win wherever they stand."""
    from zoo.common.configs import dump_yaml

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
        candidates = [".".join([f"--{name}", *rest]) for name in (*GROUPS, *CLASSES, *(() if rest else VALUES))]
        raise WrongNameError(
            f"unknown option {option}{nearest_names(option, candidates)} (`--help all` shows every option)"
        )


def check_layout(content: Mapping[str, Any], path: Path) -> None:
    """Refuse what the parser would pass over or report as something else.

    That is: unknown sections, also empty ones; text where a section is expected; keys next to `class_path` that belong
    in `init_args`.

    Raises:
        WrongNameError: naming the file and the key.
    """
    candidates = (*GROUPS, *CLASSES, *VALUES)
    for key, value in content.items():
        if key not in candidates:
            keys = shorten_list(sorted(candidates))
            raise WrongNameError(f"{path}: unknown key {key}{nearest_names(str(key), candidates)} (keys: {keys})")
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
                f'{path}: unknown key "{place}{stray[0]}" next to class_path; arguments of a class belong in init_args'
            )
        for key, value in node.items():
            pending += [(f"{place}{key}.", item) for item in (value if isinstance(value, list) else [value])]
