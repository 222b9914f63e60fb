"""Components of a flow name the argument that they refuse."""

from typing import Any

import pytest

from tests.flow.conditions import autoencoder
from zoo.flow import DiT, FrozenText, Guidance, Inpainting, NestedGuidance, Solver, UNet


@pytest.mark.parametrize(
    ("component", "arguments", "message"),
    [
        (DiT, {"image_resolution": 9}, "no multiple of the patch"),
        (UNet, {"channel_mult": (1, 2), "attention_levels": (16,)}, "indices into channel_mult"),
        (autoencoder, {"_class_name": "VQModel"}, "expected an AutoencoderKL"),
        (autoencoder, {"down_block_types": ["AttnDownEncoderBlock2D"]}, "down_block_types has AttnDownEncoderBlock2D"),
        (FrozenText, {"config": {"model_type": "bart"}}, "whose encoder is not known by itself"),
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
