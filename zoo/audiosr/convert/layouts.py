"""Layouts of AudioSR's and ProjectLily's files: which tensors belong to which net, and the configuration."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.audiosr.convert.autoencoder_names import to_zoo_autoencoder
from zoo.audiosr.diffusion import CosineDiffusion
from zoo.convert.engine import OriginalFile
from zoo.convert.settings import read_settings_file
from zoo.convert.tensor_names import State, add_tensor, strip_state_wrappers, strip_wrappers


class Layout(NamedTuple):
    """Properties of one of the three sources."""

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

CONDITIONER = "conditioner"  # the autoencoder that encodes the condition: a copy of the first stage's
# prefix in a file -> component; the first that fits a name counts
PREFIXES = {
    "model.diffusion_model.global_encoder.": "global_encoder",
    "model.diffusion_model.": "unet",
    "first_stage_model.vocoder.": "vocoder",
    "first_stage_model.loss.": "the autoencoder's training loss",
    "first_stage_model.": "vae",
    "cond_stage_models.0.vae.vocoder.": "the conditioner's vocoder",
    "cond_stage_models.0.vae.loss.": "the autoencoder's training loss",
    "cond_stage_models.0.vae.": CONDITIONER,
    "cond_stage_models.concat_lowpass_cond.vae.vocoder.": "the conditioner's vocoder",
    "cond_stage_models.concat_lowpass_cond.vae.loss.": "the autoencoder's training loss",
    "cond_stage_models.concat_lowpass_cond.vae.": CONDITIONER,
    "model_ema.": "average",  # buffers, see `ema_buffer_name`
    "clap.": "CLAP",
}
LEFT_OUT = ("the autoencoder's training loss", "the conditioner's vocoder", "CLAP", "unknown names")
SCALE = "scale_factor"  # of the latents
TABLES = (
    SCALE, "betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_alphas_cumprod", "sqrt_one_minus_alphas_cumprod",
    "log_one_minus_alphas_cumprod", "sqrt_recip_alphas_cumprod", "sqrt_recipm1_alphas_cumprod", "posterior_variance",
    "posterior_log_variance_clipped", "posterior_mean_coef1", "posterior_mean_coef2", "lvlb_weights", "logvar",
)  # fmt: skip
CONTAINERS = ("model", "state_dict", "model_state_dict")  # of the weights, in ProjectLily's order
AVERAGES = ("ema", "ema_state_dict")
PROJECTION = "_adaptive_proj."  # of the global encoder
TABLE_TOLERANCE = 1e-5
FORMATS = "known are AudioSR's .bin and ProjectLily's .pt, with tensors named model.diffusion_model.* and the like"
CONFIG_NAME = "config.yaml"
_STEP = re.compile(r"(?:^|_)step_(\d+)\.")
_CONDITIONER = re.compile(r"cond_stage_models\.([^.]+)\.")


@dataclass
class AudioSRFile(OriginalFile):
    """The contents of a file, its image nets time first; `settings` is the original's configuration, {} without one."""

    path: Path = Path()
    parts: dict[str, State] = field(default_factory=dict)  # by component, under the nets' own names; float32
    averaged: dict[str, State] = field(default_factory=dict)  # of unet and global_encoder; empty without
    left_out: dict[str, int] = field(default_factory=dict)  # numbers of tensors that no net uses, by their kind
    has_other_conditioner: bool = False  # whether another autoencoder than the first stage's encodes the condition
    step: int = 0  # optimizer steps trained, as far as the file or its name says

    @property
    def is_mel_first(self) -> bool:
        """Whether the first image axis of the file is the mel's, as in both of ProjectLily's."""
        return self.layout != "audiosr"

    @property
    def lacks_projection(self) -> bool:
        """Whether there is a global encoder without its projection."""
        encoder = self.parts.get("global_encoder")
        return encoder is not None and not any(name.startswith(PROJECTION) for name in encoder)

    @property
    def scale(self) -> Tensor:
        """Factor on latents."""
        return self.parts.get("tables", {}).get(SCALE, torch.tensor(1.0)).reshape(())

    def component_settings(self, component: str) -> dict[str, Any]:
        """Return the configuration's settings of a net."""
        params = section(self.settings, "model", "params")
        if component == "vocoder":
            return section(self.settings, "vocoder")
        if component in ("unet", "global_encoder"):
            return {**section(self.settings, "data"), **section(params, "unet_config", "params")}
        return section(params, "first_stage_config", "params", "ddconfig")

    def check_supported(self) -> None:
        """Refuse a second autoencoder for the condition, ProjectLily's scale, and other schedules than the cosine."""
        if self.has_other_conditioner:
            raise ValueError(
                f"{self.path} holds a conditioner's autoencoder that is not the first stage's; here one encodes both "
                "targets and conditions"
            )
        if self.is_mel_first:
            check_scale(self.path, float(self.scale))
        exact = self.parts.get("tables", {}).get("alphas_cumprod")
        if exact is None:
            return
        difference = float((CosineDiffusion(len(exact)).alpha_bar - exact).abs().max())
        if difference > TABLE_TOLERANCE:
            raise ValueError(
                f"{self.path}: alphas_cumprod differ by {difference:.2g} from the cosine noise schedule, AudioSR's; no "
                "other is supported"
            )


