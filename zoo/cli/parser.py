"""The argument parser of the tools, what a config may import, and errors as one line."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import traceback
from argparse import Action
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, set_dumper, set_loader, set_parsing_settings

from zoo.cli.log_filters import printable
from zoo.cli.recipes import (
    CLASS_KEYS,
    CLASSES,
    WrongNameError,
    nearest_names,
    read_files,
    shorten_list,
    split_arguments,
)
from zoo.common import registry
from zoo.common.configs import dump_yaml, load_yaml, restrict_resolvers

PARSER_MODE = "omegaconf+"

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


def _plainly(message: str) -> str:
    """Say what jsonargparse expected of a value in types as a user writes them."""

    def types(text: str) -> str:
        for choices in re.findall(r"typing\.Literal\[(.*?)\]", text):
            text = text.replace(f"typing.Literal[{choices}]", choices)
        text = _CLASS.sub(r"\1", text)
        return " or ".join(_COMMA.split(text)).replace("NoneType", "null")

    def union(match: re.Match[str]) -> str:
        expected = types(match["types"])
        for name, limits in _LIMITED.findall(match["errors"]):
            expected = expected.replace(name, f"{name} ({limits})")
        return f"expected {expected}, got {match['value']}"

    message = _SINGLE_LIMITED.sub(r"expected \1 (\3), got \2", _UNION.sub(union, message))
    return _SINGLE.sub(lambda match: f"expected {types(match['type'])}, got {match['value']}", message)


def exit_with_error(prog: str, message: str) -> NoReturn:
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
        match = super()._get_type_str(action)
        return None if match is None else _CLASS.sub(r"\1", match)


class OneLineParser(ArgumentParser):
    """A parser whose errors are one line and whose exit code for them is 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": _HelpFormatter, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Report a wrong option."""
        exit_with_error(self.prog, message)


def restrict_imports() -> None:
    """Let the parser build registered parts only, under any of their names, and read no variables but the zoo's."""
    _allow(tuple(registry.allowed_import_paths()))
    restrict_resolvers()
    set_loader(PARSER_MODE, _load_value, (yaml.YAMLError,))
    set_dumper("yaml", dump_yaml)


def _load_value(text: str) -> Any:
    value = load_yaml(text)
    if isinstance(value, dict) and value and all(each is None for each in value.values()):
        return text  # "{a, b}" and "a:" are words
    return value


@functools.cache  # jsonargparse looks at each of the hundreds of paths again
def _allow(paths: tuple[str, ...]) -> None:
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=list(paths))


def use_public_names(config: Any) -> None:
    """Name the registered classes of a parsed config publicly; the parser names some by their modules."""
    values = vars(config) if isinstance(config, Namespace) else config
    if isinstance(values, dict):
        if isinstance(values.get("class_path"), str):
            values["class_path"] = registry.public_path(values["class_path"])
        values = list(values.values())
    for value in values if isinstance(values, list) else ():
        use_public_names(value)


class ConfigError(ValueError):
    """A config that parses and still cannot be built."""

    exit_code = 2


