"""Other projects' HiFi-GAN files: their layouts and names, and a generator built from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.common.build import build, check_state_dict
from zoo.common.registry import public_name
from zoo.common.tensors import split_weight_norm
from zoo.convert.engine import OriginalFile
from zoo.convert.network_description import component, count_blocks, fill_description, setting, size_of_axis
from zoo.convert.settings import read_settings_file
from zoo.convert.tensor_names import (
    NameTable,
    State,
    Value,
    add_prefix,
    add_tensor,
    group_by_component,
    is_state_dict,
    select_prefix,
)
from zoo.hifigan.convert import bigvgan
from zoo.hifigan.convert.config import CONFIG_NAME, generator_spec
from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.discriminators import PERIOD_CHANNELS, MultiPeriodDiscriminator, MultiScaleDiscriminator
from zoo.hifigan.nets.generator import LAST_SLOPE, Generator

Config = Mapping[str, Any] | Path | str | None

FILE_NAME = re.compile(r"(g|do)_(\d+)")
NETS = ("generator", "mpd", "msd", "mrd")
# leaves below `parametrizations.weight.`, and the original's; weight_v means two things, so weight_orig decides
WEIGHT_NORM = {"original0": "weight_g", "original1": "weight_v"}
SPECTRAL_NORM = {"original": "weight_orig", "0._u": "weight_u", "0._v": "weight_v"}
_NORM = ".parametrizations.weight."
# files that hold several nets
COQUI = NameTable(
    ("model_g.{rest}", "generator.{rest}"), ("model_d.mpd.{rest}", "mpd.{rest}"), ("model_d.msd.{rest}", "msd.{rest}")
)
SSL_VOCODER = NameTable(
    ("generator.{rest}", "generator.{rest}"),
    ("multi_period_discriminator.{rest}", "mpd.{rest}"),
    ("multi_scale_discriminator.{rest}", "msd.{rest}"),
)
# the SSL vocoder keeps its Conformer front end among the convolutions, ours is a module `conditioner`
CONDITIONER_MODULES = ("input_projection.", "output_projection.", "conformer1.", "conformer2.")
GENERATOR_MODULES = ("conv_pre.", "conv_post.", "ups.", "resblocks.")
# SpeechBrain's convolutions have an extra level, and pad by reflection
_SPEECHBRAIN_LEVEL = re.compile(
    r"^((?:mpd\.)?(?:discriminators\.\d+\.)?(?:conv_pre|conv_post|ups\.\d+|convs\.\d+|resblocks\.\d+\.convs[12]?\.\d+))\.conv\."
)

# front ends by a tensor that they have: the SSL vocoder's Conformer, the older prenet
_LAYER = "conditioner.conformer1.conformer_layers.0"
_PRENET_KERNEL = "conditioner.layers.0.conv.depthwise.weight"
CONDITIONERS = {
    "conditioner.input_projection.weight": component(
        "zoo.hifigan.ConformerConditioner",
        in_channels=size_of_axis("conditioner.input_projection.weight", 1),
        out_channels=size_of_axis("conditioner.output_projection.weight"),
        dim=size_of_axis("conditioner.input_projection.weight"),
        heads=setting("conformer_num_heads", 8),
        ffn_dim=size_of_axis(f"{_LAYER}.ffn1.sequential.1.weight"),
        kernel_size=size_of_axis(f"{_LAYER}.conv_module.sequential.2.weight", 2),
        dropout=setting("conformer_dropout", 0.1),
    ),
    "conditioner.proj.weight": component(
        "zoo.hifigan.PrenetConditioner",
        in_channels=size_of_axis("conditioner.proj.weight", 1),
        out_channels=size_of_axis("conditioner.proj.weight"),
        layers=count_blocks("conditioner.layers."),
        heads=setting("prenet_num_heads", 8),
        kernel_size=lambda source: source.state[_PRENET_KERNEL].shape[2] if _PRENET_KERNEL in source.state else 31,
        scale=setting("prenet_scale", 22050 / 256 / 50),
    ),
}


@dataclass
class HifiganFile(OriginalFile):
    """Contents of a file of another project, or of a pair of files; names begin with `generator.`, `mpd.`, ...

    The layout is "hifi-gan", "bigvgan", "coqui", "speechbrain" or "ssl-vocoder".
    """

    reflect: bool = False  # whether convolutions pad by reflection
    filters: State = field(default_factory=dict)  # of a BigVGAN, by the original's names


def to_zoo_names(state: Mapping[str, Value]) -> dict[str, Value]:
    """Rename the original's norm leaves to the parametrised ones; all other names stay."""
    spectral_stems = {key.removesuffix(".weight_orig") for key in state if key.endswith(".weight_orig")}
    zoo_state = {}
    for key, value in state.items():
        stem, _, leaf = key.rpartition(".")
        table = SPECTRAL_NORM if stem in spectral_stems else WEIGHT_NORM
        leaves = [zoo for zoo, original in table.items() if original == leaf]
        zoo_state[f"{stem}{_NORM}{leaves[0]}" if leaves else key] = value
    return zoo_state


