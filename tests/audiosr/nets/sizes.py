"""Constructor arguments of the nets by size, for the self-test, benchmarks and tests; recipes spell them out.

Sizes are names of the UNet's: "tiny" stays below 2 million parameters with autoencoder and encoder together (CPU
tests), "small" has about 60 million in the UNet and as many in the autoencoder, "audiosr" is the original's size.
"""

from __future__ import annotations

from typing import Any

UNETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "in_channels": 16,
        "out_channels": 8,
        "channels": 32,
        "multipliers": (1, 2),
        "blocks": 1,
        "attention_factors": (2,),
        "head_channels": 16,
        "transformers_per_down_block": 1,
        "norm_groups": 8,
    },
    "audiosr": {},
}
"""Arguments of `zoo.audiosr.UNet`, fusion left out."""

AUTOENCODERS: dict[str, dict[str, Any]] = {
    "tiny": {
        "in_channels": 1,
        "out_channels": 1,
        "block_out_channels": (16, 32, 32),
        "layers_per_block": 1,
        "latent_channels": 8,
        "norm_num_groups": 4,
    },
    "audiosr": {
        "in_channels": 1,
        "out_channels": 1,
        "block_out_channels": (128, 256, 512, 1024),
        "latent_channels": 16,
    },
}
"""Arguments of `zoo.blocks.AutoencoderKL`."""

GLOBAL_ENCODERS: dict[str, dict[str, Any]] = {
    "tiny": {"channels": 32, "heads": 4, "layers": 1, "context_channels": 32},
    "small": {},
    "v1": {},
    "v2": {"channels": 256, "heads": 8, "layers": 4},
}
"""Arguments of `zoo.audiosr.GlobalEncoder`; v1 and v2 are ProjectLily's modelV1 and model.py."""
