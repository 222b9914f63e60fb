"""A recipe of ours from ProjectLily's (or AudioSR's) config.yaml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.audio.io import files
from zoo.audiosr.convert.from_original import FEATURES, PREDICTIONS, STEPS, describe_features
from zoo.audiosr.convert.layouts import LAYOUTS, TARGETS, check_scale, read_config, section
from zoo.audiosr.convert.net_sizes import ENCODER_KEYS, HEAD_CHANNELS, NORM_GROUPS, UNET_KEYS, VAE_DROPOUT
from zoo.convert.network_description import component
from zoo.convert.settings import SettingsReader, to_number

SAMPLE_RATE = 48_000
# the same here, or determined by other keys
IMPLIED = ("data.win_length", "train.lr")
# keys of `train` that ProjectLily's script takes as true where a file lacks them
ON_BY_DEFAULT = dict.fromkeys(("use_mixed_precision", "use_torch_compile", "use_gradient_checkpointing"), True)
HINTS = {
    "train.fastboot": "`zoo cache` prepares the data once",
    "train.use_jit_compile": "the original ignores it; train.use_torch_compile counts",
    "train.use_ddp": "the original's script ignores it; for several processes set model.init_args.parallel: none, take "
    "the recipe trainer/ddp and LossGuard in place of LossMonitor",
    "train.adaptive_lr": "the original ignores it: LossMonitor always looks for a rise",
    "train.stft_loss_weight": "never active in the original: add zoo.audiosr.MultiResolutionSTFT to the losses",
    "train.mel_loss_weight": "never active in the original: add zoo.audiosr.MelL1 to the losses",
    "train.key_filter_contains": "the original's script ignores it: the complete file is taken",
    "train.freeze_substrings": "the original's script ignores it: set model.init_args.trains",
    "train.unfreeze_if_no_pretrained": "the original's script ignores it",
    "model.scale_by_std": "set model.init_args.latent_scale: auto for AudioSR's meaning of it",
    "inference.sampler": "the original does not read it: set model.init_args.restore.sampler",
    "inference.sample_steps": "the original does not read it: set model.init_args.restore.sampler",
    "inference.chunk_seconds": "the original does not read it: set model.init_args.restore.chunk_seconds",
    "inference.chunk_hop_seconds": "the original does not read it: set model.init_args.restore.overlap_seconds",
    "inference.guidance_scale": "no net that is trained without dropping the condition can be guided",
    "inference.dynamic_clip_percentile": "the original does not read it",
}
SECTIONS = ("data", "experiment", "inference", "train")
NETS = ("first_stage_config", "cond_stage_config", "unet_config", "data_config")  # of model.params
EMPTY: tuple[Any, ...] = (None, False, [], 0, 0.0)  # values that need no note
MIN_FACTOR = 0.1  # the original's last factor on the rate, whatever min_lr_ratio says
UNET_DEFAULTS: dict[str, Any] = {
    "channels": 128, "multipliers": [1, 2, 3, 5], "blocks": 2, "attention_factors": [2, 4, 8],
    "head_channels": HEAD_CHANNELS,
}  # fmt: skip


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn a config.yaml of ProjectLily, or AudioSR, into a recipe; returns it and notes on keys without counterpart.

    It trains the same nets on the same features at the same rates. Unlike the original's, its frozen autoencoder stays
    frozen, its global encoder gets what it gets in inference, and crops and filters are fresh in each epoch.
    FileNotFoundError, or ValueError for another program's configuration and values out of range.
    """
    path = Path(path)
    config = read_config(path)
    if wrong := [name for name in SECTIONS if config.get(name) and not isinstance(config[name], dict)]:
        raise ValueError(f"{path}: {wrong[0]} must be a table of settings")
    params = config["model"]["params"]
    options = {key: value for key, value in params.items() if key not in NETS}
    tables = {**{name: config.get(name) or {} for name in SECTIONS}, "model": options}
    if "train" in config:
        tables["train"] = {**ON_BY_DEFAULT, **tables["train"]}
    settings = SettingsReader(tables, path, IMPLIED, HINTS)
    layout = TARGETS.get(str(config["model"].get("target") or "").partition(".")[0], "audiosr")
    model = _model(settings, config, layout)
    rate = model["features"]["init_args"]["sample_rate"]
    recipe: dict[str, Any] = {
        "seed_everything": settings.number("experiment.seed", 1337, int),
        "trainer": _trainer(settings),
        "checkpoints": {
            "every_n_steps": settings.number("train.save_interval_steps", 25, int),
            "monitor": "val/loss",
        },
        "model": component("zoo.audiosr.DiffusionTask", **model),
        "data": component("zoo.audiosr.SuperResolutionData", **_data(settings, rate)),
    }
    _schedule(settings, recipe)
    _start(settings, recipe)
    return recipe, settings.unused(EMPTY)


