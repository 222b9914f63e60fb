"""The original's configuration as a recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.common.checks import check_at_least
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root
from zoo.compressed_ad.convert.converter import DROPOUT, Kind, PolicyConverter, env_spec, grid_size, policy_spec
from zoo.compressed_ad.data.curriculum import CATEGORIES
from zoo.convert.settings import (
    PRECISIONS,
    SettingRule,
    read_settings_file,
    recipe_option,
    set_recipe_option,
    to_number,
    untranslated_keys,
)

MODEL, DATA = "model.init_args", "data.init_args"
POLICY = f"{MODEL}.policy.init_args"
EMBEDDING, TRANSFORMER = f"{POLICY}.embedding.init_args", f"{POLICY}.transformer.init_args"
COMPRESSOR, DECODER = f"{POLICY}.compressor.init_args", f"{POLICY}.decoder.init_args"
OPTIMIZER, SCHEDULER = f"{MODEL}.optimizer.init_args", f"{MODEL}.scheduler.init_args"
CURRICULUM = f"{DATA}.curriculum.init_args"
# `updates`: the original counts the batches of a process, the recipe optimizer steps of several batches.
KEYS = {
    **dict.fromkeys(("model", "env", "horizon", "grid_size", "mixed_precision", "curriculum_schedule"), SettingRule()),
    "stage_warmup_steps": SettingRule(),
    "seed": SettingRule(f"seed_everything {DATA}.seed"),
    "env_split_seed": SettingRule(hint="zoo collect --split_seed: the split lies with the histories"),
    "train_env_ratio": SettingRule(hint="zoo collect --train_share: the split lies with the histories"),
    "num_actions": SettingRule(f"{EMBEDDING}.num_actions"),
    "n_transit": SettingRule(f"{TRANSFORMER}.context"),
    "tf_n_embd": SettingRule(f"{EMBEDDING}.dim"),
    "tf_n_layer": SettingRule(f"{TRANSFORMER}.depth"),
    "tf_n_head": SettingRule(f"{TRANSFORMER}.heads"),
    "tf_dim_feedforward": SettingRule(f"{TRANSFORMER}.feedforward"),
    "tf_dropout": SettingRule(f"{TRANSFORMER}.dropout"),
    "lr": SettingRule(f"{OPTIMIZER}.lr"),
    "beta1": SettingRule(f"{OPTIMIZER}.betas.0"),
    "beta2": SettingRule(f"{OPTIMIZER}.betas.1"),
    "weight_decay": SettingRule(f"{OPTIMIZER}.weight_decay"),
    "label_smoothing": SettingRule(f"{MODEL}.label_smoothing"),
    "grad_clip": SettingRule("trainer.gradient_clip_val"),
    "gradient_accumulation_steps": SettingRule("trainer.accumulate_grad_batches"),
    "gen_interval": SettingRule("trainer.val_check_interval"),  # Lightning counts batches here, as they do
    "train_batch_size": SettingRule(f"{DATA}.batch_size {MODEL}.lr_scaling.init_args.batch_size"),
    "train_n_stream": SettingRule(f"{DATA}.store.streams"),
    "train_source_timesteps": SettingRule(f"{DATA}.store.steps"),
    "num_workers": SettingRule(f"{DATA}.num_workers"),
    "train_timesteps": SettingRule(updates="trainer.max_steps"),
    "num_warmup_steps": SettingRule(updates=f"{SCHEDULER}.warmup_steps"),
    "summary_interval": SettingRule(updates="trainer.log_every_n_steps"),
    "ckpt_interval": SettingRule(updates="checkpoints.every_n_steps"),
    "alg": SettingRule(hint="the histories' source, see zoo collect"),
    "alg_seed": SettingRule(hint="the histories' source, see zoo collect"),
    "device": SettingRule(hint="trainer.accelerator"),
    "early_stopping_patience": SettingRule(hint="the original only prints it"),
    "eval_interval": SettingRule(hint="loss and acting are both evaluated every gen_interval"),
    "flash_attn": SettingRule(hint="ignored by the original"),
    "log_dir": SettingRule(hint="trainer.default_root_dir"),
    "tf_attn_dropout": SettingRule(hint="ignored by the original, which takes tf_dropout"),
    "tf_n_inner": SettingRule(hint="ignored by the original, which takes tf_dim_feedforward"),
    "traj_dir": SettingRule(hint="data.init_args.root, a folder of zoo collect"),
    **dict.fromkeys(
        ("pretrain_timesteps", "pretrain_batch_size", "pretrain_lr", "pretrain_warmup_steps"),
        SettingRule(hint="for the recipe compressed_ad/pretrain_darkroom, whose run --init_from takes"),
    ),
}
KEYS_OF_KIND: dict[Kind, dict[str, SettingRule]] = {
    "AD": {},
    "CAD": {
        **dict.fromkeys(("use_recon_reg", "use_reward_weighted_recon"), SettingRule()),
        "n_compress_tokens": SettingRule(f"{COMPRESSOR}.num_latents"),
        "compress_n_layers": SettingRule(f"{COMPRESSOR}.depth {DECODER}.depth"),
        "compress_n_heads": SettingRule(f"{COMPRESSOR}.heads {DECODER}.heads"),
        "recon_reg_weight": SettingRule(f"{MODEL}.recon_weight"),
        "reward_weight_multiplier": SettingRule(f"{MODEL}.reward_weight"),
        "max_gradient_rounds": SettingRule(f"{MODEL}.gradient_rounds"),
        "min_context_length": SettingRule(f"{CURRICULUM}.shortest"),
        "min_lr_ratio": SettingRule(f"{SCHEDULER}.min_factor"),
        "stage_warmup_steps": SettingRule(updates=f"{SCHEDULER}.stage_warmup_steps"),
    },
    "v1": {
        "n_latent": SettingRule(f"{COMPRESSOR}.num_latents"),
        "encoder_n_layer": SettingRule(f"{COMPRESSOR}.depth"),
        "encoder_n_head": SettingRule(f"{COMPRESSOR}.heads"),
        "encoder_dim_feedforward": SettingRule(f"{COMPRESSOR}.feedforward"),
        "max_encoder_length": SettingRule(f"{COMPRESSOR}.max_tokens"),
        "max_compression_depth": SettingRule(f"{CURRICULUM}.max_compressions.0"),
    },
}
# Defaults of the earlier model's configuration.
EARLIER = {
    **{"n_transit": 240, "tf_n_embd": 128, "tf_n_head": 8, "tf_n_layer": 4, "lr": 1e-4},
    **{"train_timesteps": 150_000, "num_warmup_steps": 5000},
}
# Shares of lengths in a stage that gives none, by its limit on compressions; None for other limits.
SHARES = {1: [0.5, 0.45, 0.05], 2: [0.35, 0.4, 0.2, 0.05], 3: [0.25, 0.3, 0.3, 0.15], None: [0.2, 0.25, 0.3, 0.25]}
STAGES: list[Mapping[str, Any]] = [  # of a configuration without curriculum_schedule
    {"step": step, "max_compressions": limit} for step, limit in ((0, 1), (10_000, 2), (25_000, 3), (40_000, None))
]
EARLIER_SHARES = [0.1, 0.2, 0.3, 0.4]  # of depths 0 to 3


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn the original's configuration into a recipe.

    Args:
        path: the merged YAML that the original writes into a run's folder, or a checkpoint of it (`.pt`).

    Returns:
        The recipe of that model and environment with other values, and the keys without a counterpart.
    """
    path = Path(path)
    original = PolicyConverter().read(path) if path.suffix == ".pt" else None
    config = read_settings_file(path) if original is None else original.settings
    if original is not None and original.is_policy:
        config = {"grid_size": grid_size(original), **config}
    kind = _kind(config, path)
    recipe = load_recipe(recipe_path(kind, config.get("env", "darkroom")))
    try:
        _set_options(recipe, config, kind)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(map(str, error.args))}") from error
    if original is not None and original.is_policy:
        recipe["model"]["init_args"]["policy"] = policy_spec(original, path)  # so that a training can start from it
    return recipe, untranslated_keys(KEYS | KEYS_OF_KIND[kind], config)


