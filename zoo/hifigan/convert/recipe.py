"""The original's config.json as our recipe, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.common.reading.text import load_json

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


def read_config(path: Path) -> dict[str, Any]:
    """Read an original config.json.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is not a JSON object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no original config at {path}")
    try:
        config = load_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object, found {type(config).__name__}")
    return config


def generator_spec(config: Mapping[str, Any], in_channels: int | None = None) -> dict[str, Any]:
    """Describe the generator of an original config, with every argument written out.

    Args:
        config: the original's settings.
        in_channels: input channels where the settings lack `num_mels`.

    Returns:
        `class_path` and `init_args`.

    Raises:
        ValueError: when a size is missing.
    """
    given = {"num_mels": in_channels, **config} if in_channels is not None else dict(config)
    missing = [key for key in GENERATOR_KEYS if key not in given]
    if missing:
        raise ValueError(f"the original's config lacks {', '.join(missing)}; it has {', '.join(list(config)[:8])}")
    arguments: dict[str, Any] = {ours: given[theirs] for theirs, ours in GENERATOR_KEYS.items()}
    arguments["resblock"] = str(arguments["resblock"])
    arguments |= {"conditioner": None, "padding_mode": "zeros", "init": "default"}
    return {"class_path": "zoo.hifigan.Generator", "init_args": arguments}


def mel_spec(config: Mapping[str, Any], f_max: float | None) -> dict[str, Any]:
    """Describe a mel front end of an original config, with every argument written out.

    Raises:
        ValueError: when a setting is missing.
    """
    missing = [key for key in MEL_KEYS if key not in config and key != "fmax"]
    if missing:
        raise ValueError(f"the original's config lacks {', '.join(missing)}; it has {', '.join(list(config)[:8])}")
    arguments = {ours: config.get(theirs) for theirs, ours in MEL_KEYS.items()}
    arguments["f_min"] = float(config["fmin"])
    arguments["f_max"] = None if f_max is None else float(f_max)
    return {"class_path": "zoo.audio.LogMel", "init_args": arguments}


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
    return recipe_of(read_config(path / CONFIG_NAME if path.is_dir() else path))


def recipe_of(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The recipe for an original's settings; see `convert_config`."""
    settings = DEFAULTS | dict(config)
    optimizer = {
        "class_path": "torch.optim.AdamW",
        "init_args": {"lr": settings["learning_rate"], "betas": [settings["adam_b1"], settings["adam_b2"]]},
    }
    scheduler = {"class_path": "torch.optim.lr_scheduler.ExponentialLR", "init_args": {"gamma": settings["lr_decay"]}}
    discriminators = {
        "mpd": {"class_path": "zoo.hifigan.MultiPeriodDiscriminator", "init_args": {}},
        "msd": {"class_path": "zoo.hifigan.MultiScaleDiscriminator", "init_args": {}},
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
    data = {"root": "${oc.env:ZOO_DATA,data}", **{ours: settings[theirs] for theirs, ours in DATA_KEYS.items()}}
    recipe = {
        "seed_everything": settings["seed"],
        "trainer": {"max_epochs": MAX_EPOCHS},
        "model": {"class_path": "zoo.hifigan.HiFiGANTask", "init_args": model},
        "data": {"class_path": "zoo.hifigan.VocoderData", "init_args": data},
    }
    mapped = {
        *GENERATOR_KEYS,
        *MEL_KEYS,
        *DATA_KEYS,
        "learning_rate",
        "adam_b1",
        "adam_b2",
        "lr_decay",
        "fmax_for_loss",
    }
    return recipe, [key for key in config if key not in mapped]


def original_config(
    generator: Mapping[str, Any], mel: Mapping[str, Any] | None, training: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings in the original's words.

    Args:
        generator: constructor arguments of the generator.
        mel: constructor arguments of the mel front end; None writes the generator's keys alone.
        training: the original's keys whose values are known from the run.

    Returns:
        What config.json holds.
    """
    config = {theirs: generator[ours] for theirs, ours in GENERATOR_KEYS.items()}
    if mel is None:
        return config
    return DEFAULTS | config | {theirs: mel[ours] for theirs, ours in MEL_KEYS.items()} | dict(training)
