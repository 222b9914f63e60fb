"""Reading other projects' HiFi-GAN files: which layout, which nets, and a generator built from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from zoo.common.registry import public_name
from zoo.hifigan.convert.recipe import generator_spec
from zoo.hifigan.nets.conditioners import Conditioner, ConformerConditioner, PrenetConditioner
from zoo.hifigan.nets.discriminators import PERIOD_CHANNELS, MultiPeriodDiscriminator, MultiScaleDiscriminator
from zoo.hifigan.nets.generator import Generator

Value = TypeVar("Value")
State = dict[str, Tensor]

# leaf of a module with weight norm: the original's name, ours
WEIGHT_NORM_LEAVES = (
    ("weight_g", "parametrizations.weight.original0"),
    ("weight_v", "parametrizations.weight.original1"),
)
# leaf of a module with spectral norm; weight_v means another tensor there, so weight_orig decides
SPECTRAL_NORM_LEAVES = (
    ("weight_orig", "parametrizations.weight.original"),
    ("weight_u", "parametrizations.weight.0._u"),
    ("weight_v", "parametrizations.weight.0._v"),
)
# prefixes of one file that holds several nets: theirs, ours
PREFIXES = {
    "coqui": (("model_g.", "generator."), ("model_d.mpd.", "mpd."), ("model_d.msd.", "msd.")),
    "ssl-vocoder": (
        ("generator.", "generator."),
        ("multi_period_discriminator.", "mpd."),
        ("multi_scale_discriminator.", "msd."),
    ),
}
# the SSL vocoder keeps its Conformer front end beside the convolutions, we keep it in a slot
CONDITIONER_MODULES = ("input_projection.", "output_projection.", "conformer1.", "conformer2.")
GENERATOR_MODULES = ("conv_pre.", "conv_post.", "ups.", "resblocks.")

_SPEECHBRAIN_LEVEL = re.compile(
    r"^((?:mpd\.)?(?:discriminators\.\d+\.)?(?:conv_pre|conv_post|ups\.\d+|convs\.\d+|resblocks\.\d+\.convs[12]?\.\d+))\.conv\."
)


def to_our_keys(state: Mapping[str, Value]) -> dict[str, Value]:
    """Rename legacy norm leaves to the parametrised ones; plain and parametrised names stay.

    Args:
        state: entries by legacy name, of one net or of several under prefixes.

    Returns:
        The same entries in the same order by our names.
    """
    spectral = {key.removesuffix("weight_orig") for key in state if key.endswith(".weight_orig")}
    renamed = {}
    for key, value in state.items():
        stem, dot, leaf = key.rpartition(".")
        table = SPECTRAL_NORM_LEAVES if f"{stem}." in spectral else WEIGHT_NORM_LEAVES
        renamed[stem + dot + dict(table).get(leaf, leaf)] = value
    return renamed


def to_legacy_keys(state: Mapping[str, Value]) -> dict[str, Value]:
    """Rename parametrised norm leaves to the original's; the inverse of `to_our_keys`."""
    leaves = [(f".{ours}", f".{theirs}") for theirs, ours in (*SPECTRAL_NORM_LEAVES, *WEIGHT_NORM_LEAVES)]
    renamed = {}
    for key, value in state.items():
        for ours, theirs in leaves:
            if key.endswith(ours):
                key = key.removesuffix(ours) + theirs
                break
        renamed[key] = value
    return renamed


def is_speechbrain(keys: Iterable[str]) -> bool:
    """Whether names carry SpeechBrain's extra `.conv` level (its convolutions pad by reflection)."""
    return any(_SPEECHBRAIN_LEVEL.match(key) for key in keys)


def without_speechbrain_level(state: Mapping[str, Value]) -> dict[str, Value]:
    """Drop SpeechBrain's extra `.conv` level from names."""
    return {_SPEECHBRAIN_LEVEL.sub(r"\1.", key): value for key, value in state.items()}


