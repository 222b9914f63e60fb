"""Reading configs, and what one may name that came with a run: places below the run, and the zoo's own variables.

A config named on the command line is the user's own and may name any place. One that a run brings may come from
anybody.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from zoo.common.systems import recipe_paths

# Arguments of Lightning's callbacks, loggers, profilers and strategies, and of our data, that are written to.
FOLDERS = {"cache", "default_root_dir", "dir", "dirpath", "log_dir", "nvme_path", "root_dir", "save_dir", "sub_dir"}
# Ends of the names of arguments that are addresses, also without "://".
ADDRESSES = ("_location", "_uri", "_url")
# Sections whose texts become parts of file names.
NAMING = ("trainer", "checkpoints", "wandb")
VARIABLE_PREFIX = "ZOO_"
# OmegaConf's own, all but oc.env.
REFUSED_RESOLVERS = "oc.coerce oc.create oc.decode oc.deprecated oc.dict.keys oc.dict.values oc.select".split()


MAX_CHARACTERS = 2**20  # of a YAML file, which takes seconds to read
MAX_DEPTH = 100  # of lists and tables in one another
MAX_NODES = 50_000  # values, lists and tables, with every alias written out
MAX_PLAIN = 10_000  # characters of a value without quotes, which may be a number: reading those takes their square
MAX_JSON = 2**24  # characters, of which two can make an object of 64 bytes

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9]+$|0o[0-7]+$|0x[0-9a-fA-F]+$")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")
_NUMERIC_TAGS = [f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp")]


class PlainLoader(_Loader):
    """Reads plain values with YAML 1.2's numbers: 010 is ten, 1e-3 a number, 1:30 and a date are text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in rules if tag not in _NUMERIC_TAGS]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _read_integer(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


PlainLoader.add_constructor("tag:yaml.org,2002:int", _read_integer)
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789."))


class PlainDumper(yaml.SafeDumper):
    """Quotes texts that either version of YAML would read as numbers."""


PlainDumper.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
PlainDumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789."))


def dump_yaml(value: Any) -> str:
    """Write plain values as YAML that `safe_load` reads back as they are; keys keep their order."""
    return yaml.dump(value, Dumper=PlainDumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


class YAMLBombError(yaml.YAMLError, ValueError):
    """A YAML text that stands for far more than its own size."""


def load_yaml(text: str) -> Any:
    """Read YAML of plain values like `yaml.safe_load`, within bounds.

    Raises:
        YAMLBombError: it is too long, too deep, or its aliases stand for too much.
        yaml.YAMLError: it is no YAML of plain values.
    """
    check_yaml(text)
    return yaml.load(text, Loader=PlainLoader)


def check_yaml(text: str, max_depth: int = MAX_DEPTH) -> str:
    """Go through a YAML text without building anything.

    Returns:
        What it holds beside plain values: "alias", else the first "anchor" or "tag ..."; "" for nothing.

    Raises:
        YAMLBombError: it is too long, too deep, or its aliases stand for too much.
        yaml.YAMLError: it is no YAML.
    """
    if len(text) > MAX_CHARACTERS:
        raise YAMLBombError(f"{len(text)} characters of YAML, at most {MAX_CHARACTERS} are read")
    return _check_events(yaml.parse(text, Loader=_Loader), max_depth)


def _check_events(events: Iterable[yaml.Event], max_depth: int) -> str:
    sizes: dict[str | None, int] = {}  # nodes below each finished anchor
    begun: list[tuple[str | None, int]] = []  # anchor and count before, of each unfinished list or table
    count, alias, marks = 0, False, ""
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in begun):
                raise YAMLBombError(f"the alias *{event.anchor} stands within what it means")
            count += sizes.get(event.anchor, 1)
            alias = True
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
            if len(event.value) > MAX_PLAIN and (event.implicit[0] or event.tag is not None):
                raise YAMLBombError(f"a value of {len(event.value)} characters without quotes, expected {MAX_PLAIN}")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            marks = marks or (f"tag {event.tag}" if event.tag else "anchor" if event.anchor else "")
        if len(begun) > max_depth:
            raise YAMLBombError(f"lists and tables nest deeper than {max_depth} (a bomb?)")
        if count > MAX_NODES:
            raise YAMLBombError(f"more than {MAX_NODES} values, aliases written out (a bomb?)")
    return "alias" if alias else marks


