"""ProjectLily's (or AudioSR's) config.yaml as a recipe of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.audio.io import files
from zoo.audiosr.convert.ours import FEATURES, PREDICTIONS, features_spec
from zoo.audiosr.convert.read import (
    ENCODER_HEADS,
    HEAD_CHANNELS,
    NORM_GROUPS,
    TARGETS,
    VAE_DROPOUT,
    Layout,
    read_config,
)

SAMPLE_RATE = 48_000
ENCODERS: dict[Layout, tuple[int, int]] = {"modelV1": (128, 2), "model.py": (256, 4)}  # channels, layers
# said by other keys, or the same here without being said
IMPLIED = ("data.categories", "data.win_length", "train.lr")
HINTS = {
    "train.fastboot": "`zoo cache` prepares the data once; data.init_args.cache_mode: none starts at once",
    "train.use_jit_compile": "the original ignores it; train.use_torch_compile counts",
    "train.use_ddp": "the original's script ignores it; for several processes set model.init_args.parallel: none, take "
    "configs/trainer/ddp.yaml and RobustGuard in place of LossMonitor",
    "train.adaptive_lr": "the original ignores it: LossMonitor always looks for a rise",
    "train.stft_loss_weight": "never active in the original: add zoo.audiosr.MultiResolutionSTFT to the losses",
    "train.mel_loss_weight": "never active in the original: add zoo.audiosr.MelL1 to the losses",
    "train.unfreeze_if_no_pretrained": "without a pretrained file nothing is frozen in any case",
    "model.scale_by_std": "set model.init_args.latent_scale: auto for AudioSR's meaning of it",
    "inference.guidance_scale": "no net that is trained without dropping the condition can be guided",
    "inference.dynamic_clip_percentile": "the original does not read it",
}


class Settings:
    """Values of a configuration by dotted key, and which of them were asked for."""

    def __init__(self, config: Mapping[str, Any], path: Path) -> None:
        self.path = path
        sections = {name: config.get(name) or {} for name in ("data", "experiment", "inference", "train")}
        wrong = [name for name, section in sections.items() if not isinstance(section, Mapping)]
        if wrong:
            raise ValueError(f"{path}: {wrong[0]} must be a table of settings")
        inner = ("first_stage_config", "cond_stage_config", "unet_config", "data_config")
        sections["model"] = {k: v for k, v in config["model"]["params"].items() if k not in inner}
        self.values = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
        self.taken = set(IMPLIED)
        self.notes: list[str] = []

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key; null counts as not given."""
        self.taken.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.path}: {key} is true or false, not {value!r}")
        return value

    def number(self, key: str, default: Any, kind: type[int] | type[float] = float) -> Any:
        """A number; YAML reads `3e-5` as text."""
        value = self.take(key, default)
        try:
            return kind(float(value))
        except (TypeError, ValueError):
            raise ValueError(f"{self.path}: {key} is a number, not {value!r}") from None

    def left(self) -> list[str]:
        """Notes, and keys nobody asked for that hold something."""
        keys = [key for key, value in self.values.items() if key not in self.taken and value not in (None, False, [])]
        return [*self.notes, *(f"{key}: {HINTS[key]}" if key in HINTS else key for key in keys)]