def check_scale(path: Path, scale: float) -> None:
    """Refuse another scale of the latents than 1 in ProjectLily's files."""
    if scale != 1.0:
        raise ValueError(
            f"{path}: scale_factor is {scale:g}; expected 1, for ProjectLily does not apply it to the condition, "
            "AudioSR and our task do"
        )


def section(config: Any, *keys: str) -> dict[str, Any]:
    """Return the table that keys lead to; {} where there is none."""
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return dict(config) if isinstance(config, Mapping) else {}


def read_config(path: Path) -> dict[str, Any]:
    """Read an original's config.yaml; FileNotFoundError, or ValueError where it is another program's."""
    config = read_settings_file(path)
    if "unet_config" not in section(config, "model", "params"):
        keys = ", ".join(map(str, list(config)[:6]))
        raise ValueError(f"{path} is no configuration of AudioSR: expected model.params.unet_config, found {keys}")
    return config


def companion_config(path: Path) -> dict[str, Any]:
    """Return the configuration next to a file, its config.yaml; {} without one."""
    try:
        return read_config(path.with_name(CONFIG_NAME))
    except (FileNotFoundError, ValueError):
        return {}


def split_components(state: Mapping[str, Tensor]) -> tuple[dict[str, State], dict[str, int], bool]:
    """Split a file's tensors by component, floats as float32, and count those that no net uses.

    Also returns whether the condition has another autoencoder than the first stage's.
    """
    parts: dict[str, State] = {}
    left_out: Counter[str] = Counter()
    for name, value in strip_state_wrappers(state).items():
        prefix = next((each for each in PREFIXES if name.startswith(each)), "")
        component = "tables" if name in TABLES else PREFIXES.get(prefix, "unknown names")
        if component in LEFT_OUT:
            left_out[component] += 1
        else:
            value = value.float() if value.is_floating_point() else value
            add_tensor(parts.setdefault(component, {}), name.removeprefix(prefix), value, name)
    first, copy = parts.get("vae", {}), parts.pop(CONDITIONER, {})
    is_other = any(name not in first or not torch.equal(first[name], value) for name, value in copy.items())
    if first:
        parts["vae"] = to_zoo_autoencoder(first)
    return parts, dict(left_out), is_other


def ema_buffer_name(name: str) -> str:
    """Return the name of a parameter's average among AudioSR's buffers, which cannot have dots."""
    return f"diffusion_model.{name}".replace(".", "")


def transpose_images(parts: Mapping[str, State]) -> dict[str, State]:
    """Exchange the image axes of all kernels of UNet and autoencoders: mel first to time first, and back."""
    return {component: _transpose_kernels(state) if component in ("unet", "vae") else state
            for component, state in parts.items()}  # fmt: skip


