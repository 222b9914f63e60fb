"""The lineage's training flags and Accelerate's launch configuration in our words: options laid over one recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zoo.common.systems import recipe_root
from zoo.convert.old_calls import PRECISIONS, launch_recipe
from zoo.convert.settings import read_table, set_option

RECIPE = "base_parity"

# The flags of the lineage's train.py with their defaults; configs/flow/base_parity.yaml has the same.
FLAGS: dict[str, bool | int | float | str] = {
    "use_cfg": True,
    "batch_size": 32,
    "train_num_steps": 100_000,
    "warmup_steps": 200,
    "log_interval": 200,
    "sample_log_interval": 2000,
    "max_num_images_per_cat": 3000,
    "sigma_min": 0.001,
    "seed": 63,
    "cfg_dropout": 0.1,
    "image_resolution": 64,
    "gradient_accumulation_steps": 1,
    "mixed_precision": "no",
    "num_workers": 4,
}
WITHOUT_COUNTERPART = {
    "gpu": "devices are chosen by --trainer.devices=[0], CUDA_VISIBLE_DEVICES or the launcher; the fork ignored it too"
}
RENAMED: dict[str, tuple[str, ...]] = {
    "batch_size": ("data.init_args.batch_size",),
    "max_num_images_per_cat": ("data.init_args.max_per_class",),
    "sigma_min": ("model.init_args.path.init_args.sigma_min",),
    "seed": ("seed_everything", "data.init_args.seed"),
    "cfg_dropout": ("model.init_args.label_drop",),
    "image_resolution": ("data.init_args.image_resolution",),
    "gradient_accumulation_steps": ("trainer.accumulate_grad_batches",),
    "num_workers": ("data.init_args.num_workers",),
    "sample_log_interval": ("trainer.val_check_interval",),  # Lightning counts batches here, as they do
}
# Theirs count the batches of a process, ours optimizer steps, each of which may gather several batches.
COUNTED = {
    "train_num_steps": "trainer.max_steps",
    "log_interval": "trainer.log_every_n_steps",
    "sample_log_interval": "checkpoints.every_n_batches",
}
WITHOUT_CLASSES = {
    "model.init_args.net.init_args.num_classes": 0,
    "model.init_args.label_drop": 0.0,
    "model.init_args.guidance": None,
}
MAY_BE_ZERO = ("warmup_steps", "seed", "num_workers")
ANY_WHOLE = ("max_num_images_per_cat",)  # 0 or less takes all


def options(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options of our recipe that given flags stand for.

    Args:
        given: flags by name, without dashes; values as JSON has them, or as text.
        where: they come from, for messages.

    Returns:
        Values by dotted option, such as `trainer.max_steps`. Flags that are not given and depend on none that is are
        left to the recipe.

    Raises:
        ValueError: when a value cannot be.
    """
    flags = {**FLAGS, **{flag: _read(flag, value, where) for flag, value in given.items()}}
    parts = int(flags["gradient_accumulation_steps"])
    counted = COUNTED if "gradient_accumulation_steps" in given else COUNTED.keys() & given.keys()
    found: dict[str, Any] = {}
    for flag, value in flags.items():
        if flag in given:
            found |= dict.fromkeys(RENAMED.get(flag, ()), value)
        if flag in counted:
            found[COUNTED[flag]] = math.ceil(int(value) / parts)
    if "mixed_precision" in given:
        found["trainer.precision"] = PRECISIONS[str(flags["mixed_precision"])]
    if "warmup_steps" in given:
        # their factor is (k + 1) / warmup_steps and never above 1
        steps = max(int(flags["warmup_steps"]) - 1, 0)
        found["model.init_args.scheduler.init_args.warmup_steps"] = steps
    return found if flags["use_cfg"] else found | WITHOUT_CLASSES


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn the lineage's config.json, or Accelerate's launch configuration, into a recipe.

    Args:
        path: JSON of the training flags, or YAML with `distributed_type` and `num_processes`.

    Returns:
        The recipe and the keys without a counterpart here. It trains as the lineage does, as `base_parity` with other
        values; a launch configuration gives the `trainer` section alone.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is neither of the two.
    """
    path = Path(path)
    config = read_table(path)
    if (launch := launch_recipe(config, path)) is not None:
        return launch
    if not {"train_num_steps", "batch_size"} <= set(config):
        raise ValueError(
            f"{path} is no configuration of the flow matching lineage: it lacks train_num_steps and batch_size "
            f"and has {', '.join(map(str, list(config)[:8]))}"
        )
    recipe = yaml.safe_load(recipe_path().read_text(encoding="utf-8"))
    for option, value in options({key: config[key] for key in config if key in FLAGS}, str(path)).items():
        set_option(recipe, option, value)
    return recipe, [str(key) for key in config if key not in FLAGS]


def recipe_path() -> Path:
    """The recipe that trains as the lineage does, and has the defaults of its flags."""
    return recipe_root() / "flow" / f"{RECIPE}.yaml"


def _read(flag: str, value: Any, where: str) -> bool | int | float | str:
    """A flag's value in its type."""
    usual = FLAGS[flag]
    if flag == "mixed_precision":
        name = "no" if value is None or value is False else str(value)  # YAML reads a bare `no` as false
        if name in PRECISIONS:
            return name
        raise ValueError(f"{where}: mixed_precision is one of {', '.join(PRECISIONS)}, not {name!r}")
    if isinstance(usual, bool):
        if isinstance(value, bool):
            return value
        raise ValueError(f"{where}: {flag} is true or false, not {value!r}")
    kind: type[int] | type[float] = int if isinstance(usual, int) else float
    try:
        number = kind(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | kind):
        raise ValueError(f"{where}: {flag} is a {'whole ' if kind is int else ''}number, not {value!r}")
    least = -math.inf if flag in ANY_WHOLE else 0 if kind is float or flag in MAY_BE_ZERO else 1
    if number < least:
        raise ValueError(f"{where}: {flag} is at least {least}, not {value!r}")
    return number
