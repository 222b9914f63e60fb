"""The original's config.json as a recipe, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.audio.analysis.mel import LogMel
from zoo.convert.network_description import component
from zoo.convert.settings import read_settings_file
from zoo.hifigan.convert import bigvgan

CONFIG_NAME = "config.json"

# the original's key, our argument
GENERATOR_KEYS = {
    "num_mels": "in_channels",
    "upsample_initial_channel": "initial_channels",
    "upsample_rates": "upsample_rates",
    "upsample_kernel_sizes": "upsample_kernel_sizes",
    "resblock": "resblock",
    "resblock_kernel_sizes": "resblock_kernel_sizes",
    "resblock_dilation_sizes": "resblock_dilation_sizes",
}
MEL_KEYS = {
    "sampling_rate": "sample_rate",
    "n_fft": "n_fft",
    "hop_size": "hop_length",
    "win_size": "win_length",
    "num_mels": "n_mels",
    "fmin": "f_min",
    "fmax": "f_max",
}
UNWRITTEN_MEL = ("padding", "mel_scale", "magnitude_floor", "floor")  # of which a config says nothing
DATA_KEYS = {
    "sampling_rate": "sample_rate",
    "segment_size": "segment_samples",
    "batch_size": "batch_size",
    "num_workers": "num_workers",
    "seed": "seed",
}
MEL_ONLY_KEYS = {"n_fft", "hop_size", "win_size", "fmin"}  # of which a config without a mel has none
OTHER_KEYS = ("learning_rate", "adam_b1", "adam_b2", "lr_decay", "fmax_for_loss")
# config_v1.json of the original, for what a recipe does not say
DEFAULTS: dict[str, Any] = {
    "num_gpus": 0,
    "batch_size": 16,
    "learning_rate": 0.0002,
    "adam_b1": 0.8,
    "adam_b2": 0.99,
    "lr_decay": 0.999,
    "seed": 1234,
    "segment_size": 8192,
    "num_freq": 1025,
    "fmax_for_loss": None,
    "num_workers": 4,
    "dist_config": {"dist_backend": "nccl", "dist_url": "tcp://localhost:54321", "world_size": 1},
}
MAX_EPOCHS = 3100  # default of the original's --training_epochs


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn an original config.json, or that of a folder, into a recipe for `zoo fit`.

    Returns the recipe and the keys without a counterpart here, such as num_gpus, which is the trainer's devices.
    ValueError for a config without a mel, which says nothing to train on.
    """
    path = Path(path)
    recipe, unmapped = to_recipe(read_settings_file(path / CONFIG_NAME if path.is_dir() else path))
    if recipe["model"]["init_args"]["mel"] is None:
        raise ValueError(f"{path}: no mel (n_fft, ...) to train with")
    return recipe, unmapped


def to_recipe(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Turn an original's settings into a recipe; see `convert_config`.

    Without any of `MEL_ONLY_KEYS` the generator takes other features than a mel, such as VITS's latents, and the recipe
    has no mel.
    """
    settings = DEFAULTS | dict(config)
    has_mel = not MEL_ONLY_KEYS.isdisjoint(config)
    rates, hop = config.get("upsample_rates", ()), config.get("hop_size")
    if hop not in (None, math.prod(rates)):
        raise ValueError(
            f"the original's config: hop_size is {hop}, the product of upsample_rates {rates} is {math.prod(rates)}"
        )
    betas = [settings["adam_b1"], settings["adam_b2"]]
    optimizer = component("torch.optim.AdamW", lr=settings["learning_rate"], betas=betas)
    scheduler = component("torch.optim.lr_scheduler.ExponentialLR", gamma=settings["lr_decay"])
    model = {
        "generator": generator_spec(config),
        "discriminators": {
            "mpd": component("zoo.hifigan.MultiPeriodDiscriminator"),
            "msd": component("zoo.hifigan.MultiScaleDiscriminator"),
        },
        "mel": mel_spec(config, config.get("fmax")) if has_mel else None,
        "loss_mel": mel_spec(config, settings["fmax_for_loss"]) if has_mel else None,
        "optimizer_g": optimizer,
        "optimizer_d": optimizer,
        "scheduler_g": scheduler,
        "scheduler_d": scheduler,
        "loss_weights": {"g/mel": 45.0, **bigvgan.adversarial_weights("mpd", "msd")},
        **_arguments(config, {"sampling_rate": "sample_rate"}),
    }
    mapped = {*GENERATOR_KEYS, *MEL_KEYS, *DATA_KEYS, *OTHER_KEYS}
    if bigvgan.is_bigvgan(config):
        model |= bigvgan.model_arguments(config)
        mapped |= {*bigvgan.GENERATOR_KEYS, *bigvgan.SETTINGS}
        if not config.get("use_spectral_norm"):  # our MultiPeriodDiscriminator has weight norm alone
            mapped.add("use_spectral_norm")
    data = {"root": "${oc.env:ZOO_DATA,data}/ljspeech", **{zoo: settings[key] for key, zoo in DATA_KEYS.items()}}
    recipe = {
        "seed_everything": settings["seed"],
        "trainer": {"max_epochs": MAX_EPOCHS},
        "model": component("zoo.hifigan.HiFiGANTask", **model),
        "data": component("zoo.hifigan.VocoderData", **data),
    }
    return recipe, [key for key in config if key not in mapped]


def generator_spec(config: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the generator of an original config, with every argument; ValueError when a size is missing."""
    arguments = _arguments(config, GENERATOR_KEYS)
    stages = zip(arguments["upsample_kernel_sizes"], arguments["upsample_rates"], strict=True)
    if any((kernel - rate) % 2 for kernel, rate in stages):
        arguments["output_padding"] = 0  # the original pads by (kernel - rate) // 2 and gives one sample more a stage
    if bigvgan.is_bigvgan(config):
        return component("zoo.hifigan.BigVGAN", **arguments, **bigvgan.generator_arguments(config))
    arguments["resblock"] = str(arguments["resblock"])
    return component("zoo.hifigan.Generator", **arguments, conditioner=None, padding_mode="zeros", init="default")


def mel_spec(config: Mapping[str, Any], f_max: float | None) -> dict[str, Any]:
    """Describe a mel front end of an original config, with every argument; ValueError when a setting is missing."""
    arguments = _arguments({**config, "fmax": None}, MEL_KEYS) | {"f_min": float(config["fmin"])}
    return component("zoo.audio.LogMel", **arguments | {"f_max": None if f_max is None else float(f_max)})


def _arguments(config: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    missing = [key for key in keys if key not in config]
    if missing:
        raise ValueError(f"the original's config lacks {', '.join(missing)}; it has {', '.join(list(config)[:8])}")
    return {zoo: config[key] for key, zoo in keys.items()}


def original_config(generator: Mapping[str, Any], mel: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the contents of config.json for the constructor arguments of a generator and of its mel front end.

    Without the latter they are the generator's keys alone. ValueError for a mel other than HiFi-GAN's.
    """
    config = {key: generator[zoo] for key, zoo in GENERATOR_KEYS.items()}
    if "log_scale" in generator:
        config |= {key: generator[zoo] for key, (zoo, _) in bigvgan.GENERATOR_KEYS.items()}
    if mel is None:
        return config
    front, usual = LogMel(**mel), LogMel()
    if others := {name: getattr(front, name) for name in UNWRITTEN_MEL if getattr(front, name) != getattr(usual, name)}:
        raise ValueError(f"the original's format holds HiFi-GAN's mel alone, this one has {others}; use `zoo export`")
    return DEFAULTS | config | {key: mel[zoo] for key, zoo in MEL_KEYS.items()}
