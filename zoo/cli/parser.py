"""Parsers that refuse wrong options in one line, and what a config may import."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import yaml
from jsonargparse import ArgumentParser, Namespace, set_dumper, set_loader, set_parsing_settings

from zoo.cli.recipes import CLASS_KEYS, nearest_names, read_files, shorten_list, split_arguments
from zoo.common import registry
from zoo.common.configs import dump_yaml, load_yaml, restrict_resolvers
from zoo.common.foreign_files import iterate_keys

PARSER_MODE = "omegaconf+"

# jsonargparse's messages
_UNION = re.compile(
    r"Does not validate against any of the Union subtypes\s+Subtypes: \[(.*?)\]\n.*value: (.*)", re.DOTALL
)
_SINGLE = re.compile(r"Expected an? (\S.*?)\. Got value: ")
_CLASS = re.compile(r"<class '(?:[\w.]*\.)?(\w+)'>")
_UNKNOWN_KEY = re.compile(r"Option '(\w+)|does not accept option '(\w+)|unrecognized arguments: --([\w.]+)")
_WRONG_VALUE = re.compile(r'Parser key "([\w.]+)":\s*(.*got (.*))', re.DOTALL)
_NOT_ALLOWED = re.compile(r"Importing '([\w.]+)' is not allowed")


class RefusedError(SystemExit):
    """A wrong argument; as a SystemExit it passes through jsonargparse, from a parser within a parser too."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(_simplify(message))
        self.details = message


def _simplify(message: str) -> str:
    """Name the types that jsonargparse expected as a user writes them, without the reasons of each of a union."""
    message = _SINGLE.sub(r"expected \1, got ", _UNION.sub(r"expected one of \1, got \2", message))
    return _CLASS.sub(r"\1", message).replace("typing.Literal", "").replace("NoneType", "null")


class OneLineParser(ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Refuse an argument."""
        raise RefusedError(message)


def restrict_imports() -> None:
    """Let the parser build registered parts only, under any of their names, and read no variables but the zoo's."""
    _allow_paths(tuple(registry.allowed_import_paths()))
    restrict_resolvers()
    set_dumper("yaml", dump_yaml)


@functools.cache  # jsonargparse checks each of the hundreds of paths again
def _allow_paths(paths: tuple[str, ...]) -> None:
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=list(paths))


def _load_value(text: str) -> Any:
    if text == "None":  # jsonargparse writes null so for the parser of a nested dataclass
        return None
    value = load_yaml(text)
    if isinstance(value, dict) and value and all(each is None for each in value.values()):
        return text  # "{a, b}" and "a:" are words
    return value


for _mode in ("yaml", PARSER_MODE):  # of the options of tools, and of recipes
    set_loader(_mode, _load_value, (yaml.YAMLError,))


def use_public_names(config: Any) -> None:
    """Name the registered classes of a parsed config publicly; the parser names some by their modules."""
    values = vars(config) if isinstance(config, Namespace) else config
    if isinstance(values, dict):
        if isinstance(values.get("class_path"), str):
            values["class_path"] = registry.public_path(values["class_path"])
        values = list(values.values())
    for value in values if isinstance(values, list) else ():
        use_public_names(value)


class _Entry(NamedTuple):
    """A key with its value as a file or an option writes it; the origin is "recipe.yaml: ", or "" for an option."""

    origin: str
    key: str
    value: Any

    @property
    def path(self) -> str:
        """The key without `init_args`, which options may leave out."""
        return re.sub(r"\.init_args|\+", "", self.key)


def explain_refusal(message: str, args: Sequence[str], known: Collection[str]) -> str:
    """Find the key of a command line or of its files that the parser refused, whose message has its last part alone.

    Returns a message with the full key, its file, and the nearest key or class; `known` are the parser's keys.
    """
    files, options = read_files(args)
    entries = [_Entry(f"{path}: ", key, value) for path, content in files for key, value in iterate_keys(content)]
    for option, value in split_arguments(options):
        node = None if value is None else _load_value(value)
        for name in reversed(option.removeprefix("--").split(".")):
            node = {name: node}
        entries += [_Entry("", key, each) for key, each in iterate_keys(node)]
    if match := _NOT_ALLOWED.search(message):
        try:
            reason = f"{registry.public_name(registry.get_class(match[1]))} does not fit here"
        except ValueError as error:
            reason = str(error)
        for entry in entries:
            if entry.value == match[1]:
                return f"{entry.origin}{entry.key}: {reason}"
    if match := _UNKNOWN_KEY.search(message):
        path = f".{next(filter(None, match.groups()))}".replace(".init_args", "")
        paths = [entry.path for entry in entries if f".{entry.path}".endswith(path)]
        for entry in entries:
            is_above = any(f"{each}.".startswith(f"{entry.path}.") for each in paths)
            if is_above and (reason := _explain_key(entry, entries, known)):
                return f"{entry.origin}unknown key {entry.key}{reason}"
    if match := _WRONG_VALUE.search(_simplify(message)):
        matches = [entry for entry in entries if f".{entry.path}".endswith(f".{match[1]}")]
        matches = [entry for entry in matches if str(entry.value) == match[3].strip()]
        if len({entry.path for entry in matches}) == 1:  # the last one won
            return f"{matches[-1].origin}{matches[-1].key}: {match[2]}"
    return _simplify(message)


def _explain_key(entry: _Entry, entries: Sequence[_Entry], known: Collection[str]) -> str:
    """Name the nearest keys of the section or class that a key belongs to; "" where it has that key or is unknown."""
    parent, _, name = entry.path.rpartition(".")
    classes = {each.path.removesuffix(".class_path"): each.value for each in entries if isinstance(each.value, str)}
    section = {key.split(".")[1] for key in known if key.startswith(f"{parent}.")}
    try:
        keys = (section or {*_keys_at(parent, classes)}) - {"args", "kwargs"}
    except ValueError:  # no class, one by its short name, or one of another package
        return ""
    if name in keys or name in CLASS_KEYS:
        return ""
    return f"{nearest_names(name, keys)} (keys of {classes.get(parent, parent)}: {shorten_list(sorted(keys))})"


def _keys_at(path: str, classes: Mapping[str, str]) -> Collection[str]:
    """Return the keys of the class at a path, or of the dataclass that the class above it takes there."""
    if path in classes:
        return registry.constructor_annotations(registry.get_class(classes[path])).keys()
    above, _, name = path.rpartition(".")
    options = registry.constructor_annotations(registry.get_class(classes.get(above, ""))).get(name)
    if not dataclasses.is_dataclass(options):
        raise ValueError(f"{path} has no keys")
    return [field.name for field in dataclasses.fields(options)]
