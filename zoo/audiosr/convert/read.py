"""Reading AudioSR's and ProjectLily's files: layouts, names, sizes, settings, and whether they are whole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.audiosr.convert.autoencoder_names import to_zoo_autoencoder
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.nets.global_encoder import REDUCTION
from zoo.common.build import build
from zoo.convert.engine import OriginalFile
from zoo.convert.network_description import (
    component,
    count_blocks,
    fill_description,
    setting,
    size_of_axis,
    sizes_of_axis,
)
from zoo.convert.settings import read_settings_file
from zoo.convert.tensor_names import State, add_tensor, strip_state_wrappers, strip_wrappers
from zoo.hifigan.nets.generator import Generator


class Layout(NamedTuple):
    """What is particular to one of the three sources."""

    module: str  # of the classes that its configuration names
    conditioner: str  # prefix of the second copy of the autoencoder, which encodes the condition
    last_slope: float  # of the vocoder's code
    output_padding: int  # likewise
    fusion: str  # of the global context into the UNet, where there is one
    transformers: int  # in a row per down block of the UNet
    encoder: tuple[int, int, int]  # channels, heads and layers of its global encoder's class


LAYOUTS = {
    "audiosr": Layout("audiosr", "cond_stage_models.0.vae.", 0.01, 0, "replace", 2, (0, 0, 0)),
    "modelV1": Layout("modelV1", "cond_stage_models.0.vae.", 0.1, 1, "replace", 2, (128, 4, 2)),
    "model.py": Layout("model", "cond_stage_models.concat_lowpass_cond.vae.", 0.1, 1, "residual", 1, (256, 8, 4)),
}
TARGETS = {"modelV1": "modelV1", "model": "model.py"}  # module of model.target -> layout

COPY = "conditioner"  # the autoencoder that encodes the condition; mostly a copy of the first stage's
# prefix in a file -> component under whose own names the rest is; the first that fits a name counts
PREFIXES = {
    "model.diffusion_model.global_encoder.": "global_encoder",
    "model.diffusion_model.": "unet",
    "first_stage_model.vocoder.": "vocoder",
    "first_stage_model.loss.": "the autoencoder's training loss",
    "first_stage_model.": "vae",
    "cond_stage_models.0.vae.vocoder.": "the conditioner's vocoder",
    "cond_stage_models.0.vae.": COPY,
    "cond_stage_models.concat_lowpass_cond.vae.vocoder.": "the conditioner's vocoder",
    "cond_stage_models.concat_lowpass_cond.vae.": COPY,
    "model_ema.": "average",  # buffers under squashed names, see `squashed`
    "clap.": "CLAP",
}
LEFT_OUT = ("the autoencoder's training loss", "the conditioner's vocoder", "CLAP")  # no net of ours runs them
SCALE = "scale_factor"  # of the latents
TABLES = (
    SCALE, "betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_alphas_cumprod", "sqrt_one_minus_alphas_cumprod",
    "log_one_minus_alphas_cumprod", "sqrt_recip_alphas_cumprod", "sqrt_recipm1_alphas_cumprod", "posterior_variance",
    "posterior_log_variance_clipped", "posterior_mean_coef1", "posterior_mean_coef2", "lvlb_weights", "logvar",
)  # fmt: skip
CONTAINERS = ("model", "state_dict", "model_state_dict")  # of the weights, in ProjectLily's order
AVERAGES = ("ema", "ema_state_dict")
ADAPTIVE = "_adaptive_proj."  # the global encoder's projection
STEP = re.compile(r"(?:^|_)step_(\d+)\.")
_CONDITIONER = re.compile(r"cond_stage_models\.([^.]+)\.")
FORMATS = "known are AudioSR's .bin and ProjectLily's .pt, with tensors named model.diffusion_model.* and the like"

CONFIG_NAME = "config.yaml"
# Keys of the configuration -> arguments of our nets.
UNET_KEYS = {
    "in_channels": "in_channels",
    "out_channels": "out_channels",
    "model_channels": "channels",
    "attention_resolutions": "attention_factors",
    "num_res_blocks": "blocks",
    "channel_mult": "multipliers",
    "num_head_channels": "head_channels",
}
ENCODER_KEYS = {
    "global_context_dim": "context_channels",
    "global_encoder_hidden_dim": "channels",
    "global_encoder_heads": "heads",
    "global_encoder_layers": "layers",
}
ENCODER_SIZES = ("global_encoder_hidden_dim", "global_encoder_layers")
VOCODER_KEYS = {key: key for key in ("upsample_kernel_sizes", "resblock_kernel_sizes")}
# What their classes take where no configuration says it.
NORM_GROUPS, HEAD_CHANNELS, VAE_DROPOUT, N_MELS = 32, 32, 0.1, 256


def _levels(unet: OriginalFile) -> list[list[int]]:
    """Numbers of the UNet's residual blocks on the way down, level by level."""
    levels: list[list[int]] = [[]]
    for index in range(1, count_blocks("input_blocks.")(unet)):
        if f"input_blocks.{index}.0.op.weight" in unet.state:
            levels.append([])
        else:
            levels[-1].append(index)
    return levels


