"""The original's configuration in our words: options laid over the recipe that trains as its own does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zoo.common.systems import recipe_root
from zoo.compressed_ad.convert.rules import DROPOUT, Kind, PolicyConverter, env_spec, grid_size, policy_spec
from zoo.compressed_ad.data.curriculum import CATEGORIES
from zoo.convert.old_calls import PRECISIONS, launch_recipe
from zoo.convert.settings import hinted, read_table, set_option

MODEL, DATA = "model.init_args", "data.init_args"
POLICY = f"{MODEL}.policy.init_args"
EMBEDDING, TRANSFORMER = f"{POLICY}.embedding.init_args", f"{POLICY}.transformer.init_args"
COMPRESSOR, DECODER = f"{POLICY}.compressor.init_args", f"{POLICY}.decoder.init_args"
OPTIMIZER, SCHEDULER = f"{MODEL}.optimizer.init_args", f"{MODEL}.scheduler.init_args"
CURRICULUM = f"{DATA}.curriculum.init_args"
RENAMED: dict[str, tuple[str, ...]] = {
    "seed": ("seed_everything", f"{DATA}.seed"),
    "env_split_seed": (f"{DATA}.split_seed",),
    "train_env_ratio": (f"{DATA}.train_share",),
    "num_actions": (f"{EMBEDDING}.num_actions",),
    "n_transit": (f"{TRANSFORMER}.context",),
    "tf_n_embd": (f"{EMBEDDING}.dim",),
    "tf_n_layer": (f"{TRANSFORMER}.depth",),
    "tf_n_head": (f"{TRANSFORMER}.heads",),
    "tf_dim_feedforward": (f"{TRANSFORMER}.feedforward",),
    "tf_dropout": (f"{TRANSFORMER}.dropout",),
    "lr": (f"{OPTIMIZER}.lr",),
    "beta1": (f"{OPTIMIZER}.betas.0",),
    "beta2": (f"{OPTIMIZER}.betas.1",),
    "weight_decay": (f"{OPTIMIZER}.weight_decay",),
    "label_smoothing": (f"{MODEL}.label_smoothing",),
    "grad_clip": ("trainer.gradient_clip_val",),
    "gradient_accumulation_steps": ("trainer.accumulate_grad_batches",),
    "gen_interval": ("trainer.val_check_interval",),  # Lightning counts batches here, as they do
    "train_batch_size": (f"{DATA}.batch_size", f"{MODEL}.lr_scaling.init_args.batch_size"),
    "train_n_stream": (f"{DATA}.streams",),
    "train_source_timesteps": (f"{DATA}.history_steps",),
    "num_workers": (f"{DATA}.num_workers",),
}
OWN: dict[Kind, dict[str, tuple[str, ...]]] = {
    "AD": {},
    "CAD": {
        "n_compress_tokens": (f"{COMPRESSOR}.num_latents",),
        "compress_n_layers": (f"{COMPRESSOR}.depth", f"{DECODER}.depth"),
        "compress_n_heads": (f"{COMPRESSOR}.heads", f"{DECODER}.heads"),
        "recon_reg_weight": (f"{MODEL}.recon_weight",),
        "reward_weight_multiplier": (f"{MODEL}.reward_weight",),
        "max_gradient_rounds": (f"{MODEL}.gradient_rounds",),
        "min_context_length": (f"{CURRICULUM}.shortest",),
        "min_lr_ratio": (f"{SCHEDULER}.min_factor",),
    },
    "v1": {
        "n_latent": (f"{COMPRESSOR}.num_latents",),
        "encoder_n_layer": (f"{COMPRESSOR}.depth",),
        "encoder_n_head": (f"{COMPRESSOR}.heads",),
        "encoder_dim_feedforward": (f"{COMPRESSOR}.feedforward",),
        "max_encoder_length": (f"{COMPRESSOR}.max_tokens",),
        "max_compression_depth": (f"{CURRICULUM}.max_compressions.0",),
    },
}
# Theirs count the batches of a process, ours optimizer steps, each of which may gather several batches.
COUNTED = {
    "train_timesteps": "trainer.max_steps",
    "num_warmup_steps": f"{SCHEDULER}.warmup_steps",
    "stage_warmup_steps": f"{SCHEDULER}.stage_warmup_steps",
    "summary_interval": "trainer.log_every_n_steps",
    "ckpt_interval": "checkpoints.every_n_batches",
}
SWITCHES = ("model", "env", "horizon", "grid_size", "mixed_precision", "curriculum_schedule")
RECONSTRUCTION = ("use_recon_reg", "use_reward_weighted_recon")
# What the earlier model's own recipe has, where a configuration is silent.
EARLIER = {
    **{"n_transit": 240, "tf_n_embd": 128, "tf_n_head": 8, "tf_n_layer": 4, "lr": 1e-4},
    **{"train_timesteps": 150_000, "num_warmup_steps": 5000},
}
# Of the lengths in a stage without shares of its own, by its limit on compressions; the others take that of None.
SHARES = {1: [0.5, 0.45, 0.05], 2: [0.35, 0.4, 0.2, 0.05], 3: [0.25, 0.3, 0.3, 0.15], None: [0.2, 0.25, 0.3, 0.25]}
EARLIER_SHARES = [0.1, 0.2, 0.3, 0.4]  # it draws items of depth 0 to 3, deeper ones more often
HINTS = {
    "alg": "the histories' source, see zoo collect",
    "alg_seed": "the histories' source, see zoo collect",
    "device": "trainer.accelerator",
    "early_stopping_patience": "the original only prints it",
    "eval_interval": "loss and acting are both evaluated every gen_interval",
    "flash_attn": "ignored by the original",
    "log_dir": "trainer.default_root_dir",
    "tf_attn_dropout": "ignored by the original, which takes tf_dropout",
    "tf_n_inner": "ignored by the original, which takes tf_dim_feedforward",
    "traj_dir": "data.init_args.root, a folder of zoo collect",
}


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn the original's configuration, or Accelerate's launch configuration, into a recipe.

    Args:
        path: the merged YAML that the original writes into a run's folder, a checkpoint of it (`.pt`, whose training
            then goes on once it is converted), or Accelerate's YAML with `distributed_type` and `num_processes`.

    Returns:
        The recipe and the keys without a counterpart here. It is the original's recipe for that model and environment
        with other values; a launch configuration gives the `trainer` section alone.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is none of them, or a value cannot be.
    """
    path = Path(path)
    original = PolicyConverter().read(path) if path.suffix == ".pt" else None
    config = read_table(path) if original is None else original.settings
    if original is not None and original.is_whole:
        config = {"grid_size": grid_size(original), **config}
    if (launch := launch_recipe(config, path)) is not None:
        return launch
    kind = _kind(config, path)
    recipe = yaml.safe_load(recipe_path(kind, config.get("env", "darkroom")).read_text(encoding="utf-8"))
    try:
        _lay_over(recipe, config, kind)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(map(str, error.args))}") from error
    if original is not None and original.is_whole:
        recipe["model"]["init_args"]["policy"] = policy_spec(original, path)  # so that the training can be resumed
    known = {*RENAMED, *OWN[kind], *COUNTED, *SWITCHES, *(RECONSTRUCTION if kind == "CAD" else ())}
    return recipe, hinted([str(key) for key in config if key not in known], HINTS)


