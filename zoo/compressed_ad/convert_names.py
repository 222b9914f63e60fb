"""Name tables between `InContextPolicy` and the three models of the original."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeVar

from torch import Tensor

State = dict[str, Tensor]
Kind = Literal["AD", "CAD", "v1"]
Value = TypeVar("Value")

# Prefixes (theirs, ours), in the order in which the original registers its parameters, which its optimizer counts.
COMMON = [
    ("embed_context.", "embedding.context."),
    ("embed_query_state.", "embedding.query_state."),
]
HEAD = ("pred_action.", "head.")
BLOCKS = "transformer.blocks."
PREFIXES: dict[Kind, list[tuple[str, str]]] = {
    "AD": [("transformer.", "transformer."), *COMMON, HEAD],
    "CAD": [
        ("latent_type_embedding", "latent_type"),
        ("ad_transformer.", "transformer."),
        *COMMON,
        HEAD,
        ("compression_transformer.", "compressor."),
        ("reconstruction_decoder.", "decoder."),
    ],
    "v1": [
        ("pos_embedding", "transformer.pos_embedding"),
        ("encoder.", "compressor."),
        *COMMON,
        ("embed_ln.", "embedding.norm."),
        ("input_ln.", "transformer.ln_in."),
        ("transformer_decoder.layers.", BLOCKS),
        HEAD,
    ],
}
# The earlier model's blocks are torch's encoder layers; again in their order.
LAYER = [
    ("self_attn.in_proj_weight", "attn.qkv_proj.weight"),
    ("self_attn.in_proj_bias", "attn.qkv_proj.bias"),
    ("self_attn.out_proj.", "attn.out_proj."),
    ("linear1.", "mlp.fc1."),
    ("linear2.", "mlp.fc2."),
    ("norm1.", "ln1."),
    ("norm2.", "ln2."),
]
WRAPPERS = re.compile(r"^(module\.)+")  # of a model that was saved as data parallelism wraps it


def unwrapped(state: Mapping[str, Tensor]) -> State:
    """Strip the prefixes that data parallelism and compilation put before names."""
    return {WRAPPERS.sub("", str(key).replace("_orig_mod.", "")): value for key, value in state.items()}


def kind_of(state: Mapping[str, object]) -> Kind | None:
    """Which of the original's models has these tensors; None for none of them.

    A pre-trained compressor is told as the model that it belongs to.
    """
    if "embed_context.weight" not in state:
        return None
    marks: dict[Kind, str] = {
        "v1": "encoder.query_tokens",
        "CAD": "compression_transformer.compress_queries",
        "AD": "transformer.pos_embedding",
    }
    return next((kind for kind, mark in marks.items() if mark in state), None)


def to_ours(state: Mapping[str, Tensor], kind: Kind) -> tuple[State, list[str]]:
    """Rename an original's tensors, in their order.

    Returns:
        Tensors under `InContextPolicy`'s names, and the names that belong to none.
    """
    renamed, strangers = {}, []
    for key, value in state.items():
        name = _renamed(key, PREFIXES[kind])
        if name is not None and kind == "v1" and name.startswith(BLOCKS):
            number, _, leaf = name.removeprefix(BLOCKS).partition(".")
            inner = _renamed(leaf, LAYER)
            name = None if inner is None else f"{BLOCKS}{number}.{inner}"
        if name is None:
            strangers.append(key)
        else:
            renamed[name] = value
    return renamed, strangers


def to_theirs(state: Mapping[str, Value], kind: Kind) -> dict[str, Value]:
    """Rename an `InContextPolicy`'s tensors, in the order of the original's parameters.

    Args:
        state: of a policy that the original can hold; or other values by the same names.
        kind: which of its models.
    """
    result: dict[str, Value] = {}
    for theirs, ours in PREFIXES[kind]:
        found = [key for key in state if key.startswith(ours)]
        if kind == "v1" and ours == BLOCKS:
            for number in dict.fromkeys(key.removeprefix(BLOCKS).partition(".")[0] for key in found):
                for outer, inner in LAYER:
                    start = f"{ours}{number}.{inner}"
                    result |= {
                        f"{theirs}{number}.{outer}{key.removeprefix(start)}": state[key]
                        for key in found
                        if key.startswith(start)
                    }
        else:
            result |= {theirs + key.removeprefix(ours): state[key] for key in found}
    return result


def _renamed(key: str, prefixes: list[tuple[str, str]]) -> str | None:
    return next((ours + key.removeprefix(theirs) for theirs, ours in prefixes if key.startswith(theirs)), None)
