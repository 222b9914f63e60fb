"""Recipes on a command line: find them by name, merge their files, split options from values.

Nothing here imports torch, so a wrong name, file or section is answered at once.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.common.configs import dump_yaml, merge, read_mapping, read_recipe, resolve_additions
from zoo.common.foreign_files import iterate_keys
from zoo.common.systems import recipe_paths

GROUPS = ("trainer", "checkpoints", "samples", "wandb", "terminal")  # mappings of a config
CLASSES = ("model", "data")  # a class and its arguments
TOP_LEVEL = {  # the other keys, with what they mean
    "seed_everything": "of weights and training; data.seed is that of the data's order and augmentation",
    "loggers": "beside metrics.csv, which is always written",
    "init_from": "start from these weights: our checkpoint, an export, hf://user/name, an original's file, or a list",
    "init_from_min_matched": "share of the tensors that must match",
    "ckpt_path": "a checkpoint, a run folder, `last` (newest run), or for fit `auto` (last if there is one)",
}
SECTIONS = (*GROUPS, *CLASSES, *TOP_LEVEL)
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
FLAGS = ("-h", "--help", "--print_config", "-q", "--quiet", "-v", "--verbose")  # take no value, or one after "="
CONFIG_OPTIONS = ("--config", "-c")
SETTINGS_SUFFIXES = (".yaml", ".yml", ".json")
MAX_NAMES = 12  # names in an error
MAX_HINTS = 3
# keys of other tools, by the key that does it here
SYNONYMS = {
    "seed": "seed_everything",
    "epochs": "trainer.max_epochs",
    "steps": "trainer.max_steps",
    "gpus": "trainer.devices",
    "devices": "trainer.devices",
    "precision": "trainer.precision",
    "resume": "ckpt_path",
    "output_dir": "trainer.default_root_dir",
}


class WrongNameError(ValueError):
    """A name that nothing has, or a value that nothing takes."""

    exit_code = 2


def find_recipe(name: str) -> Path:
    """Find the file that a path or a recipe's name stands for; WrongNameError gives the nearest names."""
    path, recipes = Path(name), recipe_paths()
    if path.is_file():
        return path
    if name in recipes:
        return recipes[name]
    if path.is_dir():
        raise WrongNameError(f"{name} is a folder, expected a recipe or a YAML file; --ckpt_path takes runs")
    siblings = map(str, path.parent.glob("*")) if path.suffix in SETTINGS_SUFFIXES else ()
    raise WrongNameError(f"no recipe {name!r}{nearest_names(name, [*siblings, *recipes])} (`zoo list --all` names all)")


def config_files(args: Sequence[str]) -> list[str]:
    """List the recipes and files that a command line names: `hifigan/smoke`, `--config FILE`."""
    return [value for option, value in split_arguments(args) if option in ("", *CONFIG_OPTIONS) and value is not None]