def _transformers(state: Mapping[str, Tensor], block: int) -> int:
    return sum(name.startswith(f"input_blocks.{block}.") and name.endswith(".proj_in.weight") for name in state)


def transformers_per_down_block(state: Mapping[str, Tensor]) -> int:
    """Transformers in a row on the way down; 0 where there is none."""
    blocks = {name.split(".")[1] for name in state if name.startswith("input_blocks.")}
    return max((_transformers(state, int(block)) for block in blocks), default=0)


def _in_a_row(unet: OriginalFile) -> list[int]:
    """Transformers of each level's blocks."""
    return [_transformers(unet.state, level[0]) for level in _levels(unet)]


def _multipliers(unet: OriginalFile) -> list[int]:
    widths = [len(unet.state[f"input_blocks.{level[0]}.0.in_layers.2.weight"]) for level in _levels(unet)]
    return [width // len(unet.state["input_blocks.0.0.weight"]) for width in widths]


def _context_channels(unet: OriginalFile) -> int | None:
    found = [value.shape[1] for name, value in unet.state.items() if name.endswith(".global_proj.weight")]
    return found[0] if found else None


def _n_mels(encoder: OriginalFile) -> int:
    projection = encoder.state.get(f"{ADAPTIVE}weight")
    if projection is None:
        return int(encoder.settings.get("n_mels", N_MELS))
    return projection.shape[1] // encoder.state["pos_encoding"].shape[2] * REDUCTION


def _heads(encoder: OriginalFile) -> int:
    """By the configuration of such an encoder; modelV1 swallows the keys, so that of a model.py says nothing of it."""
    its = (encoder.state["pos_encoding"].shape[2], count_blocks("transformer.layers.")(encoder))
    is_its = all(encoder.settings.get(key, value) == value for key, value in zip(ENCODER_SIZES, its, strict=True))
    heads = LAYOUTS[encoder.layout].encoder[1]
    return int(encoder.settings.get("global_encoder_heads", heads)) if is_its else heads


_upsample_kernels = sizes_of_axis("ups.{}.weight", 2)


def _resblock_kernels(vocoder: OriginalFile) -> list[int]:
    first = "convs1" if "resblocks.0.convs1.0.weight" in vocoder.state else "convs"
    parallel = count_blocks("resblocks.")(vocoder) // count_blocks("ups.")(vocoder)
    return [vocoder.state[f"resblocks.{i}.{first}.0.weight"].shape[2] for i in range(parallel)]


def _dilations(vocoder: OriginalFile) -> list[list[int]]:
    kernels = _resblock_kernels(vocoder)
    return [list(each) for each in vocoder.settings.get("resblock_dilation_sizes") or [[1, 3, 5]] * len(kernels)]


class Net(NamedTuple):
    """A net of a file: its description, whose leaves read the file, and what the configuration must say of it."""

    spec: dict[str, Any]
    settings: Callable[[Mapping[str, Any]], dict[str, Any]]  # of the net's arguments
    where: str


def settings_by(keys: Mapping[str, str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return the settings of an original that name single arguments of our net."""
    return lambda arguments: {key: arguments[name] for key, name in keys.items()}


def autoencoder_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the original's settings of an `AutoencoderKL` with these arguments."""
    widths = list(arguments["block_out_channels"])
    return {
        "ch": widths[0],
        "ch_mult": [width // widths[0] for width in widths],
        "num_res_blocks": arguments["layers_per_block"],
        "z_channels": arguments["latent_channels"],
    }


UNET = component(
    "zoo.audiosr.UNet",
    in_channels=size_of_axis("input_blocks.0.0.weight", 1),
    out_channels=size_of_axis("out.2.weight"),
    channels=size_of_axis("input_blocks.0.0.weight"),
    multipliers=_multipliers,
    blocks=lambda unet: len(_levels(unet)[0]),
    attention_factors=lambda unet: [2**level for level, in_a_row in enumerate(_in_a_row(unet)) if in_a_row],
    transformers_per_down_block=lambda unet: next(filter(None, _in_a_row(unet)), LAYOUTS[unet.layout].transformers),
    fusion=lambda unet: "none" if _context_channels(unet) is None else LAYOUTS[unet.layout].fusion,
    context_channels=_context_channels,
    norm_groups=NORM_GROUPS,
    checkpointing=False,
    head_channels=setting("num_head_channels", HEAD_CHANNELS, int),
)
ENCODER = component(
    "zoo.audiosr.GlobalEncoder",
    n_mels=_n_mels,
    channels=size_of_axis("pos_encoding", 2),
    layers=count_blocks("transformer.layers."),
    context_channels=size_of_axis("global_proj.weight"),
    positions=size_of_axis("pos_encoding", 1),
    heads=_heads,
    dropout=0.1,
)
AUTOENCODER = component(
    "zoo.blocks.AutoencoderKL",
    in_channels=1,
    out_channels=1,
    block_out_channels=sizes_of_axis("encoder.down_blocks.{}.resnets.0.conv1.weight"),
    layers_per_block=count_blocks("encoder.down_blocks.0.resnets."),
    latent_channels=size_of_axis("post_quant_conv.weight"),
    norm_num_groups=NORM_GROUPS,
    dropout=setting("dropout", VAE_DROPOUT, float),
)
VOCODER = component(
    "zoo.hifigan.Generator",
    in_channels=size_of_axis("conv_pre.weight", 1),
    initial_channels=size_of_axis("conv_pre.weight"),
    upsample_kernel_sizes=_upsample_kernels,
    resblock=lambda vocoder: "1" if "resblocks.0.convs1.0.weight" in vocoder.state else "2",
    resblock_kernel_sizes=_resblock_kernels,
    upsample_rates=lambda vocoder: list(
        vocoder.settings.get("upsample_rates") or [kernel // 2 for kernel in _upsample_kernels(vocoder)]
    ),
    resblock_dilation_sizes=_dilations,
    last_slope=lambda vocoder: LAYOUTS[vocoder.layout].last_slope,
    output_padding=lambda vocoder: LAYOUTS[vocoder.layout].output_padding,
)
NETS = {
    "unet": Net(UNET, settings_by({**UNET_KEYS, "global_context_dim": "context_channels"}), "unet_config"),
    "global_encoder": Net(ENCODER, settings_by({key: ENCODER_KEYS[key] for key in ENCODER_SIZES}), "unet_config"),
    "vae": Net(AUTOENCODER, autoencoder_settings, "first_stage_config: ddconfig"),
    COPY: Net(AUTOENCODER, autoencoder_settings, "first_stage_config: ddconfig"),
    "vocoder": Net(VOCODER, settings_by(VOCODER_KEYS), "vocoder"),
}


@dataclass
class AudioSRFile(OriginalFile):
    """What a file holds; `settings` is the original's configuration, {} without one."""

    path: Path = Path()
    parts: dict[str, State] = field(default_factory=dict)  # by component and name: of `NETS`, tables, others; float32
    averaged: dict[str, State] = field(default_factory=dict)  # of unet and global_encoder; empty without
    left_out: dict[str, int] = field(default_factory=dict)  # how many tensors nothing runs, by what they are of
    step: int = 0  # optimizer steps trained, as far as the file or its name says

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
    def lacks_projection(self) -> bool:
        """Whether there is a global encoder without its projection."""
        encoder = self.parts.get("global_encoder")
        return encoder is not None and not any(name.startswith(ADAPTIVE) for name in encoder)

    @property
    def scale(self) -> Tensor:
        """Factor on latents."""
        return self.parts.get("tables", {}).get(SCALE, torch.tensor(1.0)).reshape(())

    def settings_of(self, component: str) -> dict[str, Any]:
        """What the configuration says of a net."""
        params = section(self.settings, "model", "params")
        if component == "vocoder":
            return section(self.settings, "vocoder")
        if component in ("unet", "global_encoder"):
            return {**section(self.settings, "data"), **section(params, "unet_config", "params")}
        if component == COPY:
            params = section(next(iter(section(params, "cond_stage_config").values()), None), "params")
        return section(params, "first_stage_config", "params", "ddconfig")

    def specs(self) -> dict[str, dict[str, Any]]:
        """Describe the nets that are there, by component.

        Raises:
            ValueError: when the shapes do not say the sizes, or the configuration says others.
        """
        found = {}
        for name, net in NETS.items():
            if name not in self.parts or (name == COPY and not self.has_own_conditioner):
                continue
            net_file = OriginalFile(self.layout, self.parts[name], self.settings_of(name))
            found[name] = fill_description(net.spec, net_file, f"{self.path} ({name})")
            if name != "global_encoder" or self.layout == "model.py":
                self._agree(found[name]["init_args"], net_file.settings, net)
        if (encoder := found.get("global_encoder", {}).get("init_args")) and (
            encoder["heads"] < 1 or encoder["channels"] % encoder["heads"]
        ):
            raise ValueError(
                f"{self.path}: global_encoder_heads {encoder['heads']} cannot divide the encoder's "
                f"{encoder['channels']} channels"
            )
        return found

    def _agree(self, arguments: Mapping[str, Any], said: Mapping[str, Any], net: Net) -> None:
        """Refuse a configuration of another net."""
        for theirs, value in net.settings(arguments).items():
            wanted = said.get(theirs)
            if theirs == "attention_resolutions" and wanted is not None:
                wanted = sorted(wanted)
            if None not in (value, wanted) and value != wanted:
                theirs += f" {value}, the configuration's {net.where} {wanted}"
                raise ValueError(f"{self.path}: its tensors say {theirs}")


def section(config: Any, *keys: str) -> dict[str, Any]:
    """The table that keys lead to; {} where there is none."""
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return dict(config) if isinstance(config, Mapping) else {}


def read_config(path: Path) -> dict[str, Any]:
    """Read an original's config.yaml.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is none of AudioSR's or ProjectLily's.
    """
    config = read_settings_file(path)
    if "unet_config" not in section(config, "model", "params"):
        found = ", ".join(map(str, list(config)[:6]))
        raise ValueError(f"{path} is no configuration of AudioSR: expected model.params.unet_config, found {found}")
    return config


def config_of(path: Path, given: Mapping[str, Any] | Path | str | None) -> dict[str, Any]:
    """The configuration of a file: what is given, or a config.yaml beside the file, if it is one."""
    if isinstance(given, Mapping):
        return dict(given)
    if given is not None:
        return read_config(Path(given))
    try:
        return read_config(path.with_name(CONFIG_NAME))
    except (FileNotFoundError, ValueError):
        return {}


def split(state: Mapping[str, Tensor]) -> tuple[dict[str, State], dict[str, int]]:
    """Sort a file's tensors by component, floats as float32, and count what nothing runs."""
    parts: dict[str, State] = {}
    dropped: Counter[str] = Counter()
    for name, value in strip_state_wrappers(state).items():
        prefix = next((each for each in PREFIXES if name.startswith(each)), "")
        component = "tables" if name in TABLES else PREFIXES.get(prefix, "others")
        if component in LEFT_OUT:
            dropped[component] += 1
        else:
            value = value.float() if value.is_floating_point() else value
            add_tensor(parts.setdefault(component, {}), name.removeprefix(prefix), value, name)
    for component in parts.keys() & {"vae", COPY}:
        parts[component] = to_zoo_autoencoder(parts[component])
    return parts, dict(dropped)


def squashed(name: str) -> str:
    """The name of a parameter's average among AudioSR's buffers, which cannot have dots."""
    return f"diffusion_model.{name}".replace(".", "")


def transposed(state: Mapping[str, Tensor]) -> State:
    """Exchange the two image axes of every convolution's kernel: mel-first weights for time-first, and back."""
    return {name: value.transpose(-1, -2).contiguous() if value.dim() == 4 else value for name, value in state.items()}


def _tensors(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def interpret(content: Mapping[str, Any], path: Path, config: dict[str, Any]) -> AudioSRFile:
    """Recognise what a loaded file holds.

    Raises:
        ValueError: when it is none of AudioSR's or ProjectLily's, or the configuration is another layout's.
    """
    flat = next((content[name] for name in CONTAINERS if isinstance(content.get(name), Mapping)), content)
    tensors = _tensors(flat)
    parts, left_out = split(tensors)
    first = parts.get("vae", {}).get("encoder.conv_in.weight")
    is_vae = first is not None and first.dim() == 4 and first.shape[1] == 1
    if "zoo" in content or not (is_vae or "input_blocks.0.0.weight" in parts.get("unet", {})):
        raise ValueError(f"{path}: unknown layout with keys {', '.join(map(str, list(flat)[:5]))}; {FORMATS}")
    match = STEP.search(path.name)
    step = content.get("global_step", int(match[1]) if match else 0)
    buffers = parts.pop("average", {})
    layout = _layout(tensors, parts, any(name in content for name in AVERAGES), config, path)
    averaged: dict[str, State] = {}
    if given := next((content[name] for name in AVERAGES if isinstance(content.get(name), Mapping)), None):
        own = split(_tensors(given))[0]
        averaged = {name: own[name] for name in ("unet", "global_encoder") if name in own}
    elif layout == "audiosr" and buffers:
        unet = parts.get("unet", {})
        averaged = {"unet": {name: buffers[squashed(name)] for name in unet if squashed(name) in buffers}}
    if buffers and layout != "audiosr":
        left_out["averages that ProjectLily never updates"] = len(buffers)
    step = step if isinstance(step, int) else 0
    return AudioSRFile(layout, settings=config, path=path, parts=parts, averaged=averaged, left_out=left_out, step=step)


def _layout(
    tensors: Mapping[str, Tensor], parts: Mapping[str, State], has_average: bool, config: Mapping[str, Any], path: Path
) -> str:
    """By the names; for files without a global encoder also by the configuration."""
    copies = {match[1] for key in tensors if (match := _CONDITIONER.match(strip_wrappers(key)))}
    found = "audiosr"
    if "concat_lowpass_cond" in copies or (not copies and transformers_per_down_block(parts.get("unet", {})) == 1):
        found = "model.py"
    elif has_average or "global_encoder" in parts:
        found = "modelV1"
    target = str(section(config, "model").get("target") or "")
    wanted = TARGETS.get(target.partition(".")[0], found)
    if wanted == found or (found == "audiosr" and wanted == "modelV1"):
        return wanted
    raise ValueError(
        f"{path} has the names of {found} and the configuration those of {wanted} (model.target: {target}); give the "
        "configuration that it was trained with"
    )


TABLE_TOLERANCE = 1e-5
Report = dict[str, Counter[str]]


def compare(file: AudioSRFile, specs: Mapping[str, Any]) -> Report:
    """Count per net which tensors are matched, missing, unexpected and mismatched (of another shape).

    A conditioner's autoencoder that is the first stage's again is no net of its own, and matches.
    """
    report: Report = {}
    for name, spec in specs.items():
        with torch.device("meta"):
            net = build(spec)
        if isinstance(net, Generator):
            net.remove_weight_norm_()
        own, given = net.state_dict(), file.parts[name]
        report[name] = Counter(
            "missing" if key not in given
            else "unexpected" if key not in own
            else "matched" if own[key].shape == given[key].shape
            else "mismatched"
            for key in dict.fromkeys([*own, *given])
        )  # fmt: skip
    if COPY in file.parts and COPY not in specs:
        report[COPY] = Counter(matched=len(file.parts[COPY]))
    if "others" in file.parts:
        report["others"] = Counter(unexpected=len(file.parts["others"]))
    return report


def in_words(report: Report) -> dict[str, str]:
    """A report in words."""
    return {name: ", ".join(f"{count} {what}" for what, count in sorted(report[name].items())) for name in report}


def check(file: AudioSRFile, report: Report, min_matched: float, allow_partial: bool) -> list[str]:
    """Refuse what would not compute as the original does; returns what was passed over.

    Args:
        report: of `compare`.
        min_matched: share of each component's tensors that must match, 0 to 1.
        allow_partial: pass over a missing projection of the global encoder.

    Raises:
        ValueError: naming the component and what to do.
    """
    notes = []
    if file.lacks_projection:
        reason = (
            f"{file.path} has no {ADAPTIVE}weight: ProjectLily built that projection in the first forward pass, at "
            "random in each process, so the global encoder's output cannot be had again"
        )
        if not allow_partial:
            raise ValueError(f"{reason}; --allow_partial true takes the rest, for training the encoder anew")
        notes.append(f"{reason}: random here, train the encoder (trains: global_encoder)")
        report["global_encoder"]["missing"] -= 2
    for name, counts in report.items():
        total = sum(counts.values())
        if name != "others" and counts["matched"] < min_matched * total:
            raise ValueError(
                f"{file.path}: only {counts['matched']} of {total} tensors of the {name} match ({dict(+counts)}), "
                f"{min_matched:.0%} must; is the configuration another one's?"
            )
    exact = file.parts.get("tables", {}).get("alphas_cumprod")
    if exact is not None:
        worst = float((CosineDiffusion(len(exact)).alpha_bar - exact).abs().max())
        if worst > TABLE_TOLERANCE:
            raise ValueError(
                f"{file.path}: its noise schedule is not the cosine one (alphas_cumprod differ by {worst:.2g}); it is "
                "not AudioSR's, and not supported"
            )
    return notes