def to_original_names(state: Mapping[str, Value]) -> dict[str, Value]:
    """Rename parametrised norm leaves to the original's; the inverse of `to_zoo_names`."""
    leaves = WEIGHT_NORM | SPECTRAL_NORM
    original_state = {}
    for key, value in state.items():
        stem, _, leaf = key.partition(_NORM)
        original_state[f"{stem}.{leaves[leaf]}" if leaf in leaves else key] = value
    return original_state


def with_weight_norm(state: Mapping[str, Tensor]) -> State:
    """Give plain convolution weights of a generator (no prefix) weight norm again, so that they can be trained on.

    The direction is the weight itself and the gain its norm: the function is the same up to rounding.
    """
    result: State = {}
    for key, value in state.items():
        if key.endswith(".weight") and key.startswith(GENERATOR_MODULES):
            stem = key.removesuffix(".weight") + _NORM
            length, direction = split_weight_norm(value, range(1, value.dim()))
            result |= {f"{stem}original0": length, f"{stem}original1": direction}
        else:
            result[key] = value
    return result


def with_weight_norm_state(state: Mapping[str, Tensor]) -> State:
    """Return a task's tensors with weight norm on every convolution of the generator."""
    generator = add_prefix(with_weight_norm(select_prefix(state, "generator.")), "generator.")
    return generator | {key: value for key, value in state.items() if not key.startswith("generator.")}


def checkpoint_files(path: Path) -> list[Path]:
    """List the generator's file and the training file of the same number, as far as they exist.

    `path` may be either, a file of another name, or a folder: its highest number, or BigVGAN's of the hub.
    FileNotFoundError when there is none.
    """
    if path.is_dir():
        if (hub := path / bigvgan.HUB_FILES[0]).is_file():
            return checkpoint_files(hub)
        numbered = [file for file in path.glob("g_*") if FILE_NAME.fullmatch(file.name)]
        if not numbered:
            raise FileNotFoundError(f"no g_<number> file in {path}")
        path = max(numbered, key=lambda file: int(file.name[2:]))
    elif not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    match = FILE_NAME.fullmatch(path.name)
    names = bigvgan.HUB_FILES if path.name in bigvgan.HUB_FILES else (path.name,)
    names = (f"g_{match[2]}", f"do_{match[2]}") if match else names
    return [file for name in names if (file := path.with_name(name)).is_file()]


