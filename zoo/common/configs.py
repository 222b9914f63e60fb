"""Read YAML, JSON and text of users, merge recipes, and limit what a config that came with a run may name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from zoo.common.foreign_files import iterate_keys
from zoo.common.systems import recipe_paths

MAX_YAML = 2**20  # characters of a YAML file, which takes seconds to read
# Arguments of Lightning's callbacks, loggers, profilers and strategies, and of our data, that are written to.
FOLDERS = {"cache", "default_root_dir", "dir", "dirpath", "log_dir", "nvme_path", "root_dir", "save_dir", "sub_dir"}
ADDRESS_SUFFIXES = ("_location", "_uri", "_url")  # of argument names whose values are addresses, also without "://"
FILE_NAME_SECTIONS = ("trainer", "checkpoints", "wandb")  # whose texts become parts of file names
CLASS_KEYS = ("class_path", "model_type")
VARIABLE_PREFIX = "ZOO_"
_LOGIN, _QUERY = re.compile(r"(?<=://)[^/?\s]+@"), re.compile(r"(://[^?\s]*)\?[^\s'\",\]}]*")
# OmegaConf's own, all but oc.env.
REMOVED_RESOLVERS = "oc.coerce oc.create oc.decode oc.deprecated oc.dict.keys oc.dict.values oc.select".split()

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBERS = {
    "int": r"[-+]?DIGITS$|0o[0-7]+$|0x[0-9a-fA-F]+$",
    "float": r"[-+]?(\.[0-9]+|DIGITS(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$",
}
_NUMERIC_TAGS = [f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp")]


class ConfigFileError(ValueError):
    """A file that is no config."""

    exit_code = 2


class PlainLoader(_Loader):
    """Read plain values with YAML 1.2's numbers: 1e-3 is one; 010 (a name, as of a class), 1:30 and a date are text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in rules if tag not in _NUMERIC_TAGS]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that stands twice, and a mapping that contains itself."""
        lines: dict[Any, int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key.value, str) and key.value in lines:
                message = f"{key.value} stands in line {lines[key.value]} and again in line {key.start_mark.line + 1}"
                raise yaml.constructor.ConstructorError(problem=message, problem_mark=key.start_mark)
            lines[str(key.value)] = key.start_mark.line + 1
        return super().construct_mapping(node, True)


class PlainDumper(yaml.SafeDumper):
    """Quote texts that either version of YAML would read as numbers."""


def _read_integer(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


PlainLoader.add_constructor("tag:yaml.org,2002:int", _read_integer)
for _name, _pattern in _NUMBERS.items():
    for _class, _digits in ((PlainLoader, "(0|[1-9][0-9]*)"), (PlainDumper, "[0-9]+")):
        _regex = re.compile(_pattern.replace("DIGITS", _digits))
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _regex, list("-+0123456789."))


def load_yaml(text: str) -> Any:
    """Read YAML of plain values; yaml.YAMLError where it is none, too long, too deep, or holds a key twice."""
    if len(text) > MAX_YAML:
        raise yaml.YAMLError(f"{len(text)} characters of YAML, at most {MAX_YAML} are read")
    try:
        content = yaml.load(text, Loader=PlainLoader)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:  # a tag on another kind of value
        raise yaml.YAMLError(f"no YAML of plain values ({type(error).__name__}: {error})") from error
    if _count_values(content, {}) > MAX_YAML:
        raise yaml.YAMLError(f"its aliases stand for more than {MAX_YAML} values")
    return content


def _count_values(value: Any, counts: dict[int, int]) -> int:
    """Count nested values with each alias written out; a list within itself counts as too many."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counts:
        counts[id(value)] = MAX_YAML + 1  # found again only within itself
        nested = value.values() if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_count_values(each, counts) for each in nested)
    return counts[id(value)]


def dump_yaml(value: Any) -> str:
    """Write plain values as YAML that `load_yaml` reads back as they are, keys in their order."""
    return yaml.dump(value, Dumper=PlainDumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def remove_credentials(text: str) -> str:
    """Remove user, password and query (which may hold a token or signature) from the addresses in a text."""
    return _QUERY.sub(r"\1", _LOGIN.sub("", text))


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a recipe, a config or a section as it stands; ConfigFileError where it is no mapping."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such recipe or config")
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigFileError(f"{path}{line}: no YAML: {error.problem}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigFileError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigFileError(f"{path}: expected a mapping of keys, found {type(content).__name__}")
    return content


def load_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe merged into those that it extends: `extends: base` (a file next to it) or `extends: hifigan/base`.

    Interpolations stay as they stand. ConfigFileError where it extends itself or what is no recipe.
    """
    return resolve_additions(read_recipe(path))


def read_recipe(path: Path, extending: Sequence[Path] = ()) -> dict[str, Any]:
    """Read a recipe as `load_recipe` does, but keep each `key+` that has no list yet, for a later merge."""
    content = read_mapping(path)
    names = content.pop("extends", [])
    merged: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:  # names only: a recipe may come from anybody
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+(/[\w-]+)?", name):
            raise ConfigFileError(f"{path}: extends {name!r}; expected the name of a recipe, base or hifigan/base")
        base = recipe_paths().get(name) if "/" in name else path.with_name(f"{name}.yaml")
        if base is None or not base.is_file():
            raise ConfigFileError(f"{path}: extends {name}, and there is no such recipe (`zoo list --all` names all)")
        if base in (path, *extending):
            raise ConfigFileError(f"{path}: extends {name}, which extends it")
        merged = merge(merged, read_recipe(base, (path, *extending)))
    return merge(merged, content)


