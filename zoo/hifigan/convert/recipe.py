"""The original's config.json as our recipe, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
DATA_KEYS = {
    "sampling_rate": "sample_rate",
    "segment_size": "segment_samples",
    "batch_size": "batch_size",
    "num_workers": "num_workers",
    "seed": "seed",
}
OTHER_KEYS = ("learning_rate", "adam_b1", "adam_b2", "lr_decay", "fmax_for_loss")
# config_v1.json of the original; what a recipe of ours does not say takes these values on the way back
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
LOSS_WEIGHTS = {
    "g/mel": 45.0,
    "g/adv_mpd": 1.0,
    "g/adv_msd": 1.0,
    "g/fm_mpd": 2.0,
    "g/fm_msd": 2.0,
    "d/mpd": 1.0,
    "d/msd": 1.0,
}


def generator_spec(config: Mapping[str, Any], in_channels: int | None = None) -> dict[str, Any]:
    """Describe the generator of an original config, with every argument written out.

    Args:
        config: the original's settings.
        in_channels: input channels where the settings lack `num_mels`.

    Raises:
        ValueError: when a size is missing.
    """
    given = {**({} if in_channels is None else {"num_mels": in_channels}), **config}
    arguments = _arguments(given, GENERATOR_KEYS)
    stages = zip(arguments["upsample_kernel_sizes"], arguments["upsample_rates"], strict=True)
    if any((kernel - rate) % 2 for kernel, rate in stages):
        arguments["output_padding"] = 0  # the original pads by (kernel - rate) // 2 and gives one sample more a stage
    if bigvgan.is_bigvgan(config):
        return component("zoo.hifigan.BigVGAN", **arguments, **bigvgan.generator_arguments(config))
    arguments["resblock"] = str(arguments["resblock"])
    return component("zoo.hifigan.Generator", **arguments, conditioner=None, padding_mode="zeros", init="default")


def mel_spec(config: Mapping[str, Any], f_max: float | None) -> dict[str, Any]:
    """Describe a mel front end of an original config, with every argument written out.

    Raises:
        ValueError: when a setting is missing.
    """
    arguments = _arguments({**config, "fmax": None}, MEL_KEYS) | {"f_min": float(config["fmin"])}
    return component("zoo.audio.LogMel", **arguments | {"f_max": None if f_max is None else float(f_max)})


def _arguments(config: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    missing = [key for key in keys if key not in config]
    if missing:
        raise ValueError(f"the original's config lacks {', '.join(missing)}; it has {', '.join(list(config)[:8])}")
    return {ours: config[theirs] for theirs, ours in keys.items()}


def convert_config(path: Path | str) -> tuple[dict[str, Any], list[str]]:
    """Turn an original config.json into a recipe for `zoo fit`.

    Args:
        path: config.json, or a folder that holds one.

    Returns:
        The recipe (sections seed_everything, trainer, model, data) and the keys without a counterpart here:
        num_freq is read by nobody, num_gpus and dist_config are the trainer's devices and strategy.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is no config of a HiFi-GAN generator.
    """
    path = Path(path)
    return recipe_of(read_settings_file(path / CONFIG_NAME if path.is_dir() else path))


def recipe_of(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The recipe for an original's settings; see `convert_config`."""
    settings = DEFAULTS | dict(config)
    _check_hop(config)
    betas = [settings["adam_b1"], settings["adam_b2"]]
    optimizer = component("torch.optim.AdamW", lr=settings["learning_rate"], betas=betas)
    scheduler = component("torch.optim.lr_scheduler.ExponentialLR", gamma=settings["lr_decay"])
    discriminators = {
        "mpd": component("zoo.hifigan.MultiPeriodDiscriminator"),
        "msd": component("zoo.hifigan.MultiScaleDiscriminator"),
    }
    model = {
        "generator": generator_spec(config),
        "discriminators": discriminators,
        "mel": mel_spec(config, config.get("fmax")),
        "loss_mel": mel_spec(config, settings["fmax_for_loss"]),
        "optimizer_g": optimizer,
        "optimizer_d": optimizer,
        "scheduler_g": scheduler,
        "scheduler_d": scheduler,
        "loss_weights": dict(LOSS_WEIGHTS),
        "sample_rate": config["sampling_rate"],
    }
    if bigvgan.is_bigvgan(config):
        model |= bigvgan.model_arguments(config)
    data = {"root": "${oc.env:ZOO_DATA,data}", **{ours: settings[theirs] for theirs, ours in DATA_KEYS.items()}}
    recipe = {
        "seed_everything": settings["seed"],
        "trainer": {"max_epochs": MAX_EPOCHS},
        "model": component("zoo.hifigan.HiFiGANTask", **model),
        "data": component("zoo.hifigan.VocoderData", **data),
    }
    mapped = {*GENERATOR_KEYS, *MEL_KEYS, *DATA_KEYS, *OTHER_KEYS}
    if bigvgan.is_bigvgan(config):
        mapped |= {*bigvgan.GENERATOR_KEYS, *bigvgan.SETTINGS}
    return recipe, [key for key in config if key not in mapped]


def _check_hop(config: Mapping[str, Any]) -> None:
    rates, hop = config.get("upsample_rates", ()), config.get("hop_size")
    if hop is not None and hop != (product := math.prod(rates)):
        raise ValueError(
            f"the original's config: hop_size is {hop}, the product of upsample_rates {rates} is {product}"
        )


def original_config(
    generator: Mapping[str, Any], mel: Mapping[str, Any] | None, training: Mapping[str, Any]
) -> dict[str, Any]:
    """What config.json holds.

    Args:
        generator: its constructor arguments.
        mel: those of the mel front end; None writes the generator's keys alone.
        training: the original's keys whose values are known from the run.
    """
    config = {theirs: generator[ours] for theirs, ours in GENERATOR_KEYS.items()}
    if "log_scale" in generator:
        config |= bigvgan.original_settings(generator)
    if mel is None:
        return config
    return DEFAULTS | config | {theirs: mel[ours] for theirs, ours in MEL_KEYS.items()} | dict(training)
