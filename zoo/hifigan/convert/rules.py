"""Other projects' HiFi-GAN files: their layouts and names, and a generator built from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from zoo.common.build import build, check_state_dict
from zoo.common.registry import public_name
from zoo.convert.engine import OriginalFile
from zoo.convert.network_description import component, count_blocks, fill_description, setting, size_of_axis
from zoo.convert.settings import read_settings_file
from zoo.convert.tensor_names import State, add_prefix, group_by_component, is_state_dict, select_prefix, strip_wrappers
from zoo.hifigan.convert import bigvgan
from zoo.hifigan.convert.recipe import CONFIG_NAME, generator_spec
from zoo.hifigan.nets.bigvgan import BigVGAN
from zoo.hifigan.nets.conditioners import Conditioner
from zoo.hifigan.nets.discriminators import PERIOD_CHANNELS, MultiPeriodDiscriminator, MultiScaleDiscriminator
from zoo.hifigan.nets.generator import LAST_SLOPE, Generator

Value = TypeVar("Value")
Config = Mapping[str, Any] | Path | str | None

UNWRAPPED = "prefixes of data parallelism and compilation (module., _orig_mod.) were removed from the names of tensors"
NAME = re.compile(r"(g|do)_(\d+)")
PARTS = ("generator", "mpd", "msd", "mrd")
# leaves below `parametrizations.weight.`, and the legacy ones; weight_v means two things, so weight_orig decides
WEIGHT_NORM = {"original0": "weight_g", "original1": "weight_v"}
SPECTRAL_NORM = {"original": "weight_orig", "0._u": "weight_u", "0._v": "weight_v"}
_NORM = ".parametrizations.weight."
# prefixes of one file that holds several nets: theirs, ours
PREFIXES = {
    "coqui": {"model_g.": "generator.", "model_d.mpd.": "mpd.", "model_d.msd.": "msd."},
    "ssl-vocoder": {
        "generator.": "generator.",
        "multi_period_discriminator.": "mpd.",
        "multi_scale_discriminator.": "msd.",
    },
}
# the SSL vocoder keeps its Conformer front end beside the convolutions, we keep it in a slot
CONDITIONER_MODULES = ("input_projection.", "output_projection.", "conformer1.", "conformer2.")
GENERATOR_MODULES = ("conv_pre.", "conv_post.", "ups.", "resblocks.")
# SpeechBrain's convolutions have an extra level, and pad by reflection
_SPEECHBRAIN_LEVEL = re.compile(
    r"^((?:mpd\.)?(?:discriminators\.\d+\.)?(?:conv_pre|conv_post|ups\.\d+|convs\.\d+|resblocks\.\d+\.convs[12]?\.\d+))\.conv\."
)

# Front ends by a tensor that they have: the SSL vocoder's Conformer, the older prenet.
_LAYER = "conditioner.conformer1.conformer_layers.0"
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
        kernel_size=lambda source: (
            size_of_axis(name, 2)(source)
            if (name := "conditioner.layers.0.conv.depthwise.weight") in source.state
            else 31
        ),
        scale=setting("prenet_scale", 22050 / 256 / 50),
    ),
}


@dataclass
class HifiganFile(OriginalFile):
    """What one or two files of another project hold.

    The layout is "hifi-gan", "coqui", "speechbrain" or "ssl-vocoder"; names begin with `generator.`, `mpd.`, `msd.`,
    and a fused generator stays plain.

    Attributes:
        reflect: whether convolutions pad by reflection.
        wrapped: whether names had prefixes of data parallelism or compilation, which were removed.
        filters: those that a BigVGAN brings, by the original's names.
    """

    reflect: bool = False
    wrapped: bool = False
    filters: State = field(default_factory=dict)

    @property
    def is_fused(self) -> bool:
        """Whether the generator's weight norm was removed."""
        return "generator.conv_pre.weight" in self.state


