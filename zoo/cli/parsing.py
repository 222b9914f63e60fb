"""The argument parser of the tools, the import rules of every config, and all that reaches into jsonargparse."""

from __future__ import annotations

import functools
import json
import re
import sys
import traceback
from argparse import Action
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import (
    ActionConfigFile,
    ArgumentParser,
    DefaultHelpFormatter,
    Namespace,
    _loaders_dumpers,
    set_parsing_settings,
)

from zoo.cli.check import check_sections
from zoo.cli.quiet import printable
from zoo.common import registry
from zoo.common.options import SETTINGS_SUFFIXES
from zoo.common.reading.configs import limit_resolvers, read_mapping
from zoo.common.reading.text import check_yaml

PARSER_MODE = "omegaconf+"
SECTIONS = ("trainer", "checkpoints", "samples", "wandb", "terminal")  # groups of options
CLASS_SECTIONS = ("model", "data")  # a class and its arguments

# jsonargparse's texts about a value of a wrong type
_UNION = re.compile(
    r"Does not validate against any of the Union subtypes\s+Subtypes: \[(?P<types>.*)\]\n\s+Errors:\n"
    r"(?P<errors>(?:\s+- (?:Expected|Not of type) .*\n)+)\s+Given value type: .*\n\s+Given value: (?P<value>.*)"
)
_SINGLE = re.compile(r"Expected an? (?P<type>\S.*?)\. Got value: (?P<value>.*)")
_SINGLE_LIMITED = re.compile(r"Not of type (\w+): (.*) does not conform to restriction (.*)")
_LIMITED = re.compile(r"Not of type (\w+): does not conform to restriction (.*)")
_COMMA = re.compile(r", (?![^\[]*\])")  # outside brackets
_CLASS = re.compile(r"<class '(?:[\w.]*\.)?(\w+)'>")

_jsonargparse: Any = _loaders_dumpers  # it has no public place for the loader of texts within values

_YAMLLoader: Any = _jsonargparse.get_yaml_default_loader()


class _BoundedLoader(_YAMLLoader):
    """jsonargparse's loader of files, values and texts within values, which checks each before it builds anything."""

    def __init__(self, stream: str) -> None:
        check_yaml(stream)
        super().__init__(stream)


_jsonargparse.yaml_default_loader = _BoundedLoader


def _plainly(message: str) -> str:
    """Say what jsonargparse expected of a value in types as a user writes them."""

    def types(text: str) -> str:
        for choices in re.findall(r"typing\.Literal\[(.*?)\]", text):
            text = text.replace(f"typing.Literal[{choices}]", choices)
        text = _CLASS.sub(r"\1", text)
        return " or ".join(_COMMA.split(text)).replace("NoneType", "null")

    def union(found: re.Match[str]) -> str:
        expected = types(found["types"])
        for name, limits in _LIMITED.findall(found["errors"]):
            expected = expected.replace(name, f"{name} ({limits})")
        return f"expected {expected}, got {found['value']}"

    message = _SINGLE_LIMITED.sub(r"expected \1 (\3), got \2", _UNION.sub(union, message))
    return _SINGLE.sub(lambda found: f"expected {types(found['type'])}, got {found['value']}", message)


def fail(prog: str, message: str) -> NoReturn:
    """Exit with code 2 and one line on standard error."""
    message = _plainly(message)
    message = message.replace(
        "Add the import path to import_path_allowlist in set_parsing_settings to allow it.",
        "It is no registered part; those that a package of yours registers are admitted by --allow-import PACKAGE.",
    )
    prog = prog if prog.startswith("zoo") else "zoo"  # jsonargparse names its inner parsers after the script
    print(f"{prog}: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    raise SystemExit(2)


class _HelpFormatter(DefaultHelpFormatter):
    """Names a type as a user writes it."""

    def _get_type_str(self, action: Action) -> str | None:
        found = super()._get_type_str(action)
        return None if found is None else _CLASS.sub(r"\1", found)


class OneLineParser(ArgumentParser):
    """A parser whose errors are one line and whose exit code for them is 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": _HelpFormatter, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Report a wrong option."""
        fail(self.prog, message)


def limit_names() -> None:
    """Let the parser build registered parts only, under any of their names, and read no variables but the zoo's."""
    _allow(tuple(registry.allowed_paths()))
    limit_resolvers()


@functools.cache  # jsonargparse looks at each of the hundreds of paths again
def _allow(paths: tuple[str, ...]) -> None:
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=list(paths))