def recipe_path(kind: Kind, env: str) -> Path:
    """The recipe that trains as the original's for a model and an environment does, or the nearest to it."""
    family = "key_to_door" if env == "dark_key_to_door" else "darkroom"
    return recipe_root() / "compressed_ad" / f"{family}_{'ad' if kind == 'AD' else 'cad'}.yaml"


def _kind(config: Mapping[str, Any], path: Path) -> Kind:
    """The model that a configuration is for."""
    if config.get("model") == "AD":
        return "AD"
    if config.get("model") == "CompressedAD":
        return "v1" if "n_latent" in config and "n_compress_tokens" not in config else "CAD"
    raise ValueError(
        f"{path} is no configuration of AD or CompressedAD: its model is {config.get('model')!r}, and it has "
        f"{', '.join(map(str, list(config)[:8]))}"
    )


def _lay_over(recipe: dict[str, Any], config: Mapping[str, Any], kind: Kind) -> None:
    """Set the options of a recipe that a configuration stands for."""
    arguments, data = recipe["model"]["init_args"], recipe["data"]["init_args"]
    if kind == "v1":
        _make_earlier(arguments, data)
        config = {**EARLIER, **config}
    if {"env", "horizon", "grid_size"} & set(config):
        size = int(config.get("grid_size", data["env"]["init_args"]["grid_size"]))
        data["env"] = env_spec(config, size)
        if config.get("env") not in (None, "darkroom", "dark_key_to_door"):
            data["root"] = f"${{oc.env:ZOO_DATA,data}}/{config['env']}"
    parts = int(config.get("gradient_accumulation_steps", 1))
    if kind == "CAD" and config.get("curriculum_schedule"):
        _set_stages(data["curriculum"]["init_args"], config["curriculum_schedule"], parts)
    for key, value in config.items():
        for option in {**RENAMED, **OWN[kind]}.get(key, ()):
            _set(recipe, option, value, key)
        if key in COUNTED and (key != "stage_warmup_steps" or kind == "CAD"):
            _set(recipe, COUNTED[key], math.ceil(int(value) / parts), key)
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
    given = [stage.get("length_distribution") for stage in stages]
    curriculum |= {
        "starts": [math.ceil(int(stage["step"]) / parts) for stage in stages],
        "max_compressions": limits,
        "shares": [
            [float(shares.get(name, 0.0)) for name in CATEGORIES] if shares else SHARES.get(limit, SHARES[None])
            for limit, shares in zip(limits, given, strict=True)
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
    arguments["scheduler"] = {
        "class_path": "zoo.training.RampedCosine",
        "init_args": {"warmup_steps": 0, "total_steps": "${trainer.max_steps}"},
    }
    stage = {"starts": [0], "max_compressions": [3], "shares": [EARLIER_SHARES]}
    data["curriculum"]["init_args"] |= stage
    data["offset"] = "start"


def _set(recipe: dict[str, Any], option: str, value: Any, key: str) -> None:
    """Set one option, as a number."""
    if value is not None and not isinstance(value, int | float):
        try:
            value = float(value)  # YAML reads 3e-4 as text
        except (TypeError, ValueError):
            raise ValueError(f"{key} is a number, not {value!r}") from None
    set_option(recipe, option, value)
