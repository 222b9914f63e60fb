"""What a recipe's controls show, and what edits of them change in its config."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import yaml

from zoo.ui.checks import Rules, read_yaml
from zoo.ui.forms.controls import ALWAYS, CALLBACKS, CONTROLS, OPTIONAL, Control

MAX_LINES = 2**16
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_/-]*(\.[A-Za-z0-9_][A-Za-z0-9_/-]*)*")


class Form:
    """The values of one recipe, and what edits make of them.

    Args:
        config: the recipe's content, or its complete config.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = copy.deepcopy(dict(config))
        self.values = ALWAYS | flatten(self.config)
        listed = _entries(self.config)
        for switch, (endings, entry) in OPTIONAL.items():
            found = [item for item in listed if _class_of(item).endswith(endings)]
            self.values[switch] = bool(found)
            if not found:
                self.values |= flatten({"trainer": {"callbacks": [entry]}})

    def key_of(self, control: Control) -> str | None:
        """The key that a control edits in this recipe; None where the recipe has none of its keys."""
        for pattern in control.keys:
            for key in self.values:
                if fnmatchcase(key, pattern):
                    return key
        return None

    def value_of(self, control: Control) -> Any:
        """What the control shows for the recipe as it is."""
        key = self.key_of(control)
        value = None if key is None else self.values[key]
        if control.kind == "many":
            return [item for item in value if item in control.choices] if isinstance(value, list) else []
        if control.kind == "switch":
            return value if isinstance(value, bool) else bool(value)
        if control.label == "Training mode" and isinstance(value, list):
            return "custom"
        if control.kind in ("text", "choice"):
            return None if value is None else _as_text(value)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def changes(self, given: Mapping[str, Any], lines: str, rules: Rules) -> dict[str, Any]:
        """What the edited values and further `key=value` lines change, as nested config values.

        Args:
            given: value by label of a control; those that show what the recipe says are no change.
            lines: one `key=value` each; the values are YAML.

        Raises:
            ValueError: a line or a value cannot be used.
        """
        edits: dict[str, Any] = {}
        for control in CONTROLS:
            key = self.key_of(control)
            if key is None or control.label not in given or control.kind == "many":
                continue
            value = given[control.label]
            if control.label == "Training mode" and value == "custom":
                many = next(entry.label for entry in CONTROLS if entry.kind == "many" and entry.keys == control.keys)
                value = [str(item) for item in given.get(many) or []]
                if value != self.values[key]:
                    edits[key] = value
            elif value not in ("", self.value_of(control)) and not (value is None and control.kind == "switch"):
                edits[key] = _typed(control, value)
        edits |= parse_lines(lines)
        for key, value in edits.items():
            rules.check_said(key, value)
        return self._nested(edits)

    def _nested(self, edits: dict[str, Any]) -> dict[str, Any]:
        config, touched = copy.deepcopy(self.config), set()
        self._switch(config, edits)
        changed = {key: value for key, value in edits.items() if key not in OPTIONAL}
        if any(switch in edits for switch in OPTIONAL):
            touched.add(CALLBACKS)
        result: dict[str, Any] = {}
        for key, value in changed.items():
            if _absent_callback(config, key):
                continue  # a setting of a callback that is switched off
            place = _set(config, key, value)
            if place is None:
                _set(result, key, value)
            else:  # a list is replaced as a whole by what is laid over it
                touched.add(place)
        for place in sorted(touched):
            _set(result, place, _get(config, place))
        return result

    def _switch(self, config: dict[str, Any], edits: Mapping[str, Any]) -> None:
        for switch, (endings, entry) in OPTIONAL.items():
            if switch not in edits:
                continue
            kept = [item for item in _entries(config) if not _class_of(item).endswith(endings)]
            if edits[switch]:
                added = copy.deepcopy(entry)
                if "monitor" in added["init_args"]:
                    added["init_args"]["monitor"] = self.values.get("checkpoints.monitor") or "val/loss"
                kept.append(added)
            config.setdefault("trainer", {})["callbacks"] = kept or None


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key; an object in a list is named by its class, `trainer.callbacks.EMA.init_args.decay`."""
    if isinstance(config, Mapping) and config:
        pairs = [(str(key), value) for key, value in config.items()]
    elif isinstance(config, list) and config and all(_class_of(item) for item in config):
        pairs = [(_class_of(item), item) for item in config]
    else:
        return {prefix: config}
    found: dict[str, Any] = {}
    for key, value in pairs:
        found |= flatten(value, f"{prefix}.{key}" if prefix else key)
    return found


def parse_lines(text: str) -> dict[str, Any]:
    """Read `key=value` lines; empty ones and comments (#) are passed over.

    Raises:
        ValueError: naming the line and what is wrong with it.
    """
    if len(text) > MAX_LINES:
        raise ValueError(f"the lines have {len(text)} characters, at most {MAX_LINES} are read; use a recipe")
    found: dict[str, Any] = {}
    for line in text.splitlines():
        line = line.strip().removeprefix("--")
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals or not _KEY.fullmatch(key):
            raise ValueError(f"{line[:80]!r}: expected key=value, such as data.init_args.batch_size=8")
        if any(
            key == other or f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.") for other in found
        ):
            raise ValueError(f"{key} is given twice, by itself or by a key that holds it; give it once")
        try:
            found[key] = read_yaml(value)
        except ValueError as error:
            raise ValueError(f"{line[:80]!r}: {error}") from error
    return found


def _typed(control: Control, value: Any) -> Any:
    if value is None:
        return value
    if control.kind == "switch":
        if not isinstance(value, bool):
            raise ValueError(f"{control.label}: expected true or false, not {str(value)[:60]!r}")
        return value
    if control.kind in ("int", "number"):
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{control.label}: expected a number, not {str(value)[:60]!r}")
        if control.kind == "int" and value != int(value):
            raise ValueError(f"{control.label}: expected a whole number, not {value}")
        whole = control.kind == "int" or (value == int(value) and abs(value) >= 1)
        return int(value) if whole else float(value)
    try:
        return read_yaml(str(value))
    except ValueError as error:
        raise ValueError(f"{control.label}: {error}") from error


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).split("\n...")[0].strip()


def _entries(config: Mapping[str, Any]) -> list[Any]:
    trainer = config.get("trainer")
    callbacks = trainer.get("callbacks") if isinstance(trainer, Mapping) else None
    return list(callbacks) if isinstance(callbacks, Sequence) and not isinstance(callbacks, str) else []


def _class_of(item: Any) -> str:
    path = item.get("class_path") if isinstance(item, Mapping) else None
    return path.rpartition(".")[2] if isinstance(path, str) else ""


def _absent_callback(config: Mapping[str, Any], key: str) -> bool:
    if not key.startswith(f"{CALLBACKS}."):
        return False
    name = key.removeprefix(f"{CALLBACKS}.").partition(".")[0]
    return name not in [_class_of(item) for item in _entries(config)]


def _set(config: dict[str, Any], key: str, value: Any) -> str | None:
    """Set a dotted key in place; returns the key of the outermost list on its way, None without one."""
    node: Any = config
    outer: str | None = None
    walked: list[str] = []
    *parents, last = key.split(".")
    for part in parents:
        if isinstance(node, list):
            outer = outer or ".".join(walked)
            node = next((item for item in node if _class_of(item) == part), None)
        else:
            if not isinstance(node.get(part), dict | list):
                node[part] = {}
            node = node[part]
        if node is None:
            raise ValueError(f"{key}: there is no {part} in {outer}")
        walked.append(part)
    if isinstance(node, list):
        raise ValueError(f"{key}: {'.'.join(walked)} is a list; give it as a whole")
    node[last] = value
    return outer


def _get(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config
