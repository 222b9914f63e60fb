"""State dicts of SiT (layout of DiT) as weights of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from zoo.convert.engine import OriginalFile
from zoo.convert.network_description import component, count_blocks, setting, size_of_axis
from zoo.convert.tensor_names import State
from zoo.flow.nets.dit import SIZES, sine_table

MARK = "x_embedder.proj.weight"  # a tensor that every file of the layout has
POSITIONS = "pos_embed"
TABLE = "y_embedder.embedding_table.weight"
NAMES = {
    "final_layer.adaLN_modulation.1": "norm.linear",
    "x_embedder.proj": "patches",
    "t_embedder.mlp": "time_embedding.mlp",
    "adaLN_modulation.1": "modulation.linear",
    "attn.qkv": "qkv",
    "attn.proj": "out",
    "mlp.fc1": "feed_forward.0",
    "mlp.fc2": "feed_forward.2",
    "final_layer.linear": "tail",
}
NOTE = (
    "read as SiT, whose net predicts velocities from t = 0 (noise) to 1: a file of DiT has the same names and predicts "
    "noise at whole steps, which this net does not"
)


def renamed(state: Mapping[str, Tensor], path: Path) -> State:
    """Tensors of a SiT state dict under our names.

    The null class moves from the last row of the table to the first. A tail of twice the channels (learned variances)
    loses the second half, which SiT computes and discards. The position table is computed here: it is compared.

    Raises:
        ValueError: when the positions are others, or the patches are not square.
    """
    renamed_state: State = {}
    for name, tensor in state.items():
        if name == POSITIONS:
            continue
        if name == TABLE:
            name, tensor = "class_embedding.weight", tensor.roll(1, 0)
        for original_name, zoo_name in NAMES.items():
            name = name.replace(original_name, zoo_name)
        renamed_state[name] = tensor
    patches = renamed_state["patches.weight"]
    (channels, rows, columns), area = patches.shape[1:], patches.shape[2] * patches.shape[3]
    if rows != columns:
        raise ValueError(f"{path}: patches of {rows} x {columns}, expected square ones")
    if len(renamed_state["tail.weight"]) == 2 * area * channels:
        for name in ("tail.weight", "tail.bias"):
            renamed_state[name] = renamed_state[name].unflatten(0, (area, -1))[:, :channels].flatten(0, 1)
    _check_positions(state, path)
    return renamed_state


def resolution(state: Mapping[str, Tensor]) -> int:
    """Return the resolution that the file was trained on, from its position table."""
    return math.isqrt(state[POSITIONS].shape[-2]) * state[MARK].shape[-1]


def _check_positions(state: Mapping[str, Tensor], path: Path) -> None:
    if POSITIONS not in state:
        raise ValueError(f"{path}: no {POSITIONS}, which tells the resolution")
    table = state[POSITIONS].reshape(-1, state[POSITIONS].shape[-1]).float()
    side = math.isqrt(len(table))
    expected = sine_table(side, side, table.shape[1])
    if expected.shape != table.shape or not torch.allclose(expected, table, atol=1e-4):
        raise ValueError(f"{path}: {POSITIONS} is not the table of sines of {side} x {side} patches")


def _heads(file: OriginalFile) -> int:
    """SiT's heads are 64 wide, those of XL 72; a file does not say so."""
    dim = len(file.state["patches.weight"])
    return dim // (72 if dim == SIZES["XL"][1] else 64) or 1


NET = component(
    "zoo.flow.DiT",
    image_resolution=setting("image_resolution", None),
    in_channels=size_of_axis("patches.weight", 1),
    patch=size_of_axis("patches.weight", 2),
    depth=count_blocks("blocks."),
    dim=size_of_axis("patches.weight"),
    heads=_heads,
    hidden_mult=lambda file: (
        file.state["blocks.0.feed_forward.0.weight"].shape[0] // file.state["patches.weight"].shape[0]
    ),
    num_classes=lambda file: (
        len(file.state["class_embedding.weight"]) - 1 if "class_embedding.weight" in file.state else 0
    ),
    positions="sincos",
    time_scale=1.0,
)