def split_arguments(args: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Split a command line into options with their values; the option of a lone word is ""."""
    pending = list(args)
    while pending:
        option, joined, value = pending.pop(0).partition("=")
        if joined and option.partition(".")[0] in SECTIONS:  # `data.batch_size=8`
            yield f"--{option}", value
        elif not option.startswith("-"):
            yield "", f"{option}{joined}{value}"
        elif joined:
            yield option, value
        elif option in FLAGS or not pending or (pending[0].startswith("--") and len(pending[0]) > 2):
            yield option, None
        else:
            yield option, pending.pop(0)


def join_option(option: str, value: str | None) -> str:
    """Write an option with its value, or a lone word, as one argument."""
    return option if value is None else f"{option}={value}" if option else value


def take_option(args: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    """Split off an option; returns its values, and the other arguments as `--option=value`."""
    pairs = list(split_arguments(args))
    values = [value for name, value in pairs if name == option and value is not None]
    if (option, None) in pairs:
        raise WrongNameError(f"{option} needs a value")
    return values, [join_option(name, value) for name, value in pairs if name != option]


def nearest_names(name: str, candidates: Collection[str]) -> str:
    """Ask whether the nearest of some names was meant; "" where none is near."""
    matches = [each for each in candidates if each.startswith((f"{name}/", f"{name} "))]
    matches = matches or difflib.get_close_matches(name, candidates, n=3, cutoff=0.6)
    return f": did you mean {' or '.join(matches)}?" if matches else ""


def shorten_list(names: Collection[str]) -> str:
    """List some names for an error, and count the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(list(names)[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def merge_files(args: Sequence[str]) -> dict[str, Any]:
    """Merge the files of settings that a command line names, interpolations as they stand."""
    merged: dict[str, Any] = {}
    for _, content in read_files(args)[0]:
        merged = merge(merged, content)
    return merged


def read_files(args: Sequence[str]) -> tuple[list[tuple[Path, dict[str, Any]]], list[str]]:
    """Read the files of settings that a command line names: by `--config`, or for a section by `--data FILE.yaml`.

    Returns the files in their order with what they say, and the other arguments as `--option=value`. Raises
    WrongNameError for an unknown file or section, ConfigFileError for a file that is no mapping or holds a key twice.
    """
    files: list[tuple[Path, dict[str, Any]]] = []
    options: list[str] = []
    for option, value in split_arguments(args):
        section, _, key = option.removeprefix("--").removesuffix("+").partition(".")
        if option in ("", *CONFIG_OPTIONS) and value is not None:
            path = find_recipe(value)
            files.append((path, read_recipe(path)))
        elif section in (*GROUPS, *CLASSES) and not key and value and value.endswith(SETTINGS_SUFFIXES):
            files.append((Path(value), {section: read_mapping(Path(value))}))
        else:
            options.append(join_option(option, value))
    contents = [content for _, content in files]
    for option, _ in split_arguments(options):
        if option.startswith("--") and option not in FLAGS:
            check_section(option.removeprefix("--").removesuffix("+").partition(".")[0], option, contents)
    for path, content in files:
        check_layout(content, path)
    return files, options


def compose_arguments(args: Sequence[str]) -> list[str]:
    """Put one `--config` with the text of all files before the other options, which win wherever they stand."""
    files, options = read_files(args)
    config: dict[str, Any] = resolve_additions(functools.reduce(merge, [content for _, content in files], {}))
    return [f"--config={dump_yaml(config)}", *options] if config else options


def check_section(name: str, place: str, contents: Collection[Mapping[str, Any]] = ()) -> None:
    """Refuse a section of a config that there is not, with the nearest, or the recipe's keys of the same name."""
    if name in SECTIONS:
        return
    last = place.removeprefix("--").rpartition(".")[2]
    keys = (key.replace(".init_args", "") for content in contents for key, _ in iterate_keys(content))
    hints = [SYNONYMS[name]] if name in SYNONYMS else [key for key in dict.fromkeys(keys) if key.endswith(f".{last}")]
    nearest = f": did you mean {' or '.join(f'--{hint}' for hint in hints[:MAX_HINTS])}?" if hints else ""
    known = nearest or f"{nearest_names(name, SECTIONS)} (keys: {', '.join(SECTIONS)})"
    raise WrongNameError(f"{place}: unknown key {name}{known}")


def check_layout(content: Mapping[str, Any], path: Path) -> None:
    """Refuse what the parser would ignore: unknown sections, text for a section, keys next to `class_path`."""
    for key, value in content.items():
        check_section(str(key).removesuffix("+"), str(path))
        if key in GROUPS and not isinstance(value, Mapping):
            raise WrongNameError(f'{path}: "{key}" is {value!r}, expected a mapping; name other files by --config')
    for key, value in iterate_keys(content):
        if isinstance(value, Mapping) and "class_path" in value:
            for stray in value.keys() - CLASS_KEYS:
                raise WrongNameError(
                    f"{path}: unknown key {key}.{stray} next to class_path; arguments of a class belong in init_args"
                )
