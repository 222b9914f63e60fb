"""What a key means: its docstring, type and choices, read from sources that are not imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zoo.common import registry
from zoo.ui.forms.signatures import arguments, described

SECTIONS = {
    "trainer": ("lightning.pytorch.trainer.trainer", "Trainer"),
    "checkpoints": ("zoo.training.callbacks.checkpoint", "Checkpoints"),
    "samples": ("zoo.training.callbacks.samples", "Samples"),
    "wandb": ("zoo.training.callbacks.loggers", "WandbSettings"),
    "terminal": ("zoo.training.callbacks.progress", "ProgressBar"),
}
TOP = {
    "seed_everything": "all random numbers come from it",
    "loggers": "beside metrics.csv, which is always written",
    "init_from_min_matched": "share of the weights that must match where init_from is given",
}
FOREIGN = {  # by package; put together when it is imported, or handed on, so that no source has them
    "torch.optim": {
        "lr": "learning rate, before the scheduler's factor",
        "betas": "decay rates of the running means of the gradient and of its square",
        "weight_decay": "share of a weight that is taken off at each step, times the learning rate",
        "fused": "whether one kernel steps all weights at once, instead of several for each",
    },
    "torch.amp": {
        "init_scale": "first factor on the loss",
        "growth_interval": "steps without overflow after which the factor doubles",
    },
    "lightning.pytorch.strategies": {
        "broadcast_buffers": "whether process 0 sends its buffers, such as running means, to all others each pass",
    },
}


@dataclass(frozen=True)
class Help:
    """What is known of a key.

    Args:
        text: of the docstring, in one line; "" without one.
        kind: its annotation, as written; "" where the sources do not tell.
        choices: the values that it takes, where the annotation lists them.
        takes_null: whether the annotation does; None where it is not known.
    """

    text: str = ""
    kind: str = ""
    choices: tuple[Any, ...] = ()
    takes_null: bool | None = None


def explain(values: Mapping[str, Any], key: str) -> Help:
    """What sources say of a key.

    Args:
        values: of the config, by key; says which classes stand where.
    """
    owner, _, name = key.rpartition(".")
    place = SECTIONS.get(owner) or _place(values.get(f"{owner.removesuffix('.init_args')}.class_path"))
    if name == "class_path":
        return Help("the part that stands here; its arguments follow", "class")
    if place is None:
        entry_of = explain(values, owner).text if owner.count(".") > 1 else ""
        return Help(f"`{name}` of `{owner.rpartition('.')[2]}`: {entry_of}" if entry_of else TOP.get(key, ""))
    argument = (arguments(*place) or {}).get(name)
    text = described(*place).get(name, "") or FOREIGN.get(place[0], {}).get(name, "")
    if argument is None or argument.annotation is None:
        return Help(text)
    kind = ast.unparse(argument.annotation)
    choices = argument.choices or ()
    takes_null = None in choices or "None" in kind or "Optional" in kind or kind == "Any"
    return Help(text, kind, tuple(choices), takes_null)


def _place(class_path: Any) -> tuple[str, str] | None:
    """Module and name of a class that a config names."""
    if not isinstance(class_path, str):
        return None
    package, _, name = class_path.rpartition(".")
    module = package if package in registry.EXTERNAL_CLASSES else registry.defining_module(class_path)
    return (module, name) if module else None
