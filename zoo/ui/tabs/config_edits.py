"""Edits of a training's config: values by dotted key, and the changes that `zoo fit` merges over the recipe."""

from __future__ import annotations

import copy
import functools
import math
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from zoo.common.configs import PlainDumper, load_yaml

ABSENT = object()
CALLBACKS = "trainer.callbacks"


class CallbackSwitch(NamedTuple):
    """A callback that a switch adds or removes, known by how the names of its classes end."""

    suffixes: tuple[str, ...]
    class_path: str
    init_args: dict[str, Any]


SWITCHES = {  # keys of edits that are no keys of the config
    "loss_guard": CallbackSwitch(
        ("Guard", "LossMonitor"),
        "zoo.training.LossGuard",
        {"action": "skip", "factor": 10.0, "patience": 10, "reduce_factor": 0.5},
    ),
    "early_stopping": CallbackSwitch(
        ("EarlyStopping",),
        "lightning.pytorch.callbacks.EarlyStopping",
        {"monitor": None, "mode": "min", "patience": 10, "check_finite": False},
    ),
}


class ConfigEdits:
    """The edits of one recipe, whose complete config is `config`.

    Attributes:
        edits: values by dotted key; an object in a list is named by its class.
        problems: why a value cannot be used, by key.
        values: of the edited config by dotted key.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.edits: dict[str, Any] = {}
        self.problems: dict[str, str] = {}
        self.recipe_values = self.values = flatten_values(config)

    def edit(self, key: str, value: Any) -> None:
        """Edit a key, in place of edits of keys above and below it; ValueError when a list has no such object.

        The recipe's own value is an edit only beside others, which may have changed what follows from them. Of a
        mapping, which is merged with the recipe's, each key is an edit.
        """
        edits = self._edits_without(key)
        for each, item in _expand_mapping(key, value).items():
            if (edits and each not in SWITCHES) or not equal_values(item, self.recipe_values.get(each, ABSENT)):
                edits[each] = item
        self._use(edits, key)

    def edit_all(self, values: Mapping[str, Any]) -> None:
        """Edit keys, those with the recipe's value last: they are edits beside others only."""
        recipe = self.recipe_values
        same = {key for key in values if key not in SWITCHES and equal_values(values[key], recipe.get(key, ABSENT))}
        for key in sorted(values, key=same.__contains__):
            self.edit(key, values[key])

    def reset(self, key: str) -> None:
        """Return to the recipe's value, or what follows from the other edits."""
        self._use(self._edits_without(key), key)

    def _edits_without(self, key: str) -> dict[str, Any]:
        suffixes = SWITCHES[key].suffixes if key in SWITCHES else ()
        return {
            other: each
            for other, each in self.edits.items()
            if not overlap(key, other) and not (suffixes and _callback_name(other).endswith(suffixes))
        }

    def _use(self, edits: dict[str, Any], key: str) -> None:
        self.values = flatten_values(self._apply(edits)[0])
        self.edits = edits
        self.problems.pop(key, None)

    def differences(self) -> list[tuple[str, str, str]]:
        """List the edits in their order: key, the recipe's value and the edited one as texts."""
        recipe = {key: as_text(value) for key, value in self.recipe_values.items()}
        return [(key, recipe.get(key, "not set"), as_text(value)) for key, value in self.edits.items()]

    def to_changes(self) -> dict[str, Any]:
        """Return nested values to merge over the recipe; ValueError when one cannot be used.

        A list with edited objects is replaced as a whole.
        """
        for key, problem in self.problems.items():
            raise ValueError(problem if key in problem else f"{key}: {problem}")
        config, lists = self._apply(self.edits)
        changes: dict[str, Any] = {}
        for key, value in self.edits.items():
            if key not in SWITCHES and not any(key.startswith(f"{each}.") for each in lists):
                set_value(changes, key, copy.deepcopy(value))
        for key in lists:
            set_value(changes, key, functools.reduce(operator.getitem, key.split("."), config))
        return changes

    def _apply(self, edits: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """Return the edited config, and the keys of the lists that hold edited objects."""
        config, lists = copy.deepcopy(self.config), set()
        # a switch reads other keys, and adds what keys of callbacks edit
        for key in sorted(edits, key=lambda key: 1 if key in SWITCHES else 2 if _callback_name(key) else 0):
            if key in SWITCHES:
                _switch(config, SWITCHES[key], edits[key])
                lists.add(CALLBACKS)
            elif (outer := set_value(config, key, copy.deepcopy(edits[key]))) is not None:
                lists.add(outer)
        return config, lists


def flatten_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config by dotted key, and whether it has the callbacks of the switches."""
    names = [class_name(each) for each in _callbacks(config)]
    switches = {name: any(each.endswith(switch.suffixes) for each in names) for name, switch in SWITCHES.items()}
    return flatten(config) | switches


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return values by dotted key, `trainer.callbacks.EMA.init_args.decay`; a list of plain values is a value."""
    if isinstance(config, Mapping) and config:
        pairs = [(str(key), value) for key, value in config.items()]
    elif isinstance(config, list) and config and all(map(class_name, config)):
        pairs = list(zip(entry_names(config), config, strict=True))
    else:
        return {prefix: config}
    return {
        key: each
        for name, value in pairs
        for key, each in flatten(value, f"{prefix}.{name}" if prefix else name).items()
    }


def class_name(entry: Any) -> str:
    """Return `EMA` for an object of class `zoo.training.EMA`, "" for anything else."""
    path = entry.get("class_path") if isinstance(entry, Mapping) else None
    return path.rpartition(".")[2] if isinstance(path, str) else ""


def entry_names(entries: list[Any]) -> list[str]:
    """Name the objects of a list by their classes, the second one of a class with a number."""
    names: list[str] = []
    for entry in entries:
        name, number = class_name(entry), 2
        while name in names:
            name, number = f"{class_name(entry)}-{number}", number + 1
        names.append(name)
    return names


def set_value(config: dict[str, Any], key: str, value: Any) -> str | None:
    """Set a dotted key in place; returns the key of the outermost list on its way, None without one.

    ValueError when a list on its way has no such object.
    """
    node: Any = config
    outer: str | None = None
    path: list[str] = []
    *parents, last = key.split(".")
    for name in parents:
        if isinstance(node, list):
            outer = outer or ".".join(path)
            node = dict(zip(entry_names(node), node, strict=True)).get(name)
            if node is None:
                raise ValueError(f"{key}: there is no {name} in {outer}")
        else:
            if not isinstance(node.get(name), dict | list):
                node[name] = {}
            node = node[name]
        path.append(name)
    if isinstance(node, list):
        raise ValueError(f"{key}: {'.'.join(path)} is a list; set it as a whole")
    node[last] = value
    return outer


def overlap(key: str, other: str) -> bool:
    """Tell whether two dotted keys are the same, or one holds the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def equal_values(first: Any, second: Any) -> bool:
    """Tell whether two values mean the same to the parser: 1 and 1.0 do, true and 1 do not."""
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


def read_value(text: str) -> Any:
    """Parse a value as a recipe writes it; ValueError when it is no YAML."""
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {' '.join(str(error).split())[:120]}") from error


def as_text(value: Any) -> str:
    """Write a value in one line, as `read_value` reads it."""
    text = yaml.dump(
        value, Dumper=PlainDumper, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False
    )
    return str(text).removesuffix("\n").removesuffix("\n...").strip()


def expand_key(key: str, values: Mapping[str, Any]) -> str:
    """Return `model.init_args.lr` for `model.lr`, where a config with these values has a class at `model`."""
    path = ""
    for name in key.split("."):
        is_argument = f"{path}class_path" in values and name not in ("class_path", "init_args")
        path += f"init_args.{name}." if is_argument else f"{name}."
    return path[:-1]


def find_key_in_message(message: str, keys: Iterable[str]) -> str | None:
    """Return the longest of the keys that a message of the parser contains."""
    matches = [key for key in keys if re.search(rf"(?<![\w./]){re.escape(key)}(?![\w/-])", message)]
    return max(matches, key=len, default=None)


def describe_key(arguments: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return `help`, `type` and `choices` of a key of a config with these values; {} where nothing describes it."""
    names = key.split(".")
    if names[-1] == "class_path":
        return {"help": "the class that stands here; its arguments follow"}
    for length in range(len(names) - 1, -1, -1):
        owner = ".".join(names[:length]).removesuffix(".init_args")
        described = arguments.get(str(values.get(f"{owner}.class_path", owner)), {})
        name = ".".join(names[length:])
        if name in described or names[length] in described:  # a field of a dataclass, or a value in a dictionary
            return dict(described.get(name) or described[names[length]])
    return {}


def _expand_mapping(key: str, value: Any) -> dict[str, Any]:
    """Return the edits of a mapping's keys, nested ones included; a component, or another value, is one edit."""
    if value == {}:
        raise ValueError(f"{key}: an empty mapping changes nothing")
    is_merged = isinstance(value, Mapping) and "class_path" not in value and not any("." in str(name) for name in value)
    if not is_merged:
        return {key: value}
    return {inner: each for name in value for inner, each in _expand_mapping(f"{key}.{name}", value[name]).items()}


def _switch(config: dict[str, Any], switch: CallbackSwitch, is_on: bool) -> None:
    """Add a callback in place of others of its kind, or remove these; it watches what decides the best checkpoint."""
    entries = [each for each in _callbacks(config) if not class_name(each).endswith(switch.suffixes)]
    if is_on:
        watched = {name: config["checkpoints"][name] for name in ("monitor", "mode") if name in switch.init_args}
        entries.append({"class_path": switch.class_path, "init_args": switch.init_args | watched})
    config["trainer"]["callbacks"] = entries or None


def _callbacks(config: Mapping[str, Any]) -> list[Any]:
    callbacks = (config.get("trainer") or {}).get("callbacks")
    return callbacks if isinstance(callbacks, list) else []


def _callback_name(key: str) -> str:
    """Return the class of the callback that a key belongs to, "" for other keys."""
    return key.removeprefix(f"{CALLBACKS}.").partition(".")[0] if key.startswith(f"{CALLBACKS}.") else ""
