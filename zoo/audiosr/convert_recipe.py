"""ProjectLily's (or AudioSR's) config.yaml as a recipe of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.audio import files
from zoo.audiosr.convert_files import TARGETS, read_config
from zoo.audiosr.convert_options import SAMPLE_RATE, Settings, model_section

UNET = "diffusion_model"
RISING = 0.1  # the original's last factor on the rate, whatever min_lr_ratio says
# of the denoiser, see `Denoiser.groups`
GROUPS = (
    "global_encoder", "time_embed", "input_blocks", "middle_block", "output_blocks", "out", "global_fusion",
)  # fmt: skip


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn a configuration of ProjectLily, or AudioSR, into a recipe for `zoo fit`.

    It trains the same nets on the same features at the same rates. Unlike the original's, its frozen autoencoder stays
    frozen, its global encoder hears what it hears in inference, and crops and filters are fresh in each epoch.

    Args:
        path: config.yaml.

    Returns:
        The recipe, and the keys without a counterpart, with a word on what to do instead.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is none of these configurations, or a value cannot be.
    """
    path = Path(path)
    config = read_config(path)
    settings = Settings(config, path)
    params = config["model"]["params"]
    target = str(config["model"].get("target") or "")
    layout = TARGETS.get(target.partition(".")[0], "audiosr")
    arguments = model_section(settings, params, layout)
    recipe: dict[str, Any] = {
        "seed_everything": settings.number("experiment.seed", 1337, int),
        "trainer": _trainer(settings),
        "checkpoints": {
            "every_n_batches": settings.number("train.save_interval_steps", 25, int),
            "monitor": "val/loss",
        },
        "model": {"class_path": "zoo.audiosr.DiffusionTask", "init_args": arguments},
        "data": {"class_path": "zoo.audiosr.SuperResolutionData", "init_args": _data(settings)},
    }
    _schedule(settings, recipe)
    _start(settings, recipe)
    return recipe, settings.left()


def _trainer(settings: Settings) -> dict[str, Any]:
    accumulated = settings.number("train.gradient_accumulation_steps", 1, int)
    mixed = settings.flag("train.use_mixed_precision", False)
    scale = settings.number("train.amp_init_scale", 65536.0)
    callbacks = [_callback("EMA", {"modules": ["net"], "decay": settings.number("train.ema_decay", 0.999)})]
    if mixed:
        callbacks.append(_callback("LossScale", {"init_scale": scale}))
    callbacks += _monitor(settings)
    return {
        "devices": 1,
        "precision": "16-mixed" if mixed else "32-true",
        "accumulate_grad_batches": accumulated,
        "gradient_clip_val": 1.0,
        "log_every_n_steps": settings.number("train.log_interval", 10, int),
        # batches here, optimizer steps there
        "val_check_interval": accumulated * settings.number("train.valid_interval_steps", 100, int),
        "check_val_every_n_epoch": None,
        "default_root_dir": settings.take("experiment.out_dir"),
        "callbacks": callbacks,
    }


def _monitor(settings: Settings) -> list[dict[str, Any]]:
    protects = settings.flag("train.loss_explosion_protection", True)
    stops = settings.flag("train.early_stopping", False)
    limit, factor = (
        settings.number("train.explosion_threshold", 10.0),
        settings.number("train.lr_reduction_factor", 0.5),
    )
    patience = settings.number("train.patience", 1000, int)
    if not protects and not stops:
        return []
    arguments = {
        "threshold": limit if protects else math.inf,
        "factor": factor,
        "patience": patience if stops else None,
    }
    return [_callback("LossMonitor", arguments)]


def _data(settings: Settings) -> dict[str, Any]:
    for key, usual in (("data.high_dir_name", "high"), ("data.low_dir_name", "low")):
        if (name := settings.take(key, usual)) != usual:
            settings.notes.append(f"{key}: the folder {name} must be called {usual} here")
    rate = settings.number("data.sample_rate", SAMPLE_RATE, int)
    return {
        "root": str(settings.take("data.dataset_root", "data")),
        "sample_rate": "${model.init_args.features.init_args.sample_rate}",
        "segment_samples": round(rate * settings.number("data.segment_seconds", 10.24)),
        "val_ratio": settings.number("data.valid_ratio", 0.05),
        "split_seed": settings.number("data.split_seed", 1337, int),
        "blank_ratio_max": settings.number("data.blank_ratio_max", 0.3),
        "blank_hop_seconds": settings.number("data.blank_hop_seconds", 1.0),
        "blank_threshold": settings.number("data.blank_thr", 1e-4),
        "cache_mode": "ram" if settings.flag("train.preload_data_to_ram", False) else "memmap",
        "batch_size": settings.number("train.batch_size", 8, int),
        "num_workers": settings.number("train.num_workers", 4, int),
        "seed": settings.number("experiment.seed", 1337, int),
    }