def merge(before: Any, after: Any) -> Any:
    """Merge a section into another: mappings key by key, `key+` adds to a list, another class discards the former's.

    Where there is no list yet, `key+` stays for the next merge or `resolve_additions`.
    """
    if not isinstance(after, Mapping):
        return after
    old = before if isinstance(before, Mapping) else {}
    if any(kind in after and not _is_same_class(str(old.get(kind)), str(after[kind])) for kind in CLASS_KEYS):
        old = {}
    merged = {} if old.keys() <= after.keys() else dict(old)  # the order of the later one where it names all keys
    for key, value in after.items():
        if isinstance(key, str) and key.endswith("+"):
            name = key.removesuffix("+")
            former = merged.get(name, old.get(key)) or []
            added = [] if value is None else value
            lists = [each if isinstance(each, list) else [each] for each in (former, added)]
            merged[name if name in merged else key] = lists[0] + lists[1]
        else:
            merged.pop(f"{key}+", None)
            merged[key] = merge(old.get(key), value)
    return merged


def resolve_additions(config: Any) -> Any:
    """Rename each `key+` that found no list to add to: `key`."""
    if not isinstance(config, Mapping):
        return config
    return {
        key.removesuffix("+") if isinstance(key, str) else key: resolve_additions(value)
        for key, value in config.items()
    }


def _is_same_class(old: str, new: str) -> bool:
    """Compare two class names, of which one may be without its package."""
    return old == new if "." in old and "." in new else old.rpartition(".")[2] == new.rpartition(".")[2]


def load_run_config(path: Path, from_run: bool = False) -> dict[str, Any]:
    """Read a recipe by name or file and resolve its interpolations; `from_run` checks a run's own paths."""
    from omegaconf import OmegaConf  # only now: help does not wait for it
    from omegaconf.errors import OmegaConfBaseException

    content = read_mapping(path) if from_run else load_recipe(recipe_paths().get(str(path), path))
    restrict_resolvers()
    try:
        config: Any = OmegaConf.to_container(OmegaConf.create(content), resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    if from_run:
        check_config_paths(config, path.parent)
    return config


def restrict_resolvers() -> None:
    """Let interpolations read other keys and variables whose names begin with ZOO_, and nothing else."""
    from omegaconf import OmegaConf

    OmegaConf.clear_resolvers()
    for name in REMOVED_RESOLVERS:
        OmegaConf.clear_resolver(name)
    OmegaConf.register_resolver("oc.env", _read_variable, replace=True)


def _read_variable(name: str, default: Any = ...) -> Any:
    if not name.startswith(VARIABLE_PREFIX):
        raise ValueError(f"${{oc.env:{name}}}: a config reads variables whose names begin with {VARIABLE_PREFIX} only")
    value = os.environ.get(name, default)
    if value is ...:
        raise ValueError(f"${{oc.env:{name}}}: the variable {name} is not set, and the config gives no default")
    return value


def check_config_paths(config: Mapping[str, Any], folder: Path, args: Sequence[str] = ()) -> None:
    """Refuse paths outside of `folder` and addresses in a config that came with a run, with ValueError.

    What the command line, `args`, names itself may lie anywhere.
    """
    options = {argument.partition("=")[0].removeprefix("--").replace(".init_args", "") for argument in args}
    if config.get("ckpt_path") is not None and "ckpt_path" not in options:
        raise ValueError(f"{folder}: its config sets ckpt_path, which only a command line may")
    variables = [value for name, value in os.environ.items() if name.startswith(VARIABLE_PREFIX) and value]
    roots = [path.resolve() for path in (folder, Path("runs"), *filter(Path.is_dir, map(Path, variables)))]
    for key, text in iterate_keys(config):
        keys = key.split(".")
        is_named = ".".join(each for each in keys if each != "init_args" and not each.isdigit()) in options
        if is_named or not isinstance(text, str):
            continue
        name = next(each for each in reversed(keys) if not each.isdigit())
        path = Path(os.path.expandvars(os.path.expanduser(text))) if "\0" not in text else None
        outside = path is None or not any(path.resolve().is_relative_to(root) for root in roots)
        escapes = path is None or path.is_absolute() or ".." in path.parts or text.startswith(("~", "$"))
        remote = keys[0] != "init_from" and ("://" in text or name.endswith(ADDRESS_SUFFIXES))
        # settings that no signature limits, such as W&B's proxies
        free = keys[0] == "trainer" and "dict_kwargs" in keys
        if remote or free or (outside and (name in FOLDERS or (keys[0] in FILE_NAME_SECTIONS and escapes))):
            raise ValueError(
                f"{folder}: its config sets {key} to {text!r}, outside of the run; if you want that, say so on the "
                f"command line: --{key}"
            )
