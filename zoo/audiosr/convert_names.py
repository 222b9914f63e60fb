"""Names, axis order and schedule tables of AudioSR's and ProjectLily's files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

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