def to_our_keys(state: Mapping[str, Value]) -> dict[str, Value]:
    """Rename legacy norm leaves to the parametrised ones; plain and parametrised names stay."""
    spectral = {key.removesuffix("weight_orig") for key in state if key.endswith(".weight_orig")}
    weight_norm, spectral_norm = (
        {theirs: ours for ours, theirs in table.items()} for table in (WEIGHT_NORM, SPECTRAL_NORM)
    )
    renamed = {}
    for key, value in state.items():
        stem, _, leaf = key.rpartition(".")
        ours = (spectral_norm if f"{stem}." in spectral else weight_norm).get(leaf)
        renamed[key if ours is None else f"{stem}{_NORM}{ours}"] = value
    return renamed


def to_legacy_keys(state: Mapping[str, Value]) -> dict[str, Value]:
    """Rename parametrised norm leaves to the original's; the inverse of `to_our_keys`."""
    leaves = WEIGHT_NORM | SPECTRAL_NORM
    renamed = {}
    for key, value in state.items():
        stem, _, leaf = key.partition(_NORM)
        renamed[f"{stem}.{leaves[leaf]}" if leaf in leaves else key] = value
    return renamed


def split_prefixes(state: Mapping[str, Value], prefixes: Mapping[str, str]) -> dict[str, Value]:
    """Rename entries under known prefixes and leave out all others."""
    found = ((key, value, next(filter(key.startswith, prefixes), None)) for key, value in state.items())
    return {prefixes[known] + key.removeprefix(known): value for key, value, known in found if known is not None}


def with_weight_norm(state: Mapping[str, Tensor]) -> State:
    """Give plain convolution weights of a generator (no prefix) weight norm back, so that they can be trained on.

    The direction is the weight itself and the gain its norm: the function is the same up to rounding.
    """
    result: State = {}
    for key, value in state.items():
        if key.endswith(".weight") and key.startswith(GENERATOR_MODULES):
            stem = key.removesuffix(".weight") + _NORM
            result[f"{stem}original0"] = torch.linalg.vector_norm(value, dim=tuple(range(1, value.dim())), keepdim=True)
            result[f"{stem}original1"] = value
        else:
            result[key] = value
    return result


def trainable_state(state: Mapping[str, Tensor]) -> State:
    """The same tensors with weight norm on every convolution of the generator."""
    normed = add_prefix(with_weight_norm(select_prefix(state, "generator.")), "generator.")
    return normed | {key: value for key, value in state.items() if not key.startswith("generator.")}


def pair(path: Path) -> list[Path]:
    """The generator's file and the training file of the same number beside it, as far as they exist.

    Args:
        path: a `g_*` or `do_*` file, a file of another name, or a folder (its highest number counts, or BigVGAN's of
            the hub).

    Raises:
        FileNotFoundError: when there is none.
    """
    if path.is_dir():
        if (hub := path / bigvgan.HUB_FILES[0]).is_file():
            return pair(hub)
        found = [file for file in path.glob("g_*") if NAME.fullmatch(file.name)]
        if not found:
            raise FileNotFoundError(f"no g_<number> file in {path}")
        path = max(found, key=lambda file: int(file.name[2:]))
    elif not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    if path.name in bigvgan.HUB_FILES:
        return [file for name in bigvgan.HUB_FILES if (file := path.with_name(name)).is_file()]
    match = NAME.fullmatch(path.name)
    if match is None:
        return [path]
    both = [path.with_name(f"{kind}_{match[2]}") for kind in ("g", "do")]
    return [file for file in both if file.is_file()]


