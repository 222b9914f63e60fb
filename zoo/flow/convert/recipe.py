"""The lineage's training flags and Accelerate's launch configuration in our words: options laid over one recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zoo.common.systems import recipe_root
from zoo.convert.old_calls import PRECISIONS, launch_recipe
from zoo.convert.settings import Setting, read_table, set_option

RECIPE = "base_parity"

# The flags of the lineage's train.py; configs/flow/base_parity.yaml has the same defaults.
FLAGS = {
    "use_cfg": Setting(default=True),
    "batch_size": Setting("data.init_args.batch_size", default=32),
    "train_num_steps": Setting(updates="trainer.max_steps", default=100_000),
    "warmup_steps": Setting(default=200, least=0),
    "log_interval": Setting(updates="trainer.log_every_n_steps", default=200),
    # Lightning counts batches here, as they do
    "sample_log_interval": Setting("trainer.val_check_interval", "checkpoints.every_n_batches", default=2000),
    # 0 or less takes all
    "max_num_images_per_cat": Setting("data.init_args.max_per_class", default=3000, least=-math.inf),
    "sigma_min": Setting("model.init_args.path.init_args.sigma_min", default=0.001, least=0),
    "seed": Setting("seed_everything data.init_args.seed", default=63, least=0),
    "cfg_dropout": Setting("model.init_args.label_drop", default=0.1, least=0),
    "image_resolution": Setting("data.init_args.image_resolution", default=64),
    "gradient_accumulation_steps": Setting("trainer.accumulate_grad_batches", default=1),
    "mixed_precision": Setting(default="no"),
    "num_workers": Setting("data.init_args.num_workers", default=4, least=0),
}
WITHOUT_CLASSES = {
    "model.init_args.net.init_args.num_classes": 0,
    "model.init_args.label_drop": 0.0,
    "model.init_args.guidance": None,
}


def options(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values by dotted option, such as `trainer.max_steps`, that flags given by name, without dashes, stand for.

    Flags that are not given and depend on none that is are left to the recipe.
    """
    flags = {flag: setting.default for flag, setting in FLAGS.items()}
    flags |= {flag: _read(flag, value, where) for flag, value in given.items()}
    parts = flags["gradient_accumulation_steps"]
    found: dict[str, Any] = {}
    for flag, value in flags.items():
        if flag in given:
            found |= FLAGS[flag].laid_out(value, parts)
        elif FLAGS[flag].updates and "gradient_accumulation_steps" in given:
            found[FLAGS[flag].updates] = math.ceil(value / parts)
    if "mixed_precision" in given:
        found["trainer.precision"] = PRECISIONS[str(flags["mixed_precision"])]
    if "warmup_steps" in given:
        # their factor is (k + 1) / warmup_steps and never above 1
        steps = max(int(flags["warmup_steps"]) - 1, 0)
        found["model.init_args.scheduler.init_args.warmup_steps"] = steps
    return found if flags["use_cfg"] else found | WITHOUT_CLASSES


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn the lineage's config.json, or Accelerate's launch configuration (YAML), into a recipe.

    Returns:
        The recipe and the keys without a counterpart here. It trains as the lineage does, as `base_parity` with other
        values; a launch configuration gives the `trainer` section alone.
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
    usual = FLAGS[flag].default
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
    if number < FLAGS[flag].least:
        raise ValueError(f"{where}: {flag} is at least {FLAGS[flag].least}, not {value!r}")
    return number
