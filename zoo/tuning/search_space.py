"""Search spaces of `zoo tune`: texts such as `log(1e-5, 1e-3)` read as distributions of Optuna.

Values are those of YAML. A choice is stored as its JSON text, so that `true`, `1` and `'1'` stay three values.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from omegaconf import OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

EXAMPLE = "model.init_args.optimizer.init_args.lr=log(1e-5, 1e-3)"
RESERVED_KEYS = ("trainer.default_root_dir", "ckpt_path", "config")  # a study sets them for its trials
_CALL = re.compile(r"(uniform|log|int|choice)\s*\((.*)\)", re.DOTALL)
_KEY = re.compile(r"\w+(\.\w+)*")


def parse_search_space(texts: Sequence[str]) -> dict[str, BaseDistribution]:
    """Read texts `KEY=KIND(...)` as distributions by key; ValueError names what cannot be read."""
    space: dict[str, BaseDistribution] = {}
    for text in texts:
        key, _, value = (word.strip() for word in text.removeprefix("--").partition("="))
        if not _KEY.fullmatch(key) or key in RESERVED_KEYS or key in space:
            raise ValueError(f"--search {text}: {key!r} is no key, stands twice or is set by the study itself")
        try:
            space[key] = _parse_distribution(value)
        except (ValueError, yaml.YAMLError) as error:
            raise ValueError(f"--search {text}: {error}") from error
    if not space:
        raise ValueError(f"tune needs a search space: --search '{EXAMPLE}' (repeatable)")
    return space


def _parse_distribution(text: str) -> BaseDistribution:
    call = _CALL.fullmatch(text)
    if call is None:
        raise ValueError(f"expected uniform, log, int or choice, as in {EXAMPLE}")
    values: Any = OmegaConf.to_container(OmegaConf.create(f"[{call[2]}]"))
    if call[1] == "choice":
        choices = [json.dumps(value) for value in values]
        if not choices or len(set(choices)) < len(choices):
            raise ValueError("choice needs values, each once")
        return CategoricalDistribution(choices)
    number = (int,) if call[1] == "int" else (int, float)
    if not 2 <= len(values) <= 3 or not all(type(value) in number and math.isfinite(value) for value in values):
        raise ValueError(f"expected {call[1]}(low, high[, step]) with finite numbers, whole ones for int")
    low, high, *step = values
    with warnings.catch_warnings(action="ignore"):  # an end that no step reaches is lowered
        if call[1] == "int":
            return IntDistribution(low, high, step=step[0] if step else 1)
        return FloatDistribution(low, high, log=call[1] == "log", step=step[0] if step else None)


def suggest(trial: Trial, space: Mapping[str, BaseDistribution]) -> list[str]:
    """Let the study's sampler choose a value of each key; return the options of `zoo fit` that set them."""
    for key, each in space.items():
        if isinstance(each, CategoricalDistribution):
            trial.suggest_categorical(key, each.choices)
        elif isinstance(each, IntDistribution):
            trial.suggest_int(key, each.low, each.high, step=each.step)
        elif isinstance(each, FloatDistribution):
            trial.suggest_float(key, each.low, each.high, step=each.step, log=each.log)
    return [_flag(key, value) for key, value in recipe_values(trial).items()]


def recipe_values(trial: Any) -> dict[str, Any]:
    """Return the values of a trial as the recipe has them, by key."""
    return {key: json.loads(value) if isinstance(value, str) else value for key, value in trial.params.items()}


def _flag(key: str, value: Any) -> str:
    return f"--{key}={value if isinstance(value, str) else json.dumps(value)}"


def limit_flags(key: str, distribution: Any) -> list[str]:
    """Return options that show whether a recipe takes all values: both ends, or every choice."""
    if hasattr(distribution, "choices"):
        return [_flag(key, json.loads(choice)) for choice in distribution.choices]
    return [_flag(key, distribution.low), _flag(key, distribution.high)]


def grid_points(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List every combination of choices, as Optuna stores them; ValueError for a range."""
    for key, each in space.items():
        if not hasattr(each, "choices"):
            raise ValueError(f"--sampler grid: {key} is a range; use choice(...)")
    points = itertools.product(*(each.choices for each in space.values()))
    return [dict(zip(space, point, strict=True)) for point in points]
