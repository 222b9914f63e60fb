"""BigVGAN's own names and settings; its files are otherwise HiFi-GAN's: `g_*`, `do_*`, config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoo.convert.network_description import component
from zoo.convert.tensor_names import State
from zoo.hifigan.nets.antialiasing import AntiAliasedActivation, low_pass_filter
from zoo.hifigan.nets.discriminators import PERIOD_CHANNELS

HUB_FILES = ("bigvgan_generator.pt", "bigvgan_discriminator_optimizer.pt")
_DERIVED = re.compile(r"(\.filter|\.spec_fn\.window|\.resample\.kernel|\.cqt_transform\.\w+)$")
# the original's key, our argument, its value where a config lacks the key
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
    "cqtd_normalize_volume normalize_volume"
).split()


def is_bigvgan(config: Mapping[str, Any]) -> bool:
    """Return whether settings are those of a BigVGAN; HiFi-GAN's have no `activation`."""
    return "activation" in config


def to_zoo_names(state: Mapping[str, Tensor]) -> State:
    """Remove the original's extra level of names, and the filters and windows that follow from the settings."""
    return {re.sub(r"^(ups\.\d+)\.0\.", r"\1.", key): each for key, each in state.items() if not _DERIVED.search(key)}


def to_original_names(state: Mapping[str, Tensor], net: nn.Module) -> State:
    """Invert `to_zoo_names` for a generator, with the filters, which the original's code demands."""
    original_state = {re.sub(r"^(ups\.\d+)\.", r"\1.0.", key): value for key, value in state.items()}
    for name, module in net.named_modules():
        if isinstance(module, AntiAliasedActivation):
            for side in ("upsample", "downsample.lowpass"):
                original_state[f"{name}.{side}.filter"] = module.down_filter.clone()
    return original_state


def filters_match(filters: Mapping[str, Tensor]) -> bool:
    """Return whether the filters of a file are those of our activations."""
    expected = low_pass_filter()[None, None]
    return all(
        each.shape == expected.shape
        and each.is_floating_point()
        and torch.allclose(each.float(), expected, atol=max(1e-6, torch.finfo(each.dtype).eps))
        for each in filters.values()
    )


def generator_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constructor arguments that HiFi-GAN's generator lacks; ValueError for settings that cannot be."""
    arguments = {zoo: config.get(key, default) for key, (zoo, default) in GENERATOR_KEYS.items()}
    if arguments["activation"] not in ("snake", "snakebeta") or arguments["log_scale"] is None:
        raise ValueError(f"expected activation snake or snakebeta and snake_logscale, found {arguments}")
    if not isinstance(config.get("resblock", "1"), str):
        raise ValueError(f"resblock must be a text, found {config['resblock']!r}")
    return arguments


def discriminators(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Describe the discriminators of a config: `mpd`, and `mrd` for whichever the second one is.

    ValueError for filters that grow, which the original's code cannot run either.
    """
    width = config.get("discriminator_channel_mult", 1)
    mpd = component(
        "zoo.hifigan.MultiPeriodDiscriminator",
        periods=config.get("mpd_reshapes", [2, 3, 5, 7, 11]),
        channels=[int(channels * width) for channels in PERIOD_CHANNELS],
    )
    if config.get("use_mbd_instead_of_mrd"):
        sizes = config.get("mbd_fft_sizes", [2048, 1024, 512])
        mrd = component("zoo.hifigan.MultiBandDiscriminator", fft_sizes=sizes)
    elif config.get("use_cqtd_instead_of_mrd"):
        filters = config.get("cqtd_filters", 32)
        if config.get("cqtd_filters_scale", 1) != 1 and config.get("cqtd_max_filters", 1024) > filters:
            raise ValueError("cqtd_filters_scale other than 1 is not supported (nor does the original run with it)")
        mrd = component(
            "zoo.hifigan.MultiOctaveDiscriminator",
            sample_rate=config["sampling_rate"],
            hop_lengths=config.get("cqtd_hop_lengths", [512, 256, 256]),
            octaves=config.get("cqtd_n_octaves", [9, 9, 9]),
            bins_per_octave=config.get("cqtd_bins_per_octaves", [24, 36, 48]),
            filters=filters,
            dilations=config.get("cqtd_dilations", [1, 2, 4]),
            normalize=bool(config.get("cqtd_normalize_volume", False)),
        )
    else:
        mrd = component(
            "zoo.hifigan.MultiResolutionDiscriminator",
            resolutions=config.get("resolutions", [[1024, 120, 600], [2048, 240, 1200], [512, 50, 240]]),
            channel_mult=config.get("mrd_channel_mult", width),
            spectral=bool(config.get("mrd_use_spectral_norm", config.get("use_spectral_norm", False))),
        )
    return {"mpd": mpd, "mrd": mrd}


def adversarial_weights(*names: str) -> dict[str, float]:
    """Return the weights of discriminators' terms, those of HiFi-GAN and BigVGAN."""
    terms = {"g/adv_": 1.0, "g/fm_": 2.0, "d/": 1.0}
    return {f"{term}{name}": weight for name in names for term, weight in terms.items()}


def model_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's arguments other than HiFi-GAN's: losses, clipping, discriminators, schedule by batches."""
    mel_key = "g/multi_mel" if config.get("use_multiscale_melloss", False) else "g/mel"
    weights = {"g/mel": 0.0, mel_key: config.get("lambda_melloss", 45.0)}
    arguments = {
        "discriminators": discriminators(config),
        "loss_weights": weights | adversarial_weights("mpd", "mrd"),
        "step": dict.fromkeys(("clip_g", "clip_d"), float(config.get("clip_grad_norm", 1000.0))),
        "scheduler_interval": "step",
    }
    if mel_key == "g/multi_mel":
        arguments["multi_mel"] = component("zoo.audio.MultiScaleMel", sample_rate=config["sampling_rate"])
    return arguments
