"""BigVGAN's own names and settings; its files are otherwise HiFi-GAN's: `g_*`, `do_*`, config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from zoo.convert.network_description import component
from zoo.hifigan.nets.antialiasing import AntiAliasedActivation

Value = TypeVar("Value")

HUB_FILES = ("bigvgan_generator.pt", "bigvgan_discriminator_optimizer.pt")
MARK = "activation"  # a setting that HiFi-GAN's config has not
DERIVED = re.compile(r"(\.filter|\.spec_fn\.window|\.resample\.kernel|\.cqt_transform\.\w+)$")
_UPSAMPLER = re.compile(r"^(ups\.\d+)\.0\.")
_PERIOD_CHANNELS = (32, 128, 512, 1024, 1024)
# the original's key, our argument, what a config without it means
GENERATOR_KEYS: dict[str, tuple[str, Any]] = {
    "activation": ("activation", None),
    "snake_logscale": ("log_scale", None),
    "use_tanh_at_final": ("tanh", True),
    "use_bias_at_final": ("last_bias", True),
}
SETTINGS = (
    "discriminator_channel_mult mpd_reshapes mrd_channel_mult mrd_use_spectral_norm resolutions clip_grad_norm "
    "lambda_melloss use_multiscale_melloss use_mbd_instead_of_mrd mbd_fft_sizes use_cqtd_instead_of_mrd cqtd_filters "
    "cqtd_max_filters cqtd_filters_scale cqtd_dilations cqtd_hop_lengths cqtd_n_octaves cqtd_bins_per_octaves "
    "cqtd_normalize_volume normalize_volume use_spectral_norm"
).split()


def is_bigvgan(config: Mapping[str, Any]) -> bool:
    """Whether settings are those of a BigVGAN."""
    return MARK in config


def our_names(state: Mapping[str, Value]) -> dict[str, Value]:
    """Names without the original's extra level, and without what follows from the settings (filters, windows)."""
    return {_UPSAMPLER.sub(r"\1.", key): value for key, value in state.items() if not DERIVED.search(key)}


def their_names(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """The inverse of `our_names` for a generator: with the filters, which the original's code demands."""
    named = {re.sub(r"^(ups\.\d+)\.", r"\1.0.", key): value for key, value in state.items()}
    for name, module in net.named_modules():
        if isinstance(module, AntiAliasedActivation):
            for place in ("upsample", "downsample.lowpass"):
                named[f"{name}.{place}.filter"] = module.down_filter.clone()
    return named


def generator_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments that HiFi-GAN's generator has not.

    Raises:
        ValueError: for a file whose settings cannot be.
    """
    found = {ours: config.get(theirs, default) for theirs, (ours, default) in GENERATOR_KEYS.items()}
    if found["activation"] not in ("snake", "snakebeta") or found["log_scale"] is None:
        raise ValueError(f"expected activation snake or snakebeta and snake_logscale, found {found}")
    if not isinstance(config.get("resblock", "1"), str):
        raise ValueError(f"resblock must be a text, found {config['resblock']!r}")
    return found


def original_settings(generator: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `generator_arguments`."""
    return {theirs: generator[ours] for theirs, (ours, _) in GENERATOR_KEYS.items()}


def discriminators(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Describe the discriminators of a config: `mpd`, and `mrd` for whichever the second one is.

    Raises:
        ValueError: for filters that grow, which the original's code cannot run either.
    """
    width = config.get("discriminator_channel_mult", 1)
    found = {
        "mpd": component(
            "zoo.hifigan.MultiPeriodDiscriminator",
            periods=config.get("mpd_reshapes", [2, 3, 5, 7, 11]),
            channels=[int(channels * width) for channels in _PERIOD_CHANNELS],
        )
    }
    if config.get("use_cqtd_instead_of_mrd"):
        filters = config.get("cqtd_filters", 128)
        if config.get("cqtd_filters_scale", 1) != 1 and config.get("cqtd_max_filters", 1024) > filters:
            raise ValueError("cqtd_filters_scale other than 1 is not supported (nor does the original run with it)")
        found["mrd"] = component(
            "zoo.hifigan.MultiOctaveDiscriminator",
            sample_rate=config["sampling_rate"],
            hop_lengths=config.get("cqtd_hop_lengths", [512, 256, 256]),
            octaves=config.get("cqtd_n_octaves", [9, 9, 9]),
            bins_per_octave=config.get("cqtd_bins_per_octaves", [24, 36, 48]),
            filters=filters,
            dilations=config.get("cqtd_dilations", [1, 2, 4]),
            normalize=bool(config.get("cqtd_normalize_volume", False)),
        )
    elif config.get("use_mbd_instead_of_mrd"):
        sizes = config.get("mbd_fft_sizes", [2048, 1024, 512])
        found["mrd"] = component("zoo.hifigan.MultiBandDiscriminator", fft_sizes=sizes)
    else:
        found["mrd"] = component(
            "zoo.hifigan.MultiResolutionDiscriminator",
            resolutions=config.get("resolutions", [[1024, 120, 600], [2048, 240, 1200], [512, 50, 240]]),
            channel_mult=config.get("mrd_channel_mult", width),
            spectral=bool(config.get("mrd_use_spectral_norm", False)),
        )
    return found


def model_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe's task says otherwise than HiFi-GAN's: losses, clipping, discriminators, schedule by batches."""
    several = bool(config.get("use_multiscale_melloss", False))
    reconstruction = config.get("lambda_melloss", 45.0)
    weights = {"g/mel": 0.0, "g/multi_mel": reconstruction} if several else {"g/mel": reconstruction}
    weights |= {f"g/adv_{name}": 1.0 for name in ("mpd", "mrd")} | {f"g/fm_{name}": 2.0 for name in ("mpd", "mrd")}
    found = {
        "discriminators": discriminators(config),
        "loss_weights": weights | {"d/mpd": 1.0, "d/mrd": 1.0},
        "step": dict.fromkeys(("clip_g", "clip_d"), float(config.get("clip_grad_norm", 1000.0))),
        "scheduler_interval": "step",
    }
    if several:
        found["multi_mel"] = component("zoo.audio.MultiScaleMel", sample_rate=config["sampling_rate"])
    return found


def same_filters(state: Mapping[str, Tensor], net: nn.Module) -> bool:
    """Whether the filters that a file brings are those that the settings give."""
    brought = {key: value for key, value in state.items() if key.endswith(".filter")}
    own = next((module.down_filter for module in net.modules() if isinstance(module, AntiAliasedActivation)), None)
    return own is None or all(torch.allclose(value, own, atol=1e-6) for value in brought.values())