def unwrap_content(content: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Remove prefixes of data parallelism and compilation from tensor names, also behind the name of a net.

    Returns:
        The content, and whether a name changed.

    Raises:
        ValueError: two tensors have one name without them.
    """
    plain: dict[str, Any] = {}
    changed = False
    for key, value in content.items():
        name = key
        if isinstance(value, Tensor):
            net, dot, rest = strip_wrappers(key).partition(".")
            name = f"{net}{dot}{strip_wrappers(rest)}"
        if name in plain:
            raise ValueError(f"two tensors are called {name} without the prefixes of data parallelism and compilation")
        plain[name], inner_changed = unwrap_content(value) if is_state_dict(value) else (value, False)
        changed |= inner_changed or name != key
    return plain, changed


def check_finite(state: Mapping[str, Tensor], source: Path | str) -> None:
    """Refuse weights that are NaN or infinite.

    Raises:
        ValueError: a tensor holds such a value.
    """
    bad = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise ValueError(f"{source}: NaN or infinite values in {len(bad)} of {len(state)} tensors, the first {bad[0]}")


def layout_of(content: Mapping[str, Any]) -> HifiganFile | None:
    """Recognise the layout of a loaded file and rename its tensors; None when it is not known."""
    if is_state_dict(content.get("generator")):
        is_bigvgan = any(key.startswith("activation_post.") for key in content["generator"])
        return renamed("bigvgan" if is_bigvgan else "hifi-gan", {"generator": content["generator"]})
    for other in ("msd", "mrd"):
        if is_state_dict(content.get("mpd")) and is_state_dict(content.get(other)):
            training = {key: content[key] for key in ("optim_g", "optim_d", "steps", "epoch") if key in content}
            layout = "hifi-gan" if other == "msd" else "bigvgan"
            return renamed(layout, {name: content[name] for name in ("mpd", other)}, training)
    if is_state_dict(model := content.get("model")):
        if any(key.startswith("model_g.") for key in model):
            return renamed("coqui", group_by_component(split_prefixes(model, PREFIXES["coqui"])))
        discriminators = content.get("model_disc")
        is_generator = any(key.startswith("conv_pre.") for key in model)
        parts = {"generator": model} | (group_by_component(discriminators) if is_state_dict(discriminators) else {})
        return renamed("coqui", parts) if is_generator else None
    if is_state_dict(state := content.get("state_dict")):
        ours = "zoo" in content or any(key.startswith(("mpd.", "msd.")) for key in state)
        known = split_prefixes(state, PREFIXES["ssl-vocoder"])
        if not ours and any(key.startswith("generator.conv_pre.") for key in known):
            return renamed("ssl-vocoder", group_by_component(known))
    if is_state_dict(content):
        layout = "speechbrain" if any(map(_SPEECHBRAIN_LEVEL.match, content)) else "hifi-gan"
        if any(key.startswith("conv_pre.") for key in content):
            return renamed(layout, {"generator": content})
        if all(key.startswith(("mpd.", "msd.")) for key in content):
            return renamed(layout, group_by_component(content))
    return None


def renamed(layout: str, parts: Mapping[str, Mapping[str, Tensor]], training: Any = None) -> HifiganFile:
    """Put the nets of a file (generator, mpd, msd), each under its own names, below one another by our names."""
    state: State = {}
    for name in PARTS:
        tensors = {_SPEECHBRAIN_LEVEL.sub(r"\1.", key): value for key, value in parts.get(name, {}).items()}
        if name == "generator":
            slot = ("", "conditioner.")
            tensors = {slot[key.startswith(CONDITIONER_MODULES)] + key: value for key, value in tensors.items()}
        if layout == "bigvgan":
            tensors = bigvgan.our_names(tensors)
        state |= add_prefix(to_our_keys(tensors), f"{name}.")
    reflect = any(_SPEECHBRAIN_LEVEL.match(key) for name in PARTS for key in parts.get(name, {}))
    filters = {key: value for key, value in parts.get("generator", {}).items() if key.endswith(".filter")}
    return HifiganFile(layout, state, training=training or {}, reflect=reflect, filters=filters)


def settings_of(path: Path, config: Config = None, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The generator's settings in the original's words: those given, the file's own, or config.json beside it.

    Args:
        path: a file or folder of the original.
        config: settings, or their file; they come before what the file says.
        known: what the file itself says.

    Raises:
        FileNotFoundError: when there are none.
    """
    own = dict(known or {})
    if isinstance(config, Mapping):
        return own | dict(config)
    if config is None:
        if "upsample_rates" in own:
            return own
        config = (path if path.is_dir() else path.parent) / CONFIG_NAME
        if not config.is_file():
            raise FileNotFoundError(
                f"{path} does not say its sizes: put the original's {CONFIG_NAME} beside it or pass config="
            )
    return own | read_settings_file(Path(config))


def build_generator(original: HifiganFile, config: Mapping[str, Any], source: Path) -> Generator | BigVGAN:
    """Build the generator of a file and load its weights; fused when the file's weight norm was removed.

    Args:
        config: the original's settings.
        source: named in errors.

    Raises:
        ValueError: when the file holds none, or settings and weights do not fit.
    """
    state = original.component("generator")
    if not state:
        raise ValueError(f"{source} holds no generator (only {', '.join(group_by_component(original.state))})")
    names = ("conv_pre.weight", f"conv_pre{_NORM}original1")
    in_channels = next((state[name].shape[1] for name in names if name in state), None)
    arguments = dict(generator_spec(config, in_channels)["init_args"])
    table = next((table for mark, table in CONDITIONERS.items() if mark in state), None)
    if table is not None:
        conditioner_file = OriginalFile(original.layout, state, dict(config))
        conditioner: Conditioner = build(fill_description(table, conditioner_file, source))
        arguments |= {"in_channels": conditioner.in_channels, "conditioner": conditioner}
    if original.reflect:
        arguments["padding_mode"] = "reflect"
    if bigvgan.is_bigvgan(config) != (original.layout == "bigvgan"):
        raise ValueError(
            f"{source} is {'no' if original.layout != 'bigvgan' else 'a'} BigVGAN, its config says otherwise"
        )
    generator = BigVGAN(**arguments) if original.layout == "bigvgan" else Generator(**arguments)
    if not bigvgan.same_filters(original.filters, generator):
        raise ValueError(f"{source} has filters other than those that BigVGAN's code makes")
    if original.is_fused and not any(_NORM in key for key in state):
        generator.remove_weight_norm_()
    else:
        state = with_weight_norm(state)
    check_state_dict(generator, state, str(source), "the generator of the config")
    generator.load_state_dict(state)
    return generator


def discriminator_specs(
    state: Mapping[str, Tensor], source: Path, config: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Describe the discriminators whose tensors a state holds, and check that they fit.

    Args:
        config: the original's settings; BigVGAN's say of what kind the discriminators are.

    Raises:
        ValueError: when names or shapes are not those of the discriminators.
    """
    if config is not None and bigvgan.is_bigvgan(config):
        described = {
            name: spec for name, spec in bigvgan.discriminators(config).items() if select_prefix(state, f"{name}.")
        }
        for name, spec in described.items():
            check_state_dict(build(spec), select_prefix(state, f"{name}."), str(source), f"the {name} of the config")
        return described
    widest = {"mpd": (MultiPeriodDiscriminator, PERIOD_CHANNELS[0]), "msd": (MultiScaleDiscriminator, 128)}
    specs = {}
    for name, (cls, channels) in widest.items():
        own = select_prefix(state, f"{name}.")
        if not own:
            continue
        bias = own.get("discriminators.0.convs.0.bias")
        if bias is None:
            raise ValueError(f"{source}: {name} lacks discriminators.0.convs.0.bias; it has {', '.join(list(own)[:3])}")
        arguments = {"channel_mult": bias.numel() / channels}
        with torch.device("meta"):
            check_state_dict(cls(**arguments), own, str(source), f"the {name}")
        specs[name] = component(public_name(cls), **arguments)
    return specs


def check_convertible(generator: nn.Module) -> None:
    """Refuse a generator whose weights the original's code, and every descendant of it, would run otherwise.

    Raises:
        ValueError: for another slope of the last activation or another padding of odd stages.
    """
    if not isinstance(generator, Generator | BigVGAN):
        return
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
