"""Components of a flow name the argument that they refuse."""

from typing import Any

import pytest

from tests.flow.conditions import autoencoder
from zoo.flow import DiT, FrozenText, Guidance, Inpainting, NestedGuidance, Solver, UNet

LEVELS = {"channel_mult": (1, 2), "attention_levels": (1,)}


@pytest.mark.parametrize(
    ("component", "arguments", "message"),
    [
        (DiT, {"image_resolution": 9}, "image_resolution 9 is no multiple of the patch, 2"),
        (DiT, {"dim": 36, "heads": 2}, "dim is a multiple of four times the heads, which dim 36 and heads 2 are not"),
        (UNet, {"image_resolution": 9, **LEVELS}, "image_resolution 9 is no multiple of 2"),
        (UNet, {**LEVELS, "attention_levels": (16,)}, "indices into channel_mult, 0 to 1, not resolutions"),
        (UNet, {"channel_mult": ()}, "at least one level"),
        (UNet, {"channels": 16, "norm_groups": 5}, "16 channels cannot be normed in 5 groups"),
        (autoencoder, {"_class_name": "VQModel"}, "expected an AutoencoderKL"),
        (autoencoder, {"down_block_types": ["AttnDownEncoderBlock2D"]}, "down_block_types has AttnDownEncoderBlock2D"),
        (autoencoder, {"block_out_channels": [6], "norm_num_groups": 4}, "multiples of norm_num_groups"),
        (FrozenText, {"config": {"model_type": "bart"}}, "whose encoder is not known by itself"),
        (FrozenText, {}, r"source .* or config"),
        (FrozenText, {"source": "./nowhere/at/all"}, "neither a local folder"),
        (Solver, {"times": [0, 0.5, 0.5, 1]}, "ascend strictly from 0 to 1"),
        (Guidance, {"interval": (0.5, 0.5)}, "interval"),
        (NestedGuidance, {"scales": {"audio": 1.0}}, "scales are by text, image, label, found"),
        (Inpainting, {"least": 0.8, "most": 0.5}, "least <= most"),
    ],
)
def test_arguments_are_refused(component: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        component(**arguments)
