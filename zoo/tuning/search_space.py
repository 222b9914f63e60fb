"""Search spaces of `zoo tune`: texts such as `log(1e-5, 1e-3)` read as distributions of Optuna.

`KEY=KIND(VALUE, ...)`: `uniform(low, high[, step])`, `log(low, high)` (uniform in the logarithm),
`int(low, high[, step])` and `choice(value, ...)`. Values are those of YAML. A choice is stored as its JSON text, so
that `true`, `1` and `'1'` stay three values.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from zoo.cli.recipes import SETTINGS_SUFFIXES
from zoo.common.configs import read_mapping

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

KINDS = ("uniform", "log", "int", "choice")
EXAMPLE = "model.init_args.optimizer.init_args.lr=log(1e-5, 1e-3)"
RESERVED_KEYS = ("trainer.default_root_dir", "ckpt_path", "config")  # a study sets them for its trials
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
MAX_GRID_POINTS = 10_000
_CALL = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_KEY = re.compile(r"\w+(\.\w+)*")


class _ValueLoader(yaml.SafeLoader):
    """YAML that also reads 1e-3 as a number; YAML 1.1 demands 1.0e-3."""


_ValueLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def parse_search_space(texts: Sequence[str]) -> dict[str, BaseDistribution]:
    """Read the values of `--search`: `KEY=KIND(...)`, or YAML files that map keys to these or to lists of choices.

    Returns:
        Distributions by key.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: naming what cannot be read, or a key that stands twice.
    """
    space: dict[str, BaseDistribution] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals and not text.endswith(SETTINGS_SUFFIXES):
            raise ValueError(f"--search {text!r}: expected KEY=KIND(...), such as {EXAMPLE}, or a YAML file of these")
        for name, entry in {key: value}.items() if equals else _flatten(read_mapping(Path(text))).items():
            name = name.removeprefix("--")
            if not _KEY.fullmatch(name) or name in RESERVED_KEYS or name in space:
                raise ValueError(f"--search {text}: {name!r} is no key, stands twice or is set by the study itself")
            try:
                space[name] = _parse_distribution(entry)
            except (ValueError, yaml.YAMLError) as error:
                raise ValueError(f"--search {text}: {name} is {entry!r}: {error}") from error
    if not space:
        raise ValueError(f"tune needs a search space: --search '{EXAMPLE}' (repeatable), or a YAML file")
    return space


def _parse_distribution(text: Any) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    call = _CALL.fullmatch(str(text))
    if not isinstance(text, list) and (call is None or call[1] not in KINDS):
        raise ValueError(f"expected one of {', '.join(KINDS)}, as in {EXAMPLE}")
    values = text if isinstance(text, list) else yaml.load(f"[{call[2]}]", _ValueLoader) if call else []
    if call is None or call[1] == "choice":
        choices = [json.dumps(value) for value in values]
        if len(set(choices)) < max(len(choices), 1):
            raise ValueError("choice needs values, each once")
        return CategoricalDistribution(choices)
    numbers = [
        yaml.load(value.removeprefix("step="), _ValueLoader) if str(value).startswith("step=") else value
        for value in values
    ]
    if not 2 <= len(numbers) <= 3 or not all(
        type(number) in (int, float) and math.isfinite(number) for number in numbers
    ):
        raise ValueError(f"expected {call[1]}(low, high[, step]) with finite numbers")
    low, high, *step = numbers
    with warnings.catch_warnings():  # an end that no step reaches is lowered
        warnings.simplefilter("ignore")
        if call[1] == "int":
            if any(number != int(number) for number in numbers):
                raise ValueError("int needs whole numbers")
            return IntDistribution(int(low), int(high), step=int(step[0]) if step else 1)
        return FloatDistribution(low, high, log=call[1] == "log", step=step[0] if step else None)


def _flatten(content: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flatten(value, f"{parent}{name}.") if isinstance(value, Mapping) else {f"{parent}{name}": value}
    return flat


def decode_value(distribution: BaseDistribution, value: Any) -> Any:
    """Turn a value as Optuna stores it into that of the recipe."""
    return json.loads(value) if hasattr(distribution, "choices") else value


def suggest(trial: Trial, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Let the study's sampler choose a value of each key; values that the trial already has stay."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values: dict[str, Any] = {}
    for key, each in space.items():
        if isinstance(each, CategoricalDistribution):
            values[key] = json.loads(str(trial.suggest_categorical(key, each.choices)))
        elif isinstance(each, IntDistribution):
            values[key] = trial.suggest_int(key, each.low, each.high, step=each.step)
        elif isinstance(each, FloatDistribution):
            values[key] = trial.suggest_float(key, each.low, each.high, step=each.step, log=each.log)
    return values


def limit_values(distribution: Any) -> list[Any]:
    """Return the values that show whether a recipe takes all others: both ends, or every choice."""
    if hasattr(distribution, "choices"):
        return [json.loads(choice) for choice in distribution.choices]
    return [distribution.low, distribution.high]


def grid_points(space: Mapping[str, BaseDistribution]) -> list[dict[str, Any]]:
    """List every combination of values, as Optuna stores them.

    Raises:
        ValueError: a range has no steps, or there are more than `MAX_GRID_POINTS` combinations.
    """
    axes = [_grid_values(key, each) for key, each in space.items()]
    count = math.prod(len(axis) for axis in axes)
    if count > MAX_GRID_POINTS:
        raise ValueError(f"--sampler grid: {count:,} combinations, at most {MAX_GRID_POINTS:,}")
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*axes)]


def _grid_values(key: str, distribution: Any) -> Sequence[Any]:
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    if distribution.step is None:
        raise ValueError(f"--sampler grid: {key} has no steps; use choice(...) or give a step")
    if isinstance(distribution.step, int):
        return range(distribution.low, distribution.high + 1, distribution.step)
    low, high, step = (Decimal(str(getattr(distribution, name))) for name in ("low", "high", "step"))
    count = int((high - low) // step) + 1
    if count > MAX_GRID_POINTS:
        raise ValueError(f"--sampler grid: {key} has {count:,} values, at most {MAX_GRID_POINTS:,}")
    return [float(low + number * step) for number in range(count)]


def to_flag(key: str, value: Any) -> str:
    """Return the option of `zoo fit` that sets a key."""
    return f"--{key}={value if isinstance(value, str) else json.dumps(value)}"


def complete_key(config: Any, key: str) -> str:
    """Insert the `init_args` that a key leaves out where a class stands in the config."""
    names = []
    for name in key.split("."):
        if isinstance(config, Mapping) and "init_args" in config and name not in CLASS_KEYS:
            names.append("init_args")
            config = config["init_args"]
        names.append(name)
        config = config.get(name) if isinstance(config, Mapping) else None
    return ".".join(names)


def to_fragment(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nest values by dotted keys, as a recipe does."""
    fragment: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        section = fragment
        for name in parents:
            section = section.setdefault(name, {})
        section[last] = value
    return fragment
