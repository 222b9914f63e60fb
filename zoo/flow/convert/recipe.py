"""The lineage's training flags as options of one recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root
from zoo.convert.settings import PRECISIONS, SettingRule, read_settings_file, set_recipe_option, to_number, with_hints

RECIPE = "base_parity"

# The flags of the lineage's train.py; configs/flow/base_parity.yaml has the same defaults.
FLAGS = {
    "use_cfg": SettingRule(default=True),
    "batch_size": SettingRule("data.init_args.batch_size", default=32),
    "train_num_steps": SettingRule(updates="trainer.max_steps", default=100_000),
    "warmup_steps": SettingRule(default=200, least=0),
    "log_interval": SettingRule(updates="trainer.log_every_n_steps", default=200),
    # Lightning counts batches here, as they do
    "sample_log_interval": SettingRule("trainer.val_check_interval", "checkpoints.every_n_steps", default=2000),
    # 0 or less takes all
    "max_num_images_per_cat": SettingRule("data.init_args.max_per_class", default=3000, least=-math.inf),
    "sigma_min": SettingRule("model.init_args.path.init_args.sigma_min", default=0.001, least=0),
    "seed": SettingRule("seed_everything data.init_args.seed", default=63, least=0),
    "cfg_dropout": SettingRule("model.init_args.label_drop", default=0.1, least=0),
    "image_resolution": SettingRule("data.init_args.image_resolution", default=64),
    "gradient_accumulation_steps": SettingRule("trainer.accumulate_grad_batches", default=1),
    "mixed_precision": SettingRule(default="no"),
    "num_workers": SettingRule("data.init_args.num_workers", default=4, least=0),
}
WITHOUT_COUNTERPART = {
    "gpu": "devices are chosen by --trainer.devices=[0], CUDA_VISIBLE_DEVICES or the launcher; the original ignored it"
}
WITHOUT_CLASSES = {
    "model.init_args.net.init_args.num_classes": 0,
    "model.init_args.label_drop": 0.0,
    "model.init_args.guidance": None,
}


def options(arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values by dotted option, such as `trainer.max_steps`, that flags given by name, without dashes, stand for.

    Flags that are not given and depend on none that is are left to the recipe.
    """
    flags = {flag: setting.default for flag, setting in FLAGS.items()}
    flags |= {flag: _read(flag, value, where) for flag, value in arguments.items()}
    parts = flags["gradient_accumulation_steps"]
    values: dict[str, Any] = {}
    for flag, value in flags.items():
        if flag in arguments:
            values |= FLAGS[flag].recipe_values(value, parts)
        elif FLAGS[flag].updates and "gradient_accumulation_steps" in arguments:
            values[FLAGS[flag].updates] = math.ceil(value / parts)
    if "mixed_precision" in arguments:
        values["trainer.precision"] = PRECISIONS[str(flags["mixed_precision"])]
    if "warmup_steps" in arguments:
        # their factor is (k + 1) / warmup_steps and never above 1
        steps = max(int(flags["warmup_steps"]) - 1, 0)
        values["model.init_args.scheduler.init_args.warmup_steps"] = steps
    return values if flags["use_cfg"] else values | WITHOUT_CLASSES


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn the lineage's config.json into a recipe.

    Returns:
        The recipe and the keys without a counterpart here. It trains as the lineage does, as `base_parity` with other
        values.
    """
    path = Path(path)
    config = read_settings_file(path)
    if not {"train_num_steps", "batch_size"} <= set(config):
        raise ValueError(
            f"{path} is no configuration of the flow matching lineage: it lacks train_num_steps and batch_size "
            f"and has {', '.join(map(str, list(config)[:8]))}"
        )
    recipe = load_recipe(recipe_path())
    for option, value in options({key: config[key] for key in config if key in FLAGS}, str(path)).items():
        set_recipe_option(recipe, option, value)
    return recipe, with_hints([str(key) for key in config if key not in FLAGS], WITHOUT_COUNTERPART)


def recipe_path() -> Path:
    """The recipe that trains as the lineage does, and has the defaults of its flags."""
    return recipe_root() / "flow" / f"{RECIPE}.yaml"


def _read(flag: str, value: Any, where: str) -> bool | int | float | str:
    """A flag's value in its type."""
    rule = FLAGS[flag]
    if flag == "mixed_precision":
        name = "no" if value is None or value is False else str(value)  # YAML reads a bare `no` as false
        if name not in PRECISIONS:
            raise ValueError(f"{where}: mixed_precision is one of {', '.join(PRECISIONS)}, not {name!r}")
        return name
    if isinstance(rule.default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{where}: {flag} is true or false, not {value!r}")
        return value
    number = to_number(value, type(rule.default), f"{where}: {flag}")
    if number < rule.least:
        raise ValueError(f"{where}: {flag} is at least {rule.least}, not {value!r}")
    return number