def explain_build(error: Exception, config: Mapping[str, Any]) -> Exception:
    """Turn what went wrong while a config's objects were built into one line that names the class.

    Args:
        error: what was raised; jsonargparse wraps what a constructor says in pages about types.
        config: as nested mappings with `class_path` entries.

    Returns:
        What to raise: the constructor's own error for a missing file or package,
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
    reason = str(cause) if isinstance(cause, ValueError) else f"{type(cause).__name__}: {cause}"
    return ConfigError(f"{place}: {reason}")


def _class_paths(config: Any) -> Iterator[str]:
    values: Any = config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ()
    if isinstance(config, Mapping) and isinstance(config.get("class_path"), str):
        yield config["class_path"]
    for value in values:
        yield from _class_paths(value)


def explain_refusal(message: str, args: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str:
    """Find the key of a command line or of its files that the class there does not take, or that has a wrong value.

    Args:
        message: why the parser refused it.
        args: of fit, validate or test.
        groups: the keys of the sections that are no classes.

    Returns:
        The unknown key and the nearest one, else the message with the whole key and its file.
    """
    files, options = read_files(args)
    finder = _KeyFinder(groups)
    try:
        for path, content in files:
            for key, value in content.items():
                finder.check_section(str(key), value, f"{path}: ")
        for option, value, _ in split_arguments(options):
            finder.check_option(option, value)
    except WrongNameError as error:
        return str(error)
    if match := re.match(r'\s*Parser key "([\w.]+)":(.*[Gg]ot (?:value: )?(.*))', _plainly(message), re.DOTALL):
        places = [place for place in finder.places if f".{place.key}".endswith(f".{match[1]}")]
        places = [place for place in places if str(place.value) == match[3].strip()]
        if len({place.key for place in places}) == 1:  # the last one won
            return f"{places[-1].origin}{places[-1].key}:{match[2]}"
    return message


class _Place(NamedTuple):
    """A key of a config or an option: the file that it is in ("x.yaml: "; "" for an option), its name, its value."""

    origin: str
    key: str
    value: Any


class _KeyFinder:
    """Knows which class stands where, so that a later file or option may change its arguments alone."""

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        self.groups = groups
        self.classes: dict[str, str] = {}
        self.places: list[_Place] = []

    def check_section(self, key: str, value: Any, origin: str) -> None:
        if key in CLASSES:
            self._check_class(value, key, origin)
        elif isinstance(value, Mapping):
            for name, entry in value.items():
                self._check_key(_Place(origin, f"{key}.{name}", entry), self.groups.get(key, ()), key)
                self._check_class(entry, f"{key}.{name}", origin)

    def check_option(self, option: str, value: str | None) -> None:
        section, *path = option.removeprefix("--").removesuffix("+").split(".")
        parsed = None if value is None else _load_value(value)
        if section in CLASSES and path:
            self._descend(section, path, parsed)
        elif path:
            place = f"{section}.{path[0]}"
            self._check_key(_Place("", place, parsed), self.groups.get(section, ()), section)
            self._check_class(parsed, place, "")
        elif section in CLASSES:
            self._check_class({"class_path": value} if isinstance(parsed, str) else parsed, section, "")

    def _descend(self, key: str, path: Sequence[str], value: Any) -> None:
        """Follow the keys of an option; `init_args` may be left out where a class stands."""
        path = path[1:] if path[0] in CLASS_KEYS[1:] else path
        if not path or path[0] == "help":
            return
        if path[0] == "class_path":
            self._check_class({"class_path": value}, key, "")
            return
        place = f"{key}.init_args.{path[0]}"
        self._check_argument(_Place("", place, value), key)
        if len(path) > 1:
            self._descend(place, path[1:], value)
        else:
            self._check_class(value, place, "")

    def _check_class(self, value: Any, key: str, origin: str) -> None:
        """Check what may be a class and its arguments, and what stands in them."""
        for number, entry in enumerate(value if isinstance(value, list) else ()):
            self._check_class(entry, f"{key}.{number}", origin)
        if isinstance(value, str) and any(value.startswith(f"{package}.") for package in registry.PACKAGES):
            value = {"class_path": value}
        if not isinstance(value, Mapping):
            return
        if isinstance(value.get("class_path"), str):
            self.classes[key] = value["class_path"]
            if value["class_path"].startswith("zoo."):
                try:
                    registry.get_class(value["class_path"])
                except ValueError as error:
                    raise WrongNameError(f"{origin}{key}.class_path: {error}") from error
        arguments = value.get("init_args", {} if "class_path" in value else value)
        for name, entry in arguments.items() if isinstance(arguments, Mapping) else ():
            place = f"{key}.init_args.{name}"
            if "init_args" in value:
                self._check_argument(_Place(origin, place, entry), key)
            self._check_class(entry, place, origin)

    def _check_argument(self, place: _Place, key: str) -> None:
        allowed: Collection[str] | None = None
        with contextlib.suppress(KeyError, ValueError):  # a short name, or a class of another package
            allowed = registry.constructor_annotations(registry.get_class(self.classes[key])).keys() - {
                "args",
                "kwargs",
            }
        self._check_key(place, allowed, self.classes.get(key, ""))

    def _check_key(self, place: _Place, allowed: Collection[str] | None, owner: str) -> None:
        place = place._replace(key=place.key.removesuffix("+"))
        self.places.append(place)
        name = place.key.rpartition(".")[2]
        if allowed is not None and name not in allowed:
            keys = shorten_list(sorted(allowed))
            nearest = nearest_names(name, allowed)
            raise WrongNameError(f"{place.origin}unknown key {place.key}{nearest} (keys of {owner}: {keys})")