def model_section(settings: Settings, params: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Arguments of `DiffusionTask`, the schedule left out.

    Args:
        settings: of the file.
        params: its `model.params`.
        layout: that its classes write.

    Raises:
        ValueError: when the diffusion is not ours, or a value cannot be.
    """
    sizes = _params(params, "first_stage_config").get("ddconfig") or {}
    prediction = str(settings.take("model.parameterization", "v"))
    schedule = str(settings.take("model.beta_schedule", "cosine"))
    if prediction not in PREDICTIONS or schedule != "cosine":
        raise ValueError(
            f"{settings.path}: parameterization is one of {', '.join(PREDICTIONS)} and beta_schedule cosine; found "
            f"{prediction!r} and {schedule!r}"
        )
    kind = "audiosr" if layout == "audiosr" else "projectlily"
    data = {key: settings.take(f"data.{key}") for key in FEATURES.values()}
    data["sample_rate"] = data["sample_rate"] or SAMPLE_RATE
    latents = int(sizes.get("z_channels", 16))
    return {
        "net": _denoiser(settings, _params(params, "unet_config"), latents, layout),
        "autoencoder": ours("FrozenAutoencoder", {"source": None, "config": _autoencoder(sizes)}),
        "vocoder": None,
        "features": features_spec({"data": data}, kind, sizes.get("mel_bins")),
        "diffusion": ours(
            "diffusion.CosineDiffusion",
            {"steps": settings.number("model.timesteps", 1000, int), "prediction": PREDICTIONS[prediction]},
        ),
        "losses": {"latent": ours("Latent", {"distance": str(settings.take("model.loss_type", "l2"))})},
        "latent_scale": "auto" if layout == "audiosr" else settings.number("model.scale_factor", 1.0),
        "condition_dropout": 0.1 if layout == "audiosr" else 0.0,
        "global_input": "lowres",
        "guidance_scale": 3.5 if layout == "audiosr" else 1.0,
        "parallel": "dp",
        **_inference(settings),
        "seed": settings.number("experiment.seed", 1337, int),
        "compile": settings.flag("train.use_torch_compile", False),
        "compile_mode": str(settings.take("train.compile_mode", "default")),
        "compile_fullgraph": settings.flag("train.compile_fullgraph", False),
        "optimizer": {
            "class_path": "torch.optim.AdamW",
            "init_args": {
                "lr": settings.number("model.base_learning_rate", settings.values.get("train.lr", 1e-4)),
                "betas": [float(beta) for beta in settings.take("train.betas", (0.9, 0.99))],
                "weight_decay": settings.number("train.weight_decay", 1e-4),
            },
        },
    }


def _autoencoder(sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "channels": int(sizes.get("ch", 128)),
        "multipliers": list(sizes.get("ch_mult", [1, 2, 4, 8])),
        "blocks": int(sizes.get("num_res_blocks", 2)),
        "latent_channels": int(sizes.get("z_channels", 16)),
        "dropout": float(sizes.get("dropout", VAE_DROPOUT)),
        "norm_groups": NORM_GROUPS,
    }


def _denoiser(settings: Settings, unet: Mapping[str, Any], latents: int, layout: Layout) -> dict[str, Any]:
    uses_encoder = layout != "audiosr" and bool(unet.get("use_global_encoder", True))
    context = int(unet.get("global_context_dim", 128)) if uses_encoder else None
    channels, layers = ENCODERS.get(layout, (0, 0))
    said = (unet.get("global_encoder_hidden_dim", channels), unet.get("global_encoder_layers", layers))
    named: Mapping[str, Any] = unet if layout == "model.py" or said == (channels, layers) else {}
    encoder = {
        "n_mels": "${model.init_args.features.init_args.n_mels}",
        "channels": int(named.get("global_encoder_hidden_dim", channels)),
        "heads": int(named.get("global_encoder_heads", ENCODER_HEADS.get(layout, 0))),
        "layers": int(named.get("global_encoder_layers", layers)),
        "context_channels": context,
    }
    net = {
        "in_channels": int(unet.get("in_channels", 2 * latents)),
        "out_channels": int(unet.get("out_channels", latents)),
        "channels": int(unet.get("model_channels", 128)),
        "multipliers": list(unet.get("channel_mult", [1, 2, 3, 5])),
        "blocks": int(unet.get("num_res_blocks", 2)),
        "attention_factors": sorted(unet.get("attention_resolutions", [2, 4, 8])),
        "head_channels": int(unet.get("num_head_channels", HEAD_CHANNELS)),
        "transformers_per_down_block": 1 if layout == "model.py" else 2,
        "norm_groups": NORM_GROUPS,
        "fusion": "none" if context is None else "residual" if layout == "model.py" else "replace",
        "context_channels": context,
        "checkpointing": settings.flag("train.use_gradient_checkpointing", False),
    }
    parts = {
        "unet": ours("UNet", net),
        "global_encoder": ours("GlobalEncoder", encoder) if uses_encoder else None,
    }
    return ours("Denoiser", parts)


def _inference(settings: Settings) -> dict[str, Any]:
    """Options of `zoo predict`, as far as the original's unused section says them."""
    found: dict[str, Any] = {}
    if settings.values.get("inference.sampler") == "ddim":
        settings.take("inference.sampler")
        steps = settings.number("inference.sample_steps", 100, int)
        found["sampler"] = ours("DDIM", {"steps": steps})
    if settings.values.get("inference.chunk_seconds") is not None:
        seconds = settings.number("inference.chunk_seconds", 10.24)
        found["chunk_seconds"] = seconds
        found["overlap_seconds"] = seconds - settings.number("inference.chunk_hop_seconds", seconds)
    return found


def _params(params: Mapping[str, Any], section: str) -> dict[str, Any]:
    return dict((params.get(section) or {}).get("params") or {})


def ours(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Description of a class of this system."""
    return {"class_path": f"zoo.audiosr.{name}", "init_args": dict(arguments)}


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