def strip_all_wrappers(content: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the levels that data parallelism and compilation add to names of tensors, wherever they stand.

    ValueError when two different tensors then have one name.
    """
    stripped: dict[str, Any] = {}
    for key, value in content.items():
        levels = [level for level in str(key).split(".") if level not in ("module", "_orig_mod")]
        name = ".".join(levels) if isinstance(value, Tensor) else key
        add_tensor(stripped, name, strip_all_wrappers(value) if is_state_dict(value) else value, key)
    return stripped


def check_finite(state: Mapping[str, Tensor], source: Path | str) -> None:
    """Refuse weights that are NaN or infinite with a ValueError."""
    bad = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise ValueError(f"{source}: NaN or infinite values in {len(bad)} of {len(state)} tensors, the first {bad[0]}")


def detect_layout(content: Mapping[str, Any]) -> HifiganFile | None:
    """Recognise the layout of a loaded file and rename its tensors; None when it is not known."""
    if is_state_dict(net := content.get("generator")):
        is_bigvgan = any(key.startswith("activation_post.") for key in net)
        return rename_tensors("bigvgan" if is_bigvgan else "hifi-gan", {"generator": net})
    for other, layout in (("msd", "hifi-gan"), ("mrd", "bigvgan")):
        if is_state_dict(content.get("mpd")) and is_state_dict(content.get(other)):
            training = {key: content[key] for key in ("steps", "epoch") if key in content}
            return rename_tensors(layout, {name: content[name] for name in ("mpd", other)}, training)
    if is_state_dict(model := content.get("model")):
        if any(key.startswith("model_g.") for key in model):
            return rename_tensors("coqui", group_by_component(COQUI.read(model)[0]))
        discriminators = content.get("model_disc")
        nets = {"generator": model} | group_by_component(discriminators if is_state_dict(discriminators) else {})
        return rename_tensors("coqui", nets) if any(key.startswith("conv_pre.") for key in model) else None
    if is_state_dict(state := content.get("state_dict")):
        is_zoo = "zoo" in content or any(key.startswith(("mpd.", "msd.")) for key in state)
        named = SSL_VOCODER.read(state)[0]
        if not is_zoo and any(key.startswith("generator.conv_pre.") for key in named):
            return rename_tensors("ssl-vocoder", group_by_component(named))
    if is_state_dict(content):
        layout = "speechbrain" if any(map(_SPEECHBRAIN_LEVEL.match, content)) else "hifi-gan"
        if any(key.startswith("conv_pre.") for key in content):
            return rename_tensors(layout, {"generator": content})
        if all(key.startswith(("mpd.", "msd.")) for key in content):
            return rename_tensors(layout, group_by_component(content))
    return None


def rename_tensors(layout: str, nets: Mapping[str, Mapping[str, Tensor]], training: Any = None) -> HifiganFile:
    """Join the nets of a file (generator, mpd, msd, mrd), each under its own names, under ours."""
    state: State = {}
    for name in filter(nets.__contains__, NETS):
        tensors = {_SPEECHBRAIN_LEVEL.sub(r"\1.", key): value for key, value in nets[name].items()}
        if name == "generator":
            prefixes = ("", "conditioner.")
            tensors = {prefixes[key.startswith(CONDITIONER_MODULES)] + key: value for key, value in tensors.items()}
        if layout == "bigvgan":
            tensors = bigvgan.to_zoo_names(tensors)
        state |= add_prefix(to_zoo_names(tensors), f"{name}.")
    reflect = any(_SPEECHBRAIN_LEVEL.match(key) for name in NETS for key in nets.get(name, {}))
    filters = {key: value for key, value in nets.get("generator", {}).items() if key.endswith(".filter")}
    return HifiganFile(layout, state, training=training or {}, reflect=reflect, filters=filters)


def read_settings(path: Path, config: Config = None, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the generator's settings by the original's keys: of `config`, the file's, or config.json next to it.

    `config` (settings, or their file) comes before the `settings` of the file; FileNotFoundError when there are none.
    """
    settings = dict(settings or {})
    if isinstance(config, Mapping):
        return settings | dict(config)
    if config is None:
        if "upsample_rates" in settings:
            return settings
        config = (path if path.is_dir() else path.parent) / CONFIG_NAME
        if not config.is_file():
            raise FileNotFoundError(
                f"{path} does not say its sizes: put the original's {CONFIG_NAME} beside it or pass config="
            )
    return settings | read_settings_file(Path(config))


def describe_generator(original: HifiganFile, config: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """Describe the generator of a file, with its conditioner, by the original's settings (`config`) and the shapes.

    ValueError when there is none, or the settings lack a size or are those of another kind of generator.
    """
    state = original.component("generator")
    if not state:
        raise ValueError(f"{source} holds no generator (only {', '.join(group_by_component(original.state))})")
    weight = state.get("conv_pre.weight", state.get(f"conv_pre{_NORM}original1"))
    channels = {} if weight is None else {"num_mels": weight.shape[1]}  # where the config has none
    spec = generator_spec(channels | dict(config))
    is_bigvgan = original.layout == "bigvgan"
    if bigvgan.is_bigvgan(config) != is_bigvgan:
        raise ValueError(f"{source} is {'a' if is_bigvgan else 'no'} BigVGAN, its config says otherwise")
    arguments = spec["init_args"]
    table = next((table for name, table in CONDITIONERS.items() if name in state), None)
    if table is not None:
        conditioner = fill_description(table, OriginalFile(original.layout, state, dict(config)), source)
        arguments |= {"in_channels": conditioner["init_args"]["in_channels"], "conditioner": conditioner}
    if original.reflect:
        arguments["padding_mode"] = "reflect"
    return spec


def build_generator(original: HifiganFile, config: Mapping[str, Any], source: Path) -> Generator | BigVGAN:
    """Build the generator of a file and load its weights; without weight norm where the file has none.

    ValueError as of `describe_generator`, and when the settings and the weights do not fit.
    """
    generator: Generator | BigVGAN = build(describe_generator(original, config, source))
    if isinstance(generator, BigVGAN) and not bigvgan.filters_match(original.filters):
        raise ValueError(f"{source} has filters other than those that BigVGAN's code makes")
    state = original.component("generator")
    if not any(_NORM in key for key in state):
        generator.remove_weight_norm_()
    else:
        state = with_weight_norm(state)
    check_state_dict(generator, state, str(source), "the generator of the config")
    generator.load_state_dict(state)
    return generator


def discriminator_specs(
    state: Mapping[str, Tensor], source: Path, config: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Describe the discriminators in a state; BigVGAN's need the settings. ValueError when tensors do not fit."""
    nets = {name: net for name, net in group_by_component(state).items() if name != "generator"}
    if config is not None and bigvgan.is_bigvgan(config):
        specs = {name: spec for name, spec in bigvgan.discriminators(config).items() if name in nets}
    else:
        widths = {"mpd": (MultiPeriodDiscriminator, PERIOD_CHANNELS[0]), "msd": (MultiScaleDiscriminator, 128)}
        specs = {}
        for name, (cls, channels) in widths.items():
            if name in nets:
                bias = nets[name].get("discriminators.0.convs.0.bias")
                if bias is None:
                    raise ValueError(f"{source}: {name} lacks discriminators.0.convs.0.bias")
                specs[name] = component(public_name(cls), channel_mult=bias.numel() / channels)
    for name, spec in specs.items():
        with torch.device("meta"):
            net = build(spec)
        check_state_dict(net, nets[name], str(source), f"the {name} of the config")
    return specs


def check_convertible(generator: Generator | BigVGAN) -> None:
    """Refuse a generator that the original's code, and every descendant of it, would run otherwise (ValueError)."""
    stages = zip(generator.upsample_kernel_sizes, generator.upsample_rates, strict=True)
    odd = [f"{kernel} with rate {rate}" for kernel, rate in stages if (kernel - rate) % 2]
    if odd and generator.output_padding:
        raise ValueError(
            f"the format holds stages of an odd kernel - rate with output_padding 0 only; this generator has kernel "
            f"{', '.join(odd)} with output_padding {generator.output_padding}; use `zoo export`"
        )
    if isinstance(generator, Generator) and generator.last_slope != LAST_SLOPE:
        raise ValueError(
            f"the format holds generators with last_slope {LAST_SLOPE} only, this one has {generator.last_slope}; use "
            "`zoo export`"
        )