def _trainer(settings: SettingsReader) -> dict[str, Any]:
    accumulated = settings.number("train.gradient_accumulation_steps", 1, int)
    mixed = settings.flag("train.use_mixed_precision", False)
    scale = settings.number("train.amp_init_scale", 65536.0)
    callbacks = [component("zoo.training.EMA", modules=["net"], decay=settings.number("train.ema_decay", 0.999))]
    protects = settings.flag("train.loss_explosion_protection", True)
    stops = settings.flag("train.early_stopping", False)
    threshold = settings.number("train.explosion_threshold", 10.0)
    factor = settings.number("train.lr_reduction_factor", 0.5)
    patience = settings.number("train.patience", 1000, int)
    if protects or stops:
        threshold, patience = threshold if protects else math.inf, patience if stops else None
        callbacks.append(component("zoo.audiosr.LossMonitor", threshold=threshold, factor=factor, patience=patience))
    scaler = component("torch.amp.GradScaler", init_scale=scale)
    plugin = component("lightning.pytorch.plugins.MixedPrecision", precision="16-mixed", device="cuda", scaler=scaler)
    return {
        "devices": 1,
        "precision": None if mixed else "32-true",
        **({"plugins": [plugin]} if mixed else {}),
        "accumulate_grad_batches": accumulated,
        "gradient_clip_val": 1.0,
        "log_every_n_steps": settings.number("train.log_interval", 10, int),
        # batches here, optimizer steps there
        "val_check_interval": accumulated * settings.number("train.valid_interval_steps", 100, int),
        "check_val_every_n_epoch": None,
        "default_root_dir": settings.get("experiment.out_dir"),
        "callbacks": callbacks,
    }


