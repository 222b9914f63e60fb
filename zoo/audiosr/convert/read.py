"""Reading AudioSR's and ProjectLily's files: which layout, which nets, and whether they are whole."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import yaml
from torch import Tensor, nn

from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.nets.global_encoder import REDUCTION, GlobalEncoder
from zoo.audiosr.nets.unet import UNet
from zoo.audiosr.nets.vae import Autoencoder
from zoo.common.reading.foreign import load_foreign
from zoo.common.reading.text import safe_load
from zoo.hifigan.nets.generator import Generator

NORM_GROUPS = 32  # of every norm of the originals
VAE_DROPOUT = 0.1
# What ProjectLily's classes hold where no configuration of such an encoder says otherwise; modelV1 swallows the keys,
# so that of a model.py beside its file says nothing.
ENCODER_HEADS = {"modelV1": 4, "model.py": 8}
HEAD_CHANNELS = 32
N_MELS = 256
DILATIONS = [1, 3, 5]
# last_slope and output_padding of the vocoders' code
VOCODERS: dict[Layout, tuple[float, int]] = {"audiosr": (0.01, 0), "modelV1": (0.1, 1), "model.py": (0.1, 1)}


def unet_arguments(state: State, layout: Layout, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of `UNet`.

    Args:
        state: its tensors.
        layout: of the file.
        settings: `unet_config.params` of the configuration; {} without one.
        path: named in errors.

    Raises:
        ValueError: when the shapes do not say the sizes, or the configuration says others.
    """
    found = _told(lambda: _unet(state, layout), path, "UNet")
    found["head_channels"] = int(settings.get("num_head_channels", HEAD_CHANNELS))
    names = {
        "in_channels": "in_channels",
        "out_channels": "out_channels",
        "model_channels": "channels",
        "channel_mult": "multipliers",
        "num_res_blocks": "blocks",
        "attention_resolutions": "attention_factors",
        "global_context_dim": "context_channels",
    }
    if found["context_channels"] is None:
        names.pop("global_context_dim")
    _agree(found, settings, names, path, "unet_config")
    return found