def _transpose_kernels(state: State) -> State:
    return {name: value.transpose(-1, -2).contiguous() if value.dim() == 4 else value for name, value in state.items()}


def count_transformers(state: Mapping[str, Tensor], block: int) -> int:
    """Count the transformers in a block of the UNet's way down."""
    return sum(name.startswith(f"input_blocks.{block}.") and name.endswith(".proj_in.weight") for name in state)


def transformers_per_down_block(state: Mapping[str, Tensor]) -> int:
    """Count the transformers in a row on the UNet's way down; 0 where there is none."""
    blocks = {name.split(".")[1] for name in state if name.startswith("input_blocks.")}
    return max((count_transformers(state, int(block)) for block in blocks), default=0)


def parse_content(content: Mapping[str, Any], path: Path, config: dict[str, Any]) -> AudioSRFile:
    """Parse a loaded file; ValueError for other projects' files and another layout's configuration."""
    flat = next((content[name] for name in CONTAINERS if isinstance(content.get(name), Mapping)), content)
    tensors = _select_tensors(flat)
    parts, left_out, has_other_conditioner = split_components(tensors)
    first = parts.get("vae", {}).get("encoder.conv_in.weight")
    is_vae = first is not None and first.dim() == 4 and first.shape[1] == 1
    if "zoo" in content or not (is_vae or "input_blocks.0.0.weight" in parts.get("unet", {})):
        raise ValueError(f"{path}: unknown layout with keys {', '.join(map(str, list(flat)[:5]))}; {FORMATS}")
    match = _STEP.search(path.name)
    step = content.get("global_step", int(match[1]) if match else 0)
    buffers = parts.pop("average", {})
    layout = detect_layout(tensors, parts, any(name in content for name in AVERAGES), config, path)
    averaged: dict[str, State] = {}
    average = next((content[name] for name in AVERAGES if isinstance(content.get(name), Mapping)), None)
    if average is not None:
        average_parts = split_components(_select_tensors(average))[0]
        averaged = {name: average_parts[name] for name in ("unet", "global_encoder") if name in average_parts}
    elif layout == "audiosr" and buffers:
        names = {name: ema_buffer_name(name) for name in parts.get("unet", {})}
        averaged = {"unet": {name: buffers[buffer] for name, buffer in names.items() if buffer in buffers}}
    if buffers and layout != "audiosr":
        left_out["averages that ProjectLily never updates"] = len(buffers)
    if layout != "audiosr":
        parts, averaged = transpose_images(parts), transpose_images(averaged)
    step = step if isinstance(step, int) else 0
    return AudioSRFile(
        layout, settings=config, path=path, parts=parts, averaged=averaged, left_out=left_out,
        has_other_conditioner=has_other_conditioner, step=step,
    )  # fmt: skip


def _select_tensors(content: Mapping[Any, Any]) -> dict[str, Tensor]:
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def detect_layout(
    tensors: Mapping[str, Tensor], parts: Mapping[str, State], has_average: bool, config: Mapping[str, Any], path: Path
) -> str:
    """Detect the layout by the names; of files without a global encoder also by the configuration."""
    conditioners = {match[1] for key in tensors if (match := _CONDITIONER.match(strip_wrappers(key)))}
    layout = "audiosr"
    if "concat_lowpass_cond" in conditioners or (
        not conditioners and transformers_per_down_block(parts.get("unet", {})) == 1
    ):
        layout = "model.py"
    elif has_average or "global_encoder" in parts:
        layout = "modelV1"
    target = str(section(config, "model").get("target") or "")
    configured = TARGETS.get(target.partition(".")[0], layout)
    if configured == layout or (layout == "audiosr" and configured == "modelV1"):
        return configured
    raise ValueError(
        f"{path} has the names of {layout} and the configuration those of {configured} (model.target: {target}); give "
        "the configuration that it was trained with"
    )
