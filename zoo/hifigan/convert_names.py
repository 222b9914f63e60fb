"""Name tables between our tensors and those of HiFi-GAN's original, SpeechBrain, Coqui and SSL-vocoder files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

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