def _unet(state: State, layout: Layout) -> dict[str, Any]:
    channels, in_channels = state["input_blocks.0.0.weight"].shape[:2]
    levels: list[list[int]] = [[]]
    for index in range(1, _count(state, "input_blocks")):
        if f"input_blocks.{index}.0.op.weight" in state:
            levels.append([])
        else:
            levels[-1].append(index)
    transformers = {level[0]: _transformers(state, level[0]) for level in levels}
    counts = [count for count in transformers.values() if count]
    context = [value.shape[1] for name, value in state.items() if name.endswith(".global_proj.weight")]
    fusion = "none" if not context else "residual" if layout == "model.py" else "replace"
    return {
        "in_channels": in_channels,
        "out_channels": len(state["out.2.weight"]),
        "channels": channels,
        "multipliers": [len(state[f"input_blocks.{level[0]}.0.in_layers.2.weight"]) // channels for level in levels],
        "blocks": len(levels[0]),
        "attention_factors": [2**i for i, level in enumerate(levels) if transformers[level[0]]],
        "transformers_per_down_block": counts[0] if counts else 1 if layout == "model.py" else 2,
        "fusion": fusion,
        "context_channels": context[0] if context else None,
        "norm_groups": NORM_GROUPS,
        "checkpointing": False,
    }


def _transformers(state: State, block: int) -> int:
    return sum(name.startswith(f"input_blocks.{block}.") and name.endswith(".proj_in.weight") for name in state)


def transformers_per_down_block(state: State) -> int:
    """Transformers in a row on the way down; 0 where there is none."""
    return max((_transformers(state, block) for block in range(_count(state, "input_blocks"))), default=0)


def autoencoder_arguments(state: State, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of `Autoencoder`.

    Args:
        state: its tensors.
        settings: `first_stage_config.params` of the configuration; {} without one.
        path: named in errors.

    Raises:
        ValueError: when the shapes do not say the sizes, or the configuration says others.
    """
    found = _told(lambda: _autoencoder(state), path, "autoencoder")
    sizes = settings.get("ddconfig") or {}
    found["dropout"] = float(sizes.get("dropout", VAE_DROPOUT))
    names = {"ch": "channels", "ch_mult": "multipliers", "num_res_blocks": "blocks", "z_channels": "latent_channels"}
    _agree(found, sizes, names, path, "first_stage_config: ddconfig")
    return found


def _autoencoder(state: State) -> dict[str, Any]:
    channels = len(state["encoder.conv_in.weight"])
    levels = _count(state, "encoder.down")
    return {
        "channels": channels,
        "multipliers": [len(state[f"encoder.down.{i}.block.0.conv1.weight"]) // channels for i in range(levels)],
        "blocks": _count(state, "encoder.down.0.block"),
        "latent_channels": len(state["post_quant_conv.weight"]),
        "norm_groups": NORM_GROUPS,
    }


def encoder_arguments(state: State, layout: Layout, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of `GlobalEncoder`.

    Args:
        state: its tensors.
        layout: of the file.
        settings: `unet_config.params` of the configuration, and `n_mels`; {} without one.
        path: named in errors.

    Raises:
        ValueError: when the shapes do not say the sizes, or the configuration says others.
    """
    found = _told(lambda: _encoder(state, int(settings.get("n_mels", N_MELS))), path, "global encoder")
    heads = ENCODER_HEADS["model.py" if layout == "model.py" else "modelV1"]
    sizes = {"global_encoder_hidden_dim": found["channels"], "global_encoder_layers": found["layers"]}
    if all(settings.get(key, size) == size for key, size in sizes.items()):
        heads = int(settings.get("global_encoder_heads", heads))
    if layout == "model.py":
        names = {"global_encoder_hidden_dim": "channels", "global_encoder_layers": "layers"}
        _agree(found, settings, names, path, "unet_config")
    if heads < 1 or found["channels"] % heads:
        raise ValueError(
            f"{path}: global_encoder_heads {heads} cannot divide the encoder's {found['channels']} channels"
        )
    return {**found, "heads": heads, "dropout": 0.1}


def _encoder(state: State, n_mels: int) -> dict[str, Any]:
    _, positions, channels = state["pos_encoding"].shape
    projection = state.get(f"{ADAPTIVE}weight")
    return {
        "n_mels": n_mels if projection is None else projection.shape[1] // channels * REDUCTION,
        "channels": channels,
        "layers": _count(state, "transformer.layers"),
        "context_channels": len(state["global_proj.weight"]),
        "positions": positions,
    }


def generator_arguments(state: State, layout: Layout, settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of the vocoder's `Generator`; rates that no configuration says are half their kernels.

    Args:
        state: its tensors.
        layout: of the file.
        settings: of HiFi-GAN under their usual keys; {} without.
        path: named in errors.

    Raises:
        ValueError: when the shapes do not say the sizes, or the settings say others.
    """
    found = _told(lambda: _generator(state), path, "vocoder")
    kernels = found["upsample_kernel_sizes"]
    rates = settings.get("upsample_rates") or [kernel // 2 for kernel in kernels]
    count = len(found["resblock_kernel_sizes"])
    dilations = settings.get("resblock_dilation_sizes") or [DILATIONS] * count
    names = {"upsample_kernel_sizes": "upsample_kernel_sizes", "resblock_kernel_sizes": "resblock_kernel_sizes"}
    _agree(found, settings, names, path, "vocoder")
    slope, padding = VOCODERS[layout]
    more = {"upsample_rates": list(rates), "resblock_dilation_sizes": [list(each) for each in dilations]}
    return {**found, **more, "last_slope": slope, "output_padding": padding}


def _generator(state: State) -> dict[str, Any]:
    initial, in_channels = state["conv_pre.weight"].shape[:2]
    stages = _count(state, "ups")
    parallel = _count(state, "resblocks") // stages
    kind = "1" if "resblocks.0.convs1.0.weight" in state else "2"
    first = "convs1" if kind == "1" else "convs"
    return {
        "in_channels": in_channels,
        "initial_channels": initial,
        "upsample_kernel_sizes": [state[f"ups.{i}.weight"].shape[2] for i in range(stages)],
        "resblock": kind,
        "resblock_kernel_sizes": [state[f"resblocks.{i}.{first}.0.weight"].shape[2] for i in range(parallel)],
    }


def _count(state: Mapping[str, Tensor], prefix: str) -> int:
    """One more than the largest number behind a prefix."""
    start = len(prefix) + 1
    numbers = [name[start:].partition(".")[0] for name in state if name.startswith(f"{prefix}.")]
    return 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)


def _told(read: Callable[[], dict[str, Any]], path: Path, what: str) -> dict[str, Any]:
    try:
        return read()
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: its tensors do not say the sizes of its {what}, it lacks {error}") from error


def _agree(
    found: Mapping[str, Any], settings: Mapping[str, Any], names: Mapping[str, str], path: Path, where: str
) -> None:
    """Refuse a configuration of another net."""
    for theirs, ours in names.items():
        wanted, value = settings.get(theirs), found[ours]
        if wanted is None:
            continue
        if ours == "attention_factors":
            wanted = sorted(wanted)
        if wanted != value:
            raise ValueError(f"{path}: its tensors say {theirs} {value}, the configuration's {where} {wanted}")


State = dict[str, Tensor]
Layout = Literal["audiosr", "modelV1", "model.py"]

LAYOUTS = get_args(Layout)
# component: its prefix; the first that fits a name counts
PREFIXES = {
    "global_encoder": "model.diffusion_model.global_encoder.",
    "unet": "model.diffusion_model.",
    "vocoder": "first_stage_model.vocoder.",
    "vae": "first_stage_model.",
}
# The conditioner holds a second copy of the autoencoder.
CONDITIONER = {
    "audiosr": "cond_stage_models.0.vae.",
    "modelV1": "cond_stage_models.0.vae.",
    "model.py": "cond_stage_models.concat_lowpass_cond.vae.",
}
COPY = "conditioner"  # its component
AVERAGE = "model_ema."  # buffers under squashed names, see `squashed`
# Tensors that no net of ours has, by prefix.
LEFT_OUT = {"clap.": "CLAP", "first_stage_model.loss.": "the autoencoder's training loss"}
SECOND_VOCODER = "the conditioner's vocoder"
ADAPTIVE = "_adaptive_proj."

_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")
_COPY = re.compile(r"^cond_stage_models\.(?:0|concat_lowpass_cond)\.vae\.")
# Tables of the diffusion, which follow from the schedule, and the scale of the latents.
SCALE = "scale_factor"
TABLES = (
    "betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_alphas_cumprod", "sqrt_one_minus_alphas_cumprod",
    "log_one_minus_alphas_cumprod", "sqrt_recip_alphas_cumprod", "sqrt_recipm1_alphas_cumprod", "posterior_variance",
    "posterior_log_variance_clipped", "posterior_mean_coef1", "posterior_mean_coef2", "lvlb_weights", "logvar",
)  # fmt: skip


def unwrapped(name: str) -> str:
    """A tensor's name without what torch.compile and parallel wrappers put in front of it, or in its middle."""
    return _WRAPPERS.sub("", name).replace("._orig_mod.", ".")


def split(state: Mapping[str, Tensor]) -> tuple[dict[str, State], dict[str, int]]:
    """Sort a file's tensors by component.

    Args:
        state: tensors by their names in the file, floats of any precision.

    Returns:
        Tensors by component under the component's own names, floats as float32: those of `PREFIXES`, "conditioner",
        "average", "tables" and "others"; and counts of what nothing runs and is left out.
    """
    parts: dict[str, State] = {}
    dropped: dict[str, int] = {}
    for key, value in state.items():
        component, name = _place(unwrapped(key))
        if component in (SECOND_VOCODER, *LEFT_OUT.values()):
            dropped[component] = dropped.get(component, 0) + 1
        else:
            parts.setdefault(component, {})[name] = value.float() if value.is_floating_point() else value
    return parts, dropped


def _place(name: str) -> tuple[str, str]:
    """Component (or what is left out) and name in it."""
    if name in TABLES or name == SCALE:
        return "tables", name
    if name.startswith(AVERAGE):
        return "average", name.removeprefix(AVERAGE)
    if match := _COPY.match(name):
        rest = name[match.end() :]
        return (SECOND_VOCODER if rest.startswith("vocoder.") else COPY), rest
    for prefix, what in LEFT_OUT.items():
        if name.startswith(prefix):
            return what, name
    for component, prefix in PREFIXES.items():
        if name.startswith(prefix):
            return component, name.removeprefix(prefix)
    return "others", name


def squashed(name: str) -> str:
    """The name of a parameter's average among AudioSR's buffers, which cannot have dots."""
    return f"diffusion_model.{name}".replace(".", "")


def transposed(state: Mapping[str, Tensor]) -> State:
    """Exchange the two image axes of every convolution's kernel: mel-first weights for time-first, and back."""
    return {name: value.transpose(-1, -2).contiguous() if value.dim() == 4 else value for name, value in state.items()}


def tables(steps: int, scale: Tensor, layout: Layout) -> State:
    """The buffers of the original's diffusion, equal to the last bit.

    Args:
        steps: of the cosine schedule.
        scale: of the latents, scalar.
        layout: of the file; ProjectLily took a switch for the weight of the posterior's variance, which makes it 0.
    """
    times = torch.arange(steps + 1, dtype=torch.float64)
    raw = torch.cos((times / steps + 0.008) / (1 + 0.008) * math.pi * 0.5) ** 2
    raw = raw / raw[0]
    betas = 1 - raw[1:] / raw[:-1]
    alphas = 1 - betas
    product = torch.cumprod(alphas, 0)
    before = torch.cat([torch.ones(1, dtype=torch.float64), product[:-1]])
    rest = 1 - product
    variance = betas * (1 - before) / rest if layout == "audiosr" else torch.zeros_like(betas)
    found = {
        "betas": betas,
        "alphas_cumprod": product,
        "alphas_cumprod_prev": before,
        "sqrt_alphas_cumprod": product.sqrt(),
        "sqrt_one_minus_alphas_cumprod": rest.sqrt(),
        "log_one_minus_alphas_cumprod": rest.log(),
        "sqrt_recip_alphas_cumprod": (1 / product).sqrt(),
        "sqrt_recipm1_alphas_cumprod": (1 / product - 1).sqrt(),
        "posterior_variance": variance,
        "posterior_log_variance_clipped": variance.clamp(min=1e-20).log(),
        "posterior_mean_coef1": betas * before.sqrt() / rest,
        "posterior_mean_coef2": (1 - before) * alphas.sqrt() / rest,
        "logvar": torch.zeros_like(betas),
    }
    return {SCALE: scale.detach().cpu().float(), **{name: table.float() for name, table in found.items()}}


CONFIG_NAME = "config.yaml"
CONTAINERS = ("model", "state_dict", "model_state_dict")  # of the weights, in ProjectLily's order
AVERAGES = ("ema", "ema_state_dict")
STEP = re.compile(r"(?:^|_)step_(\d+)\.")
TARGETS: dict[str, Layout] = {"modelV1": "modelV1", "model": "model.py"}  # module of model.target


@dataclass
class Original:
    """What a file holds.

    Attributes:
        path: of the file.
        layout: "audiosr", "modelV1" or "model.py" (both ProjectLily's).
        parts: tensors by component and name: unet, global_encoder, vae, vocoder, conditioner, tables, others; float32.
        averaged: averaged parameters of unet and global_encoder, likewise; empty where there are none.
        left_out: how many tensors nothing runs, by what they are of.
        config: the original's configuration; {} without one.
        step: optimizer steps trained, as far as the file or its name says.
    """

    path: Path
    layout: Layout
    parts: dict[str, State]
    averaged: dict[str, State] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    step: int = 0

    @property
    def is_mel_first(self) -> bool:
        """Whether the first image axis is the mel's, as in both of ProjectLily's."""
        return self.layout != "audiosr"

    @property
    def has_own_conditioner(self) -> bool:
        """Whether the conditioner's autoencoder is another one than the first stage's."""
        first = self.parts.get("vae", {})
        copy = self.parts.get(COPY, {})
        return any(key not in first or not torch.equal(first[key], value) for key, value in copy.items())

    @property
    def scale(self) -> Tensor:
        """Factor on latents."""
        return self.parts.get("tables", {}).get(SCALE, torch.tensor(1.0)).reshape(())

    def settings(self, name: str) -> dict[str, Any]:
        """A section of the configuration: that of `model.params`, and there the params of a class."""
        section = params(self.config).get(name) or {}
        return dict(section.get("params") or {})

    def condition_settings(self) -> dict[str, Any]:
        """`params` of the conditioner's own first stage; {} where the configuration has none."""
        for section in _table(params(self.config), "cond_stage_config").values():
            return _table(_table(_table(section, "params"), "first_stage_config"), "params")
        return {}


def params(config: Mapping[str, Any]) -> dict[str, Any]:
    """`model.params` of a configuration."""
    return dict((config.get("model") or {}).get("params") or {})


def read_config(path: Path) -> dict[str, Any]:
    """Read an original's config.yaml.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is none of AudioSR's or ProjectLily's.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {path}")
    try:
        config = safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(config, dict) or "unet_config" not in _table(_table(config, "model"), "params"):
        found = ", ".join(map(str, list(config)[:6])) if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{path} is no configuration of AudioSR: expected model.params.unet_config, found {found}")
    return config


def _table(value: Any, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def read(path: Path, config: Mapping[str, Any] | Path | str | None = None) -> Original:
    """Read a file without executing anything in it.

    Args:
        path: `.pt` of ProjectLily, or AudioSR's `.bin`.
        config: the original's configuration or its path; None takes a config.yaml beside the file, if it is one.

    Raises:
        FileNotFoundError: when there is no such file or configuration.
        ValueError: when its layout is not known, or configuration and file do not belong together.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    if isinstance(config, Mapping):
        settings = dict(config)
    elif config is not None:
        settings = read_config(Path(config))
    else:
        try:
            settings = read_config(path.with_name(CONFIG_NAME))
        except (FileNotFoundError, ValueError):
            settings = {}
    return interpret(load_foreign(path), path, settings)


def interpret(content: Any, path: Path, config: dict[str, Any]) -> Original:
    """Recognise what a loaded file holds.

    Raises:
        ValueError: when it is none of AudioSR's or ProjectLily's; the message lists a few keys.
    """
    known = "known are AudioSR's .bin and ProjectLily's .pt, with tensors named model.diffusion_model.* and the like"
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dict of tensors; {known}")
    container = next((name for name in CONTAINERS if isinstance(content.get(name), Mapping)), None)
    flat = content if container is None else content[container]
    tensors = {str(key): value for key, value in flat.items() if isinstance(value, Tensor)}
    parts, left_out = split(tensors)
    unet, vae = parts.get("unet", {}), parts.get("vae", {})
    first = vae.get("encoder.conv_in.weight")
    is_known = "input_blocks.0.0.weight" in unet or (first is not None and first.dim() == 4 and first.shape[1] == 1)
    if "zoo" in content or not is_known:
        raise ValueError(f"{path}: unknown layout with keys {', '.join(map(str, list(flat)[:5]))}; {known}")
    match = STEP.search(path.name)
    step = content.get("global_step", int(match[1]) if match else 0)
    buffers = parts.pop("average", {})
    layout = _layout(tensors, parts, any(name in content for name in AVERAGES), config, path)
    given: Mapping[str, Any] = next((content[name] for name in AVERAGES if isinstance(content.get(name), Mapping)), {})
    averaged: dict[str, State] = {}
    if given:
        own = split({str(key): value for key, value in given.items() if isinstance(value, Tensor)})[0]
        averaged = {name: own[name] for name in ("unet", "global_encoder") if name in own}
    elif layout == "audiosr" and buffers:
        averaged = {"unet": {name: buffers[squashed(name)] for name in unet if squashed(name) in buffers}}
    if buffers and layout != "audiosr":
        left_out["averages that ProjectLily never updates"] = len(buffers)
    return Original(path, layout, parts, averaged, left_out, config, step if isinstance(step, int) else 0)


def _conditioner(name: str) -> str:
    """How a tensor's name calls the conditioner; empty for others."""
    steps = unwrapped(name).split(".")
    return steps[1] if steps[0] == "cond_stage_models" and len(steps) > 1 else ""


def _layout(
    tensors: Mapping[str, Tensor], parts: Mapping[str, State], has_average: bool, config: Mapping[str, Any], path: Path
) -> Layout:
    """By the names; for files without a global encoder also by the configuration.

    Raises:
        ValueError: when the configuration says another one.
    """
    copies = {_conditioner(key) for key in tensors} - {""}
    single = not copies and transformers_per_down_block(parts.get("unet", {})) == 1
    found: Layout = "audiosr"
    if "concat_lowpass_cond" in copies or single:
        found = "model.py"
    elif has_average or "global_encoder" in parts:
        found = "modelV1"
    target = str(_table(config, "model").get("target") or "")
    wanted = TARGETS.get(target.partition(".")[0], found)
    if wanted == found or (found == "audiosr" and wanted == "modelV1"):
        return wanted
    raise ValueError(
        f"{path} has the names of {found} and the configuration those of {wanted} (model.target: {target}); give the "
        "configuration that it was trained with"
    )


def describe_nets(original: Original) -> dict[str, tuple[type[nn.Module], dict[str, Any]]]:
    """Classes and arguments of the nets that a file holds, by component.

    Raises:
        ValueError: when sizes cannot be told, or the configuration says others.
    """
    parts, layout, path = original.parts, original.layout, original.path
    unet = {**_table(original.config, "data"), **original.settings("unet_config")}
    found: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {}
    if "unet" in parts:
        found["unet"] = (UNet, unet_arguments(parts["unet"], layout, unet, path))
    if "global_encoder" in parts:
        found["global_encoder"] = (GlobalEncoder, encoder_arguments(parts["global_encoder"], layout, unet, path))
    if "vae" in parts:
        settings = original.settings("first_stage_config")
        found["vae"] = (Autoencoder, autoencoder_arguments(parts["vae"], settings, path))
    if original.has_own_conditioner:
        found[COPY] = (Autoencoder, autoencoder_arguments(parts[COPY], original.condition_settings(), path))
    if "vocoder" in parts:
        settings = original.config.get("vocoder") or {}
        found["vocoder"] = (Generator, generator_arguments(parts["vocoder"], layout, settings, path))
    return found


TABLE_TOLERANCE = 1e-5
Report = dict[str, Counter[str]]


def compare(original: Original, nets: Mapping[str, tuple[type[nn.Module], dict[str, Any]]]) -> Report:
    """Count per component which tensors fit.

    Returns:
        Counts of matched, missing, unexpected and mismatched (another shape) tensors. The conditioner's autoencoder is
        a net of its own where it differs from the first stage's.
    """
    report: Report = {}
    for name, (cls, arguments) in nets.items():
        with torch.device("meta"):
            net = cls(**arguments)
        if isinstance(net, Generator):
            net.fuse_()
        own = {key: value.shape for key, value in net.state_dict().items()}
        given = original.parts[name]
        counts = report.setdefault(name, Counter())
        for key in dict.fromkeys([*own, *given]):
            counts[_outcome(own.get(key), given[key].shape if key in given else None)] += 1
    if COPY in original.parts and COPY not in nets:
        report[COPY] = Counter(matched=len(original.parts[COPY]))
    if "others" in original.parts:
        report["others"] = Counter(unexpected=len(original.parts["others"]))
    return report


def _outcome(own: torch.Size | None, given: torch.Size | None) -> str:
    if own is None or given is None:
        return "missing" if given is None else "unexpected"
    return "matched" if own == given else "mismatched"


def told(report: Report) -> dict[str, str]:
    """A report in words."""
    return {name: ", ".join(f"{count} {what}" for what, count in sorted(report[name].items())) for name in report}


def check(original: Original, report: Report, min_matched: float, allow_partial: bool = False) -> list[str]:
    """Refuse what would not compute as the original does.

    Args:
        original: what was read.
        report: of `compare`.
        min_matched: share of each component's tensors that must match, 0 to 1.
        allow_partial: pass over a missing projection of the global encoder.

    Returns:
        What was passed over.

    Raises:
        ValueError: naming the component and what to do.
    """
    path, notes = original.path, []
    if lacks_projection(original):
        reason = (
            f"{path} has no {ADAPTIVE}weight: ProjectLily built that projection in the first forward pass, at random "
            "in each process, so the global encoder's output cannot be had again"
        )
        if not allow_partial:
            raise ValueError(f"{reason}; --allow_partial true takes the rest, for training the encoder anew")
        notes.append(f"{reason}: random here, train the encoder (trains: global_encoder)")
        report["global_encoder"]["missing"] -= 2
    for name, counts in report.items():
        total = sum(counts.values())
        if name == "others" or counts["matched"] >= min_matched * total:
            continue
        raise ValueError(
            f"{path}: only {counts['matched']} of {total} tensors of the {name} match ({dict(+counts)}), "
            f"{min_matched:.0%} must; is the configuration another one's?"
        )
    exact = original.parts.get("tables", {}).get("alphas_cumprod")
    if exact is not None:
        ours = CosineDiffusion(len(exact)).alpha_bar
        if (worst := float((ours - exact).abs().max())) > TABLE_TOLERANCE:
            raise ValueError(
                f"{path}: its noise schedule is not the cosine one (alphas_cumprod differ by {worst:.2g}); it is not "
                "AudioSR's, and not supported"
            )
    return notes


def lacks_projection(original: Original) -> bool:
    """Whether a file has a global encoder without its projection."""
    encoder = original.parts.get("global_encoder")
    return encoder is not None and not any(name.startswith(ADAPTIVE) for name in encoder)