def with_conditioner_slot(state: Mapping[str, Value]) -> dict[str, Value]:
    """Put the names of an SSL vocoder's front end below `conditioner.`."""
    return {f"conditioner.{key}" if key.startswith(CONDITIONER_MODULES) else key: value for key, value in state.items()}


def split_prefixes(state: Mapping[str, Value], prefixes: Iterable[tuple[str, str]]) -> dict[str, Value]:
    """Rename entries under known prefixes and leave out all others."""
    table = list(prefixes)
    renamed = {}
    for key, value in state.items():
        for theirs, ours in table:
            if key.startswith(theirs):
                renamed[ours + key.removeprefix(theirs)] = value
                break
    return renamed


def with_weight_norm(state: Mapping[str, Tensor]) -> State:
    """Give plain convolution weights of a generator weight norm back, so that they can be trained on.

    The direction is the weight itself and the gain its norm: the function is the same up to rounding.

    Args:
        state: entries of a generator (no prefix), each convolution plain or parametrised.

    Returns:
        Entries by our parametrised names.
    """
    result: State = {}
    for key, value in state.items():
        if key.endswith(".weight") and key.startswith(GENERATOR_MODULES):
            stem = key.removesuffix("weight") + "parametrizations.weight.original"
            dims = tuple(range(1, value.dim()))
            result[f"{stem}0"] = torch.linalg.vector_norm(value, dim=dims, keepdim=True)
            result[f"{stem}1"] = value
        else:
            result[key] = value
    return result


NAME = re.compile(r"(g|do)_(\d+)")
PARTS = ("generator", "mpd", "msd")


@dataclass
class Original:
    """What one or two files of another project hold.

    Attributes:
        layout: "hifi-gan", "coqui", "speechbrain" or "ssl-vocoder".
        state: tensors by our names, prefixes `generator.`, `mpd.`, `msd.`; a fused generator stays plain.
        training: `optim_g`, `optim_d`, `steps`, `epoch` as far as present.
        reflect: whether convolutions pad by reflection.
    """

    layout: str
    state: State
    training: dict[str, Any] = field(default_factory=dict)
    reflect: bool = False

    def part(self, name: str) -> State:
        """Tensors of one net, under its own names."""
        return {key.removeprefix(f"{name}."): value for key, value in self.state.items() if key.startswith(f"{name}.")}

    @property
    def is_fused(self) -> bool:
        """Whether the generator's weight norm was removed."""
        return "generator.conv_pre.weight" in self.state


def pair(path: Path) -> list[Path]:
    """The generator's file and the training file of the same number beside it, as far as they exist.

    Args:
        path: a `g_*` or `do_*` file, a file of another name, or a folder (its highest number counts).

    Raises:
        FileNotFoundError: when there is none.
    """
    if path.is_dir():
        found = [file for file in path.glob("g_*") if NAME.fullmatch(file.name)]
        if not found:
            raise FileNotFoundError(f"no g_<number> file in {path}")
        path = max(found, key=lambda file: int(file.name[2:]))
    elif not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    match = NAME.fullmatch(path.name)
    if match is None:
        return [path]
    both = [path.with_name(f"{kind}_{match[2]}") for kind in ("g", "do")]
    return [file for file in both if file.is_file()]


def read(path: Path) -> Original:
    """Read a file of another project, together with its pair.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when its layout is not known.
    """
    from zoo.common.reading.foreign import load_foreign

    first, *rest = [interpret(load_foreign(file), file) for file in pair(path)]
    for other in rest:
        first = Original(first.layout, {**first.state, **other.state}, other.training, first.reflect)
    return first