def _model(settings: SettingsReader, config: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """Arguments of `DiffusionTask`, the schedule left out."""
    params = config["model"]["params"]
    sizes = section(params, "first_stage_config", "params", "ddconfig")
    prediction = str(settings.get("model.parameterization", "v"))
    schedule = str(settings.get("model.beta_schedule", "cosine"))
    if prediction not in PREDICTIONS or schedule != "cosine":
        raise ValueError(
            f"{settings.path}: parameterization is one of {', '.join(PREDICTIONS)} and beta_schedule cosine; found "
            f"{prediction!r} and {schedule!r}"
        )
    data = {key: value for key, _ in FEATURES.values() if (value := settings.get(f"data.{key}")) is not None}
    kind = "audiosr" if layout == "audiosr" else "projectlily"
    features = describe_features({**config, "data": data}, kind, sizes.get("mel_bins"))
    rate = features["init_args"].get("sample_rate", SAMPLE_RATE)
    features["init_args"]["sample_rate"] = to_number(rate, int, f"{settings.path}: sample_rate")
    scale = settings.number("model.scale_factor", 1.0)
    if layout != "audiosr":
        check_scale(settings.path, scale)
    steps = settings.number("model.timesteps", STEPS, int)
    latents = to_number(sizes.get("z_channels", 16), int, "z_channels")
    learning_rate = settings.number("model.base_learning_rate", settings.values.get("train.lr", 1e-4))
    betas = [to_number(beta, float, "train.betas") for beta in settings.get("train.betas", (0.9, 0.99))]
    decay = settings.number("train.weight_decay", 1e-4)
    return {
        "net": _denoiser(settings, section(params, "unet_config", "params"), latents, layout),
        "autoencoder": component("zoo.audiosr.FrozenAutoencoder", source=None, config=_autoencoder(sizes, latents)),
        "vocoder": None,
        "features": features,
        "diffusion": component("zoo.audiosr.CosineDiffusion", steps=steps, prediction=PREDICTIONS[prediction]),
        "losses": {"latent": component("zoo.audiosr.Latent", distance=str(settings.get("model.loss_type", "l2")))},
        "latent_scale": "auto" if layout == "audiosr" else scale,
        "condition": {"dropout": 0.1 if layout == "audiosr" else 0.0},
        "parallel": "dp",
        "validation": {"sampler": component("zoo.audiosr.DPMSolver", steps=8)},
        "restore": {
            "guidance_scale": 1.0 if layout != "audiosr" else 3.5,
            "seed": settings.number("experiment.seed", 1337, int),
        },
        "compile": settings.flag("train.use_torch_compile", False),
        "compile_options": {
            "mode": str(settings.get("train.compile_mode", "default")),
            "fullgraph": settings.flag("train.compile_fullgraph", False),
        },
        "optimizer": component("torch.optim.AdamW", lr=learning_rate, betas=betas, weight_decay=decay),
    }


def _autoencoder(sizes: Mapping[str, Any], latents: int) -> dict[str, Any]:
    width = to_number(sizes.get("ch", 128), int, "ch")
    return {
        "in_channels": 1,
        "out_channels": 1,
        "block_out_channels": [width * multiplier for multiplier in sizes.get("ch_mult", [1, 2, 4, 8])],
        "layers_per_block": to_number(sizes.get("num_res_blocks", 2), int, "num_res_blocks"),
        "latent_channels": latents,
        "dropout": to_number(sizes.get("dropout", VAE_DROPOUT), float, "dropout"),
        "norm_num_groups": NORM_GROUPS,
    }


def _denoiser(settings: SettingsReader, unet: Mapping[str, Any], latents: int, layout: str) -> dict[str, Any]:
    encoder = None
    context = None
    if layout != "audiosr" and bool(unet.get("use_global_encoder", True)):
        defaults = dict(zip(("channels", "heads", "layers"), LAYOUTS[layout].encoder, strict=True))
        sizes = {name: unet.get(key, defaults[name]) for key, name in ENCODER_KEYS.items() if name in defaults}
        is_own = layout == "model.py" or all(sizes[name] == defaults[name] for name in ("channels", "layers"))
        context = to_number(unet.get("global_context_dim", 128), int, "global_context_dim")
        encoder = component(
            "zoo.audiosr.GlobalEncoder",
            n_mels="${model.init_args.features.init_args.n_mels}",
            **{name: to_number(value, int, name) for name, value in (sizes if is_own else defaults).items()},
            context_channels=context,
        )
    defaults = {**UNET_DEFAULTS, "in_channels": 2 * latents, "out_channels": latents}
    arguments = {name: unet.get(key, defaults[name]) for key, name in UNET_KEYS.items()}
    arguments["attention_factors"] = sorted(arguments["attention_factors"])
    net = component(
        "zoo.audiosr.UNet",
        **arguments,
        transformers_per_down_block=LAYOUTS[layout].transformers,
        norm_groups=NORM_GROUPS,
        fusion="none" if context is None else LAYOUTS[layout].fusion,
        context_channels=context,
        checkpointing=settings.flag("train.use_gradient_checkpointing", False),
    )
    return component("zoo.audiosr.Denoiser", unet=net, global_encoder=encoder)


def _data(settings: SettingsReader, sample_rate: int) -> dict[str, Any]:
    for key, usual in (("data.high_dir_name", "high"), ("data.low_dir_name", "low")):
        if (name := settings.get(key, usual)) != usual:
            settings.notes.append(f"{key}: the folder {name} must be called {usual} here")
    categories = settings.get("data.categories", [])
    names = categories if isinstance(categories, list) else [categories]
    if others := [str(name) for name in names if name not in ("train", "valid")]:
        settings.notes.append(f"data.categories: put the files of {', '.join(others)} into train/high")
    return {
        "root": str(settings.get("data.dataset_root", "data")),
        "sample_rate": "${model.init_args.features.init_args.sample_rate}",
        "segment_samples": round(sample_rate * settings.number("data.segment_seconds", 10.24)),
        "split": {
            "ratio": settings.number("data.valid_ratio", 0.05),
            "seed": settings.number("data.split_seed", 1337, int),
        },
        "silence": {
            "max_share": settings.number("data.blank_ratio_max", 0.3),
            "hop_seconds": settings.number("data.blank_hop_seconds", 1.0),
            "threshold": settings.number("data.blank_thr", 1e-4),
        },
        "cache_mode": "ram" if settings.flag("train.preload_data_to_ram", False) else "memmap",
        "batch_size": settings.number("train.batch_size", 8, int),
        "num_workers": settings.number("train.num_workers", 4, int),
        "seed": settings.number("experiment.seed", 1337, int),
    }


def _schedule(settings: SettingsReader, recipe: dict[str, Any]) -> None:
    """Warm-up and cosine over the epochs' steps; where the data are not there to count, a warm-up alone."""
    epochs = settings.number("train.epochs", 1000, int)
    warmup = settings.number("train.warmup_steps", 1000, int)
    last = settings.number("train.min_lr_ratio", MIN_FACTOR)
    data, trainer = recipe["data"]["init_args"], recipe["trainer"]
    root = Path(data["root"])
    folders = [root / split / "high" for split in ("train", "valid")]
    clips = sum(len(files.find_audio_files(folder)) for folder in folders if folder.is_dir())
    batches = (clips - int(clips * data["split"]["ratio"])) // data["batch_size"]
    steps = epochs * math.ceil(batches / trainer["accumulate_grad_batches"])
    if steps > warmup:
        trainer["max_steps"] = steps
        name, arguments = "WarmupCosine", {"min_factor": last}
    else:
        trainer["max_epochs"] = epochs
        name, arguments = "WarmupConstant", {}
        reason = f"no audio in {root}/train/high" if not clips else f"{steps} steps, {warmup} of them warm-up"
        settings.notes.append(f"train.min_lr_ratio: {reason}: no cosine; set model.init_args.scheduler")
    recipe["model"]["init_args"]["scheduler"] = component(f"zoo.training.{name}", warmup_steps=warmup, **arguments)


def _start(settings: SettingsReader, recipe: dict[str, Any]) -> None:
    """Weights to start from."""
    path = settings.get("train.pretrained_path")
    if path is not None and Path(str(path)).exists():
        recipe["init_from"] = str(path)
    else:
        reason = "no pretrained_path" if path is None else f"pretrained_path: no file at {path}"
        settings.notes.append(
            f"train.{reason}: the frozen autoencoder is random, as the original's; set "
            "model.init_args.autoencoder.init_args.source"
        )
    settings.notes.append(
        "vocoder: none; set model.init_args.vocoder for sound (`zoo convert` of the weights writes one)"
    )