def read_no_other_files(parser: ArgumentParser) -> None:
    """Let no text in a config stand for another file: jsonargparse would read any path in the place of a class.

    Files that the command line names are laid into it by `inlined`.
    """
    actions: list[Any] = parser._actions
    for action in actions:
        if hasattr(action, "_enable_path"):
            action._enable_path = False
            action.sub_add_kwargs = {**action.sub_add_kwargs, "sub_configs": False}


def inlined(args: Sequence[str]) -> list[str]:
    """Replace the files given as `--model FILE` and `--data FILE` by what they say.

    Raises:
        ValueError: naming a file that is no mapping.
    """
    laid, options = [], [f"--{section}" for section in CLASS_SECTIONS]
    pending = iter(args)
    for argument in pending:
        option, joined, value = argument.partition("=")
        if option in options:
            value = value if joined else next(pending, "")
            if value.endswith(SETTINGS_SUFFIXES) and Path(value).is_file():
                value = json.dumps(read_mapping(Path(value)), default=str)
            laid.append(f"{option}={value}")
        else:
            laid.append(argument)
    return laid


KINDS = ("class_path", "model_type")  # where one of these changes, the arguments of the former kind go


class MergingConfigFile(ActionConfigFile):
    """`--config`, whose mappings (`backbone.config`) merge with those of earlier files key by key, as all else does."""

    @staticmethod
    def apply_config(parser: Any, cfg: Namespace, dest: str, value: Any) -> None:
        """Read a file into what the files before it gave."""
        before = cfg.clone()
        ActionConfigFile.apply_config(parser, cfg, dest, value)
        merged = _merged(before, cfg)
        for key in vars(cfg):
            setattr(cfg, key, getattr(merged, key))


def _merged(before: Any, after: Any) -> Any:
    """A value of a config with the keys of former mappings that it lacks."""
    if type(before) is not type(after) or not isinstance(after, Namespace | dict):
        return after
    old, new = (vars(value) if isinstance(value, Namespace) else value for value in (before, after))
    if any(old.get(kind) != new[kind] for kind in KINDS if kind in new):
        return after
    found = {key: _merged(old.get(key), value) for key, value in new.items()}
    return {**old, **found} if isinstance(after, dict) else Namespace(**found)


class ConfigError(ValueError):
    """A config that parses and still cannot be built."""

    exit_code = 2


def explain_build(error: Exception, config: Mapping[str, Any]) -> Exception:
    """Turn what went wrong while a config's objects were built into one line that names the class.

    Args:
        error: what was raised; jsonargparse wraps what a constructor says in pages about types.
        config: as nested mappings with `class_path` entries.

    Returns:
        What to raise: the constructor's own error where the machine is at fault (a missing file or package),
        a ConfigError otherwise.
    """
    cause = error.__cause__ if isinstance(error, ValueError) and isinstance(error.__cause__, Exception) else error
    if isinstance(cause, OSError | ImportError):
        return cause
    classes = {*_class_paths(config), "lightning.pytorch.trainer.trainer.Trainer"}
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__) if frame.f_code.co_name == "__init__"]
    owners = [type(frame.f_locals.get("self")) for frame in frames]
    built = [registry.public_name(owner) for owner in owners]
    place = next((path for path in reversed(built) if path in classes), "the config")
    said = str(cause) if isinstance(cause, ValueError) else f"{type(cause).__name__}: {cause}"
    return ConfigError(f"{place}: {said}")


def check_config(file: Path) -> None:
    """Find what jsonargparse would misread, pass over or report as something else.

    A file that is no mapping, or holds a key twice; unknown sections, also empty ones; keys that stand beside a
    `class_path` and belong below its `init_args`; other files in the place of a section.

    Raises:
        ValueError: naming the file and the key.
        OSError: when the file cannot be read.
    """
    content = read_mapping(file)
    check_sections(content, f"{file}: ")
    for key in (*SECTIONS, "config"):
        if isinstance(content.get(key), str):
            raise ConfigError(f'{file}: "{key}" is {content[key]!r}, expected a mapping; name other files by --config')
    pending: list[tuple[str, Any]] = [("", content)]
    seen = set()  # an alias may lead back to where it stands
    while pending:
        place, node = pending.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        strange = [str(key) for key in node if key not in ("class_path", "init_args", "dict_kwargs")]
        if "class_path" in node and strange:
            raise ConfigError(
                f'{file}: unknown key "{place}{strange[0]}" beside class_path; arguments of a class go below init_args'
            )
        for key, value in node.items():
            pending += [(f"{place}{key}.", item) for item in (value if isinstance(value, list) else [value])]


def _class_paths(config: Any) -> Iterator[str]:
    values: Any = config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ()
    if isinstance(config, Mapping) and isinstance(config.get("class_path"), str):
        yield config["class_path"]
    for value in values:
        yield from _class_paths(value)