def interpret(content: Any, path: Path) -> Original:
    """Recognise the layout of a loaded file and rename its tensors.

    Raises:
        ValueError: when the layout is not known; the message lists a few keys.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of tensors")
    keys = [str(key) for key in content]
    if "prenet" in content or "generator_modules" in content:
        raise ValueError(f"{path} is a vocoder of Miipher-2 with a prenet: convert it with `zoo convert miipher`")
    if _is_state(content.get("generator")):
        return renamed("hifi-gan", {"generator": content["generator"]})
    if _is_state(content.get("mpd")) and _is_state(content.get("msd")):
        training = {key: content[key] for key in ("optim_g", "optim_d", "steps", "epoch") if key in content}
        return renamed("hifi-gan", {name: content[name] for name in ("mpd", "msd")}, training)
    if _is_state(content.get("model")):
        return _coqui(content, path)
    if _is_state(content.get("state_dict")):
        keys = list(content["state_dict"])
        state = split_prefixes(content["state_dict"], PREFIXES["ssl-vocoder"])
        ours = "zoo" in content or any(key.startswith(("mpd.", "msd.")) for key in keys)
        if not ours and any(key.startswith("generator.conv_pre.") for key in state):
            return renamed("ssl-vocoder", _split(state))
    if _is_state(content):
        if any(key.startswith("conv_pre.") for key in keys):
            layout = "speechbrain" if is_speechbrain(keys) else "hifi-gan"
            return renamed(layout, {"generator": dict(content)})
        if all(key.startswith(("mpd.", "msd.")) for key in keys):
            layout = "speechbrain" if is_speechbrain(keys) else "hifi-gan"
            return renamed(layout, _split(dict(content)))
    raise ValueError(
        f"{path}: unknown layout with keys {', '.join(keys[:5])}; known are the original's g_* and do_*, Coqui's, "
        "SpeechBrain's and the SSL vocoder's checkpoints"
    )


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(tensor, Tensor) for tensor in value.values())


def _split(state: Mapping[str, Tensor]) -> dict[str, State]:
    parts: dict[str, State] = {}
    for key, value in state.items():
        part, _, rest = key.partition(".")
        parts.setdefault(part, {})[rest] = value
    return parts


def _coqui(content: Mapping[str, Any], path: Path) -> Original:
    model = dict(content["model"])
    if any(key.startswith("model_g.") for key in model):
        return renamed("coqui", _split(split_prefixes(model, PREFIXES["coqui"])))
    if not any(key.startswith("conv_pre.") for key in model):
        raise ValueError(f"{path}: unknown layout with keys model/{', model/'.join(list(model)[:5])}")
    parts = {"generator": model}
    if _is_state(content.get("model_disc")):
        parts |= _split(content["model_disc"])
    return renamed("coqui", parts)


def renamed(layout: str, parts: Mapping[str, Mapping[str, Tensor]], training: Any = None) -> Original:
    """Put the nets of a file (generator, mpd, msd), each under its own names, below one another by our names."""
    state: State = {}
    reflect = False
    for name in PARTS:
        tensors = dict(parts.get(name, {}))
        if is_speechbrain(tensors):
            reflect = True
            tensors = without_speechbrain_level(tensors)
        if name == "generator":
            tensors = with_conditioner_slot(tensors)
        state |= {f"{name}.{key}": value for key, value in to_our_keys(tensors).items()}
    return Original(layout, state, training or {}, reflect)


def build_generator(original: Original, config: Mapping[str, Any], source: Path) -> Generator:
    """Build the generator of a file and load its weights.

    Args:
        original: what was read.
        config: the original's settings.
        source: named in errors.

    Returns:
        The generator; fused when the file's weight norm was removed.

    Raises:
        ValueError: when the file holds none, or settings and weights do not fit.
    """
    state = original.part("generator")
    if not state:
        raise ValueError(f"{source} holds no generator (only {', '.join(_split(original.state))})")
    conditioner = _conditioner(state, config)
    arguments = dict(generator_spec(config, _in_channels(state))["init_args"])
    if conditioner is not None:
        arguments |= {"in_channels": conditioner.in_channels, "conditioner": conditioner}
    if original.reflect:
        arguments["padding_mode"] = "reflect"
    generator = Generator(**arguments)
    if original.is_fused and not any(".parametrizations." in key for key in state):
        generator.fuse_()
    else:
        state = with_weight_norm(state)
    load(generator, state, source)
    return generator


def _in_channels(state: Mapping[str, Tensor]) -> int | None:
    names = ("conv_pre.weight", "conv_pre.parametrizations.weight.original1")
    return next((state[name].shape[1] for name in names if name in state), None)


def _conditioner(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> Conditioner | None:
    """The SSL vocoder's Conformer front end or the older prenet; sizes show in the weights, except for the heads."""
    weight = state.get("conditioner.input_projection.weight")
    if weight is None:
        return _prenet(state, config)
    layer = "conditioner.conformer1.conformer_layers.0"
    return ConformerConditioner(
        in_channels=weight.shape[1],
        out_channels=state["conditioner.output_projection.weight"].shape[0],
        dim=weight.shape[0],
        heads=config.get("conformer_num_heads", 8),
        ffn_dim=state[f"{layer}.ffn1.sequential.1.weight"].shape[0],
        kernel_size=state[f"{layer}.conv_module.sequential.2.weight"].shape[2],
        dropout=config.get("conformer_dropout", 0.1),
    )


