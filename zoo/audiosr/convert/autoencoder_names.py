"""Names of the autoencoder's tensors in latent diffusion's code (CompVis) and in `zoo.blocks.AutoencoderKL`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from zoo.convert.tensor_names import NameRule, NameTable, State, group_by_component, select_prefix


def _to_linear(weight: Tensor) -> Tensor:
    return weight.flatten(1) if weight.dim() == 4 else weight


def _to_convolution(weight: Tensor) -> Tensor:
    return weight[:, :, None, None] if weight.dim() == 2 else weight


_BLOCK = NameTable(("nin_shortcut.{rest}", "conv_shortcut.{rest}"), ("{rest}", "{rest}"))
_ATTENTION = NameTable(
    ("norm.{rest}", "group_norm.{rest}"),
    *(
        NameRule(f"{original}.{{rest}}", f"{name}.{{rest}}", None, _to_linear, _to_convolution)
        for original, name in (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("proj_out", "to_out.0"))
    ),
)
_MIDDLE = NameTable(
    ("block_1.", "resnets.0.", _BLOCK), ("attn_1.", "attentions.0.", _ATTENTION), ("block_2.", "resnets.1.", _BLOCK)
)
_LEVEL = NameTable(
    ("block.{i}.", "resnets.{i}.", _BLOCK),
    ("downsample.{rest}", "downsamplers.0.{rest}"),
    ("upsample.{rest}", "upsamplers.0.{rest}"),
)


def _table(state: Mapping[str, Tensor], prefix: str) -> NameTable:
    """Name an autoencoder whose decoder's levels, after a prefix, the original counts from fine to coarse."""
    levels = len(group_by_component(select_prefix(state, prefix)))
    return NameTable(
        ("encoder.down.{i}.", "encoder.down_blocks.{i}.", _LEVEL),
        *((f"decoder.up.{level}.", f"decoder.up_blocks.{levels - 1 - level}.", _LEVEL) for level in range(levels)),
        ("{half}.mid.", "{half}.mid_block.", _MIDDLE),
        ("{half}.norm_out.{rest}", "{half}.conv_norm_out.{rest}"),
        ("{rest}", "{rest}"),
    )


def to_zoo_autoencoder(state: Mapping[str, Tensor]) -> State:
    """Rename the original's tensors."""
    return _table(state, "decoder.up.").read(state)[0]


def to_original_autoencoder(state: Mapping[str, Tensor]) -> State:
    """Rename ours."""
    return _table(state, "decoder.up_blocks.").write(state)
