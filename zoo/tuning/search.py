"""What a study searches: keys of a recipe with their ranges or choices, by a small grammar.

`KEY=KIND(VALUE, ...)`: `uniform(low, high[, step])`, `log(low, high)` (uniform in the logarithm),
`int(low, high[, step])` and `choice(value, ...)`. Both ends belong to a range. Values are those of YAML: choices may be
lists, `choice([1, 2], [1, 4])`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from zoo.cli.recipes import CLASS_KEYS, near
from zoo.common.options import SETTINGS_SUFFIXES
from zoo.common.reading.configs import read_mapping
from zoo.common.reading.text import check_yaml

if TYPE_CHECKING:
    from optuna.trial import Trial

KINDS = ("uniform", "log", "int", "choice")
EXAMPLE = "model.init_args.optimizer.init_args.lr=log(1e-5, 1e-3)"
OURS = ("trainer.default_root_dir", "ckpt_path", "config")  # keys that a study itself sets
MOST_GRID_POINTS = 100_000
_CALL = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_KEY = re.compile(r"\w+(\.\w+)*")


class _ValueLoader(yaml.SafeLoader):
    """YAML whose numbers may be written as 1e-3, which YAML 1.1 takes for text."""


_ValueLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


@dataclass(frozen=True)
class Definition:
    """What all processes on a study agree on: `study.yaml`.

    Args:
        fit: recipe, fragments and flags of `zoo fit`.
        search: spaces by key, as text.
        mode: "min" or "max".
        more: options of every trial that follow from these.
        key: tells the study in the storage from another of this name.
    """

    name: str
    fit: list[str]
    search: dict[str, str]
    metric: str
    mode: str
    more: list[str] = field(default_factory=list)
    key: str = ""


@dataclass(frozen=True)
class Space:
    """Where a study looks for the value of one key.

    Args:
        key: of the recipe, with dots.
        kind: one of `KINDS`.
        low: smallest value of a range.
        step: between values of a range; None for any.
    """

    key: str
    kind: str
    low: float = 0
    high: float = 0
    step: float | None = None
    choices: tuple[Any, ...] = ()

    def __str__(self) -> str:
        values = self.choices if self.kind == "choice" else (self.low, self.high, *([self.step] if self.step else []))
        return f"{self.kind}({', '.join(json.dumps(value) for value in values)})"

    def suggest(self, trial: Trial) -> Any:
        """The value of a trial; one that was suggested before stays."""
        if self.kind == "choice":
            return self.value(trial.suggest_categorical(self.key, self.labels()))
        if self.kind == "int":
            return trial.suggest_int(self.key, int(self.low), int(self.high), step=int(self.step or 1))
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.kind == "log")

    def value(self, noted: Any) -> Any:
        """The value that a study notes as `noted`: a choice may be a list."""
        noted_values = zip(self.labels(), self.choices, strict=True)
        return next((value for each, value in noted_values if (type(each), each) == (type(noted), noted)), noted)

    def labels(self) -> list[Any]:
        """The choices as a study notes them; all as JSON where Python takes two for equal (true and 1, 1 and 1.0)."""
        plain = [label(value) for value in self.choices]
        return plain if len(set(plain)) == len(plain) else [json.dumps(value) for value in self.choices]

    def samples(self) -> list[Any]:
        """Values that show whether the recipe takes what may be suggested: both ends, or every choice."""
        return list(self.choices) if self.kind == "choice" else [self.low, self.high]

    def points(self) -> list[Any]:
        """All values as a study notes them.

        Raises:
            ValueError: there are infinitely many.
        """
        if self.kind == "choice":
            return self.labels()
        step = self.step or (1 if self.kind == "int" else None)
        if step is None:
            raise ValueError(f"--sampler grid: {self.key}={self} has no steps; use choice(...) or give a step")
        low, by = Decimal(str(self.low)), Decimal(str(step))
        count = int((Decimal(str(self.high)) - low) // by) + 1
        if count > MOST_GRID_POINTS:
            raise ValueError(f"--sampler grid: {self.key}={self} has {count:,} values, at most {MOST_GRID_POINTS:,}")
        return [type(self.low)(low + number * by) for number in range(count)]


def label(value: Any) -> bool | int | float | str | None:
    """A choice as a study notes it: lists and tables as text."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def option(key: str, value: Any) -> str:
    """The option of `zoo fit` that sets a key."""
    return f"--{key}={value if isinstance(value, str) else json.dumps(value)}"