def find_duplicate_key(text: str) -> tuple[str, int, int] | None:
    """Find a key that stands twice in one table of a YAML text, of which YAML's readers would drop the first.

    Args:
        text: that `check_yaml` has accepted.

    Returns:
        The key with those above it, and the lines of both, from 1; None where there is none.
    """
    pending: list[tuple[str, Any]] = [("", yaml.compose(text, Loader=_Loader))]
    while pending:
        above, node = pending.pop()
        if isinstance(node, yaml.SequenceNode):
            pending += [(f"{above}{number}.", each) for number, each in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                return f"{above}{name}", lines[name], line
            lines[name] = line
            pending.append((f"{above}{name}.", value))
    return None


def load_json(text: str | bytes) -> Any:
    """Read JSON like `json.loads`, within bounds.

    Raises:
        ValueError: it is too long, or lists and tables nest deeper than Python's recursion goes.
        ValueError: it is no JSON.
    """
    if len(text) > MAX_JSON:
        raise ValueError(f"{len(text)} characters of JSON, at most {MAX_JSON} are read")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists and tables nest too deeply (a bomb?)") from error


class ConfigFileError(ValueError):
    """A file that is no config."""

    exit_code = 2


def load_run_config(path: Path, from_run: bool = False) -> dict[str, Any]:
    """Read a recipe or a run's config, its interpolations resolved.

    Args:
        from_run: it came with a run and was not named by the user: the places that it names are checked.

    Returns:
        Plain values.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no mapping, or names what a config may not.
    """
    from omegaconf import OmegaConf  # only now: help does not wait for it
    from omegaconf.errors import OmegaConfBaseException

    content = read_mapping(path) if from_run else load_recipe(path)
    restrict_resolvers()
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(content), resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    config: Any = resolved
    if from_run:
        check_config_paths(config, path.parent)
    return config


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a recipe, a config or a part of one as it stands, interpolations and all.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigFileError: it is no mapping, or holds a key twice.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such recipe or config")
    try:
        text = path.read_text(encoding="utf-8")
        content = load_yaml(text)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigFileError(f"{path}{line}: no YAML: {error.problem}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigFileError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        kind = {type(None): "nothing", list: "a list", str: "a text"}.get(type(content), type(content).__name__)
        raise ConfigFileError(f"{path}: expected a mapping of keys, found {kind}")
    if (twice := find_duplicate_key(text)) is not None:
        key, first, second = twice
        raise ConfigFileError(f"{path}: {key} stands in line {first} and again in line {second}; keep one")
    return content


def load_recipe(path: Path, extending: Sequence[Path] = ()) -> dict[str, Any]:
    """Read a recipe merged into those that it extends: `extends: base` (a file beside it) or `extends: hifigan/base`.

    Args:
        path: of the recipe.
        extending: the recipes that extend it.

    Returns:
        What it says with interpolations as they stand.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigFileError: it is no mapping, holds a key twice, extends itself or what is no recipe.
    """
    content = read_mapping(path)
    names = content.pop("extends", [])
    merged: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:
        base = _extended(name, path)
        if base in (path, *extending):
            raise ConfigFileError(f"{path}: extends {name}, which extends it")
        merged = merge(merged, load_recipe(base, (path, *extending)))
    return merge(merged, content)


def _extended(name: Any, path: Path) -> Path:
    """The file of a recipe that another one extends; names only, as a recipe may come from anybody."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+(/[\w-]+)?", name):
        raise ConfigFileError(f"{path}: extends {name!r}; expected the name of a recipe, such as base or hifigan/base")
    beside = path.parent / f"{name}.yaml"
    found = beside if "/" not in name else recipe_paths().get(name)
    if found is None or not found.is_file():
        raise ConfigFileError(f"{path}: extends {name}, and there is no such recipe (`zoo list` shows all)")
    return found


def merge(before: Any, after: Any) -> Any:
    """Merge a part of a config into another: mappings join key by key, `key+` adds to a list, all else is replaced.

    Another class (`class_path`) or `model_type` discards the arguments of the former one.
    """
    if not isinstance(after, Mapping):
        return after
    old = before if isinstance(before, Mapping) else {}
    if any(kind in after and not _is_same_class(old.get(kind), after[kind]) for kind in ("class_path", "model_type")):
        old = {}
    merged = dict(old)
    for key, value in after.items():
        if isinstance(key, str) and key.endswith("+"):
            name, more = key.removesuffix("+"), value if isinstance(value, list) else [value]
            merged[name] = [*(merged.get(name) or []), *more]
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def _is_same_class(before: Any, after: Any) -> bool:
    """Whether two names are one class; one of them may be without its package."""
    old, new = (str(name) for name in (before, after))
    return old == new if "." in old and "." in new else old.rpartition(".")[2] == new.rpartition(".")[2]


def restrict_resolvers() -> None:
    """Let interpolations read other keys and variables whose names begin with ZOO_, and nothing else."""
    from omegaconf import OmegaConf

    OmegaConf.clear_resolvers()
    for name in REFUSED_RESOLVERS:
        OmegaConf.clear_resolver(name)
    OmegaConf.register_resolver("oc.env", _variable, replace=True)


def _variable(name: str, default: Any = ...) -> Any:
    if not name.startswith(VARIABLE_PREFIX):
        raise ValueError(f"${{oc.env:{name}}}: a config reads variables whose names begin with {VARIABLE_PREFIX} only")
    value = os.environ.get(name, default)
    if value is ...:
        raise ValueError(f"${{oc.env:{name}}}: the variable {name} is not set, and the config gives no default")
    return value


def check_config_paths(config: Mapping[str, Any], folder: Path, args: Sequence[str] = ()) -> None:
    """Refuse a config that came with a run and names places outside.

    Args:
        config: plain values, the run's with those of the command line.
        args: the command line; what it names itself may lie anywhere.

    Raises:
        ValueError: naming the key, its value, and how to allow it.
    """
    given = {argument.partition("=")[0].removeprefix("--").replace(".init_args", "") for argument in args}
    if config.get("ckpt_path") is not None and "ckpt_path" not in given:
        raise ValueError(f"{folder}: its config sets ckpt_path, which only a command line may")
    roots = [folder.resolve(), Path("runs").resolve()]
    variables = [value for name, value in os.environ.items() if name.startswith(VARIABLE_PREFIX) and value]
    roots += [Path(value).resolve() for value in variables if Path(value).is_dir()]
    for path, value in _texts(config):
        if ".".join(part for part in path if part != "init_args" and not part.isdigit()) in given:
            continue
        name = next(part for part in reversed(path) if not part.isdigit())
        place = Path(os.path.expandvars(os.path.expanduser(value))) if "\0" not in value else None
        outside = place is None or not any(place.resolve().is_relative_to(root) for root in roots)
        escapes = place is None or place.is_absolute() or ".." in place.parts or value.startswith(("~", "$"))
        remote = path[0] != "init_from" and ("://" in value or name.endswith(ADDRESSES))
        # settings that no signature limits, such as W&B's proxies
        free = path[0] == "trainer" and "dict_kwargs" in path
        if remote or free or (outside and (name in FOLDERS or (path[0] in NAMING and escapes))):
            key = ".".join(path)
            raise ValueError(
                f"{folder}: its config sets {key} to {value!r}, outside of the run; if you want that, say so on the "
                f"command line: --{key}"
            )


def _texts(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in a tree with the keys that lead there."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _texts(value, (*path, str(key)))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _texts(value, (*path, str(number)))
    elif isinstance(node, str):
        yield path, node


def iterate_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    r"""Read a UTF-8 file line by line, with or without a byte order mark.

    Yields:
        The lines without their ends: `\n` or `\r\n`; U+2028, U+0085 and form feeds are text.

    Raises:
        ValueError: a line is not UTF-8; the message names the file and the line.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
            yield text.removesuffix("\n").removesuffix("\r")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Read all lines of a UTF-8 file, see `iterate_lines`."""
    return list(iterate_lines(path))
