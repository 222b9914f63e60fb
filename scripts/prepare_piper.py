"""Take the vocoder out of a Piper voice: python scripts/prepare_piper.py VOICE.onnx --output FOLDER.

A Piper voice (github.com/rhasspy/piper) is a VITS model whose decoder is a HiFi-GAN generator; one of quality "medium"
has the sizes of HiFi-GAN V3. FOLDER gets `g_00000000` and `config.json` as the original HiFi-GAN writes them, for
`zoo convert` and `--init_from`. The generator takes VITS's 192 latent channels, no mel. Needs `pip install onnx`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper

SIZES = {
    "resblock": "2",
    "upsample_rates": [8, 8, 4],
    "upsample_kernel_sizes": [16, 16, 8],
    "resblock_kernel_sizes": [3, 5, 7],
    "resblock_dilation_sizes": [[1, 2], [2, 6], [3, 12]],
    "sampling_rate": 22050,
}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("voice", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    tensors = {each.name: each for each in onnx.load(arguments.voice).graph.initializer if each.name.startswith("dec.")}
    state = {name[4:]: torch.tensor(numpy_helper.to_array(each)) for name, each in tensors.items()}
    state.setdefault("conv_post.bias", torch.zeros(1))  # VITS has none
    channels, latents, _ = state["conv_pre.weight"].shape
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.save({"generator": state}, arguments.output / "g_00000000")
    config = SIZES | {"num_mels": latents, "upsample_initial_channel": channels}
    (arguments.output / "config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    main()