def parse_spaces(given: Sequence[str]) -> list[Space]:
    """Read the values of `--search`: `KEY=KIND(...)`, or files of such.

    A file is a mapping of keys to texts `KIND(...)`, or to lists of choices; keys may be nested as in a recipe.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: naming what cannot be read, or a key given twice.
    """
    found: dict[str, Space] = {}
    for text in given:
        key, equals, space = (part.strip() for part in text.partition("="))
        if not equals and not text.endswith(SETTINGS_SUFFIXES):
            raise ValueError(f"--search {text!r}: expected KEY=KIND(...), such as {EXAMPLE}, or a YAML file of these")
        origin = f"--search {text}" if equals else text
        for name, value in {key: space}.items() if equals else _flat(read_mapping(Path(text)), "", origin).items():
            if name in found:
                raise ValueError(f"{origin}: {name} is searched twice")
            found[name] = parse_space(name, value, origin)
    if not found:
        raise ValueError(f"tune needs what to search: --search '{EXAMPLE}' (repeatable), or a YAML file of such")
    return list(found.values())


def parse_space(key: str, text: Any, origin: str) -> Space:
    """Read `KIND(...)`, or a list of choices.

    Args:
        origin: where it stands, for messages.

    Raises:
        ValueError: naming what is wrong with it.
    """
    key = key.removeprefix("--")
    if not _KEY.fullmatch(key):
        raise ValueError(f"{origin}: {key!r} is no key, expected names with dots between them")
    if key in OURS:
        raise ValueError(f"{origin}: {key} is set by the study itself")
    if isinstance(text, list):
        return _choice(key, text, origin)
    call = _CALL.fullmatch(str(text))
    if call is None or call[1] not in KINDS:
        name = call[1] if call else str(text)
        raise ValueError(
            f"{origin}: {name!r} is no search space{near(name, KINDS)} ({', '.join(KINDS)}), as in {EXAMPLE}"
        )
    try:
        check_yaml(f"[{call[2]}]")
        values = _parse_values(call[2])
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{origin}: cannot read the values in {text!r}") from error
    return _choice(key, values, origin) if call[1] == "choice" else _range(key, call[1], values, origin)


def _choice(key: str, values: list[Any], origin: str) -> Space:
    if len({json.dumps(value) for value in values}) < max(len(values), 1):
        raise ValueError(f"{origin}: choice needs values, each once, found {values}")
    return Space(key, "choice", choices=tuple(values))


def _range(key: str, kind: str, given: list[Any], origin: str) -> Space:
    steps = [value.removeprefix("step=") for value in given if isinstance(value, str) and value.startswith("step=")]
    values = [value for value in given if not isinstance(value, str)] + [_parse_values(step)[0] for step in steps]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    form = f"{kind}(low, high)" if kind == "log" else f"{kind}(low, high[, step])"
    if len(numbers) != len(values) or not 2 <= len(values) <= (2 if kind == "log" else 3):
        raise ValueError(f"{origin}: expected {form} with numbers, found {kind}({', '.join(map(str, given))})")
    low, high, step = numbers[0], numbers[1], (numbers[2] if len(numbers) == 3 else None)
    if not all(map(math.isfinite, numbers)) or low >= high or (step is not None and not 0 < step <= high - low):
        raise ValueError(
            f"{origin}: expected low < high and a step that fits between, found {', '.join(map(str, given))}"
        )
    if kind == "log" and low <= 0:
        raise ValueError(f"{origin}: log needs a low end above 0, found {low}")
    if kind == "int" and any(value != int(value) for value in numbers):
        raise ValueError(f"{origin}: int needs whole numbers, found {', '.join(map(str, given))}")
    if step is not None:  # the last value that the steps reach
        low_, step_ = Decimal(str(low)), Decimal(str(step))
        high = float(low_ + (Decimal(str(high)) - low_) // step_ * step_)
    to = int if kind == "int" else float
    return Space(key, kind, to(low), to(high), None if step is None else to(step))


def _parse_values(text: str) -> list[Any]:
    """Read the values between the brackets of a search space; what is quoted is text."""
    loader = _ValueLoader(f"[{text}]")
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _flat(content: Mapping[str, Any], above: str, origin: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{name}.", origin)
        else:
            flat[f"{above}{name}"] = value
    return flat


def nested(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of dotted keys as a fragment of a recipe.

    Args:
        config: of a run with these values: it tells where `init_args` was left out of a key.
    """
    fragment: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        place, there = fragment, config
        for name in path:
            place, there = _inside(place, there, name)
            place, there = place.setdefault(name, {}), there.get(name) if isinstance(there, Mapping) else None
        _inside(place, there, last)[0][last] = value
    return fragment


def _inside(place: dict[str, Any], there: Any, name: str) -> tuple[dict[str, Any], Any]:
    """Step into the `init_args` of a class where a key leaves them out."""
    if isinstance(there, Mapping) and "init_args" in there and name not in CLASS_KEYS:
        return place.setdefault("init_args", {}), there["init_args"]
    return place, there