def recipe_path(kind: Kind, env: str) -> Path:
    """Return the recipe of a model and an environment, or the nearest to it."""
    family = "key_to_door" if env == "dark_key_to_door" else "darkroom"
    return recipe_root() / "compressed_ad" / f"{family}_{'ad' if kind == 'AD' else 'cad'}.yaml"


def _kind(config: Mapping[str, Any], path: Path) -> Kind:
    """Model of a configuration."""
    if config.get("model") == "AD":
        return "AD"
    if config.get("model") == "CompressedAD":
        return "v1" if "n_latent" in config and "n_compress_tokens" not in config else "CAD"
    raise ValueError(
        f"{path} is no configuration of AD or CompressedAD: its model is {config.get('model')!r}, and it has "
        f"{', '.join(map(str, list(config)[:8]))}"
    )


def _set_options(recipe: dict[str, Any], config: Mapping[str, Any], kind: Kind) -> None:
    """Set the options of a recipe by a configuration."""
    arguments, data = recipe["model"]["init_args"], recipe["data"]["init_args"]
    if kind == "v1":
        _make_earlier(arguments, data)
        config = {**EARLIER, **config}
    if {"env", "horizon", "grid_size"} & set(config):
        size = to_number(config.get("grid_size", data["env"]["init_args"]["grid_size"]), int, "grid_size")
        data["env"] = env_spec(config, size)
        if config.get("env") not in (None, "darkroom", "dark_key_to_door"):
            data["root"] = f"${{oc.env:ZOO_DATA,data}}/{config['env']}"
    parts = to_number(config.get("gradient_accumulation_steps", 1), int, "gradient_accumulation_steps")
    check_at_least(1, gradient_accumulation_steps=parts)
    table = KEYS | KEYS_OF_KIND[kind]
    if kind == "CAD":
        _set_stages(data["curriculum"]["init_args"], config.get("curriculum_schedule") or STAGES, parts)
    for option in (rule.updates for key, rule in table.items() if rule.updates and key not in config):
        set_recipe_option(recipe, option, math.ceil(recipe_option(recipe, option) / parts))
    for key in filter(table.__contains__, config):
        for option, value in table[key].recipe_values(config[key], parts).items():
            set_recipe_option(recipe, option, _to_number(key, value))
    if "mixed_precision" in config:
        name = str(config["mixed_precision"] or "no")  # YAML reads a bare `no` as false
        if name not in {**PRECISIONS, "fp32": ""}:
            raise ValueError(f"mixed_precision is one of {', '.join(PRECISIONS)}, not {name!r}")
        recipe["trainer"]["precision"] = PRECISIONS.get(name, PRECISIONS["no"])
    if kind == "CAD" and not config.get("use_recon_reg", True):
        arguments["recon_weight"] = 0.0
        del arguments["policy"]["init_args"]["decoder"]
    if kind == "CAD" and not config.get("use_reward_weighted_recon", True):
        arguments["reward_weight"] = 1.0