def _schedule(settings: Settings, recipe: dict[str, Any]) -> None:
    """Warm-up and cosine over the epochs' steps; where the data are not there to count, a warm-up alone."""
    epochs = settings.number("train.epochs", 1000, int)
    warmup = settings.number("train.warmup_steps", 1000, int)
    last = settings.number("train.min_lr_ratio", RISING)
    data, trainer = recipe["data"]["init_args"], recipe["trainer"]
    root = Path(data["root"])
    folders = [root / part / "high" for part in ("train", "valid") if (root / part / "high").is_dir()]
    clips = sum(len(files.walk(folder)) for folder in folders)
    batches = math.ceil((clips - int(clips * data["val_ratio"])) / data["batch_size"])
    steps = epochs * batches // trainer["accumulate_grad_batches"]
    if steps > warmup:
        trainer["max_steps"] = steps
        scheduler = ("WarmupCosine", {"total_steps": "${trainer.max_steps}", "min_factor": last})
    else:
        trainer["max_epochs"] = epochs
        scheduler = ("WarmupConstant", {})
        found = f"no audio in {root}/train/high" if not clips else f"{steps} steps, {warmup} of them warm-up"
        settings.notes.append(f"train.min_lr_ratio: {found}: no cosine; set model.init_args.scheduler")
    name, arguments = scheduler
    recipe["model"]["init_args"]["scheduler"] = {
        "class_path": f"zoo.training.{name}",
        "init_args": {"warmup_steps": warmup, **arguments},
    }


def _start(settings: Settings, recipe: dict[str, Any]) -> None:
    """Weights to start from, and what they leave frozen."""
    given = settings.take("train.pretrained_path")
    exists = given is not None and Path(str(given)).exists()
    if exists:
        recipe["init_from"] = str(given)
    else:
        what = "no pretrained_path" if given is None else f"pretrained_path: no file at {given}"
        settings.notes.append(
            f"train.{what}: the frozen autoencoder is random, as the original's; set "
            "model.init_args.autoencoder.init_args.source"
        )
    settings.notes.append(
        "vocoder: none; set model.init_args.vocoder for sound (`zoo convert` of the weights writes one)"
    )
    wanted = settings.take("train.key_filter_contains", "")
    if exists and wanted not in ("", "model.diffusion_model."):
        settings.notes.append(f"train.key_filter_contains: {wanted!r} is not applied, the whole file is taken")
    frozen = settings.take("train.freeze_substrings", [])
    unfreezes = settings.flag("train.unfreeze_if_no_pretrained", True)
    if frozen and (exists or not unfreezes):
        _freeze(settings, frozen, recipe["model"]["init_args"])


def _freeze(settings: Settings, substrings: Sequence[str], arguments: dict[str, Any]) -> None:
    has_encoder = arguments["net"]["init_args"]["global_encoder"] is not None
    groups = [group for group in GROUPS if has_encoder or not group.startswith("global_")]
    resting = set()
    for text in substrings:
        named = [group for group in groups if str(text).strip(".").removeprefix("model.") in (group, f"{UNET}.{group}")]
        resting.update(named)
        if not named and not any(text in each for each in ("first_stage_model", "cond_stage_model")):
            settings.notes.append(f"train.freeze_substrings: {text!r} names no group as a whole; these are {groups}")
    if trains := [group for group in groups if group not in resting]:
        arguments["trains"] = trains if resting else "full"
    else:
        raise ValueError(f"{settings.path}: train.freeze_substrings {list(substrings)} leave nothing to train")


def _callback(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"class_path": f"zoo.training.{name}", "init_args": dict(arguments)}