def _prenet(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> Conditioner | None:
    weight = state.get("conditioner.proj.weight")
    if weight is None:
        return None
    depthwise = state.get("conditioner.layers.0.conv.depthwise.weight")
    return PrenetConditioner(
        in_channels=weight.shape[1],
        out_channels=weight.shape[0],
        layers=len({key.split(".")[2] for key in state if key.startswith("conditioner.layers.")}),
        heads=config.get("prenet_num_heads", 8),
        kernel_size=31 if depthwise is None else depthwise.shape[2],
        scale=config.get("prenet_scale", 22050 / 256 / 50),
    )


def discriminator_specs(state: Mapping[str, Tensor], source: Path) -> dict[str, dict[str, Any]]:
    """Describe the discriminators whose tensors a state holds, and check that they fit.

    Raises:
        ValueError: when names or shapes are not those of a multi-period or multi-scale discriminator.
    """
    classes = {"mpd": MultiPeriodDiscriminator, "msd": MultiScaleDiscriminator}
    specs = {}
    for name, cls in classes.items():
        own = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
        if not own:
            continue
        bias = own.get("discriminators.0.convs.0.bias")
        if bias is None:
            raise ValueError(f"{source}: {name} lacks discriminators.0.convs.0.bias; it has {', '.join(list(own)[:3])}")
        widest = PERIOD_CHANNELS[0] if name == "mpd" else 128
        arguments = {"channel_mult": bias.numel() / widest}
        with torch.device("meta"):
            check(cls(**arguments), own, source, name)
        specs[name] = {"class_path": public_name(cls), "init_args": arguments}
    return specs


def check(module: nn.Module, state: Mapping[str, Tensor], source: Path, name: str) -> None:
    """Compare names and shapes of a state with a module's.

    Raises:
        ValueError: naming missing, unexpected and differing tensors.
    """
    own = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in state.items()}
    faults = [f"missing {key}" for key in own if key not in given]
    faults += [f"unexpected {key}" for key in given if key not in own]
    faults += [f"{key} is {given[key]}, expected {own[key]}" for key in own if key in given and own[key] != given[key]]
    if faults:
        raise ValueError(
            f"{source}: {len(faults)} tensors of the {name} do not fit the config: {'; '.join(faults[:4])}"
        )


def load(module: nn.Module, state: Mapping[str, Tensor], source: Path) -> None:
    """Load a whole state into a module; differences in names or shapes are a ValueError."""
    check(module, state, source, "generator")
    module.load_state_dict(state)


def trainable_state(state: Mapping[str, Tensor]) -> State:
    """The same tensors with weight norm on every convolution of the generator."""
    generator = {key.removeprefix("generator."): value for key, value in state.items() if key.startswith("generator.")}
    normed = {f"generator.{key}": value for key, value in with_weight_norm(generator).items()}
    return normed | {key: value for key, value in state.items() if not key.startswith("generator.")}