def _set_stages(curriculum: dict[str, Any], stages: list[Mapping[str, Any]], parts: int) -> None:
    limits = [stage["max_compressions"] for stage in stages]
    distributions = [stage.get("length_distribution") for stage in stages]
    curriculum |= {
        "starts": [math.ceil(to_number(stage["step"], int, "step") / parts) for stage in stages],
        "max_compressions": limits,
        "shares": [
            [to_number(shares.get(name, 0.0), float, name) for name in CATEGORIES]
            if shares
            else SHARES.get(limit, SHARES[None])
            for limit, shares in zip(limits, distributions, strict=True)
        ],
    }


def _make_earlier(arguments: dict[str, Any], data: dict[str, Any]) -> None:
    """Turn the recipe of CAD into one of the earlier model: its net, no reconstruction, no stages."""
    policy = arguments["policy"]["init_args"]
    encoder = {"dim": policy["compressor"]["init_args"]["dim"], "num_latents": 40, "depth": 3, "heads": 8}
    policy["compressor"] = {
        "class_path": "zoo.compressed_ad.EncoderCompressor",
        "init_args": {**encoder, "dropout": DROPOUT},
    }
    del policy["decoder"]
    policy["type_embedding"] = False
    policy["embedding"]["init_args"]["norm"] = True
    policy["transformer"]["init_args"] |= {"input_norm": True, "final_norm": False}
    arguments |= {"recon_weight": 0.0, "reward_weight": 1.0}
    schedule = {"start_at_zero": True, "warmup_steps": 0}
    arguments["scheduler"] = {"class_path": "zoo.training.WarmupCosine", "init_args": schedule}
    stage = {"starts": [0], "max_compressions": [3], "shares": [EARLIER_SHARES]}
    data["curriculum"]["init_args"] |= stage
    data["windows"]["offset"] = "start"


def _to_number(key: str, value: Any) -> Any:
    """Convert to a number, or None; YAML reads 3e-4 as text."""
    try:
        return value if value is None or isinstance(value, int | float) else float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{key} is a number, not {value!r}") from None
