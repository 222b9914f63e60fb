"""Autoencoders of images in diffusers' folder layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from zoo.blocks.autoencoder import AutoencoderKL
from zoo.common.tensors import seeded_rng
from zoo.flow.nets.latent_space import ImageAutoencoder
from zoo.runs.frozen import FrozenModule

CONFIG_NAME, WEIGHTS_NAME = "config.json", "diffusion_pytorch_model.safetensors"
USUAL_SCALE = 0.18215  # of a diffusers config that gives none
BLOCKS = {"down_block_types": "DownEncoderBlock2D", "up_block_types": "UpDecoderBlock2D"}
OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
# Keys of config.json that decide about the net.
NET_KEYS = (
    "in_channels out_channels block_out_channels layers_per_block latent_channels norm_num_groups use_quant_conv "
    "use_post_quant_conv mid_block_add_attention"
).split()


class FrozenAutoencoder(FrozenModule, ImageAutoencoder):
    """A trained autoencoder, which is not trained here.

    Args:
        source: a folder in diffusers' layout (`config.json` and safetensors), one that holds such a folder as `vae/`,
            or a hub id of either; null for random weights.
        revision: commit of the hub repository.
        config: of `config.json`, where there is no source.
        seed: of random weights.

    Raises:
        FileNotFoundError: when there is nothing at the source.
        ValueError: when it is of another kind, or its weights are not those of its config.
    """

    net: AutoencoderKL

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(source, revision)
        if (source is None) == (config is None):
            raise ValueError(
                "FrozenAutoencoder: give source (a folder in diffusers' layout) or config (of random weights)"
            )
        state: dict[str, Tensor] | None = None
        if source is not None:
            config, state = read_autoencoder(source, revision)
        self.config = dict(config or {})
        with seeded_rng(seed):
            self.net = AutoencoderKL(**net_arguments(self.config, str(source)))
        self.image_channels, self.latent_channels = self.net.image_channels, self.net.latent_channels
        self.factor = self.net.factor
        if state is not None:
            _load(self.net, state, str(source))
        self.requires_grad_(False)
        self.eval()

    def save_source(self, folder: Path) -> None:
        """Write a folder in diffusers' layout."""
        write_autoencoder(self.net, self.config, folder)

    def encode(self, images: Tensor) -> Tensor:
        """Encode images, see `ImageAutoencoder.encode`."""
        return self.net.encode(images)

    def decode(self, z: Tensor) -> Tensor:
        """Decode latents, see `ImageAutoencoder.decode`."""
        return self.net.decode(z)


def net_arguments(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arguments of `AutoencoderKL` of a config in diffusers' words; refused where it describes another net."""
    kind = config.get("_class_name", "AutoencoderKL")
    if kind != "AutoencoderKL" or config.get("act_fn", "silu") != "silu":
        raise ValueError(f"{where}: expected an AutoencoderKL with act_fn silu, found {kind}, {config.get('act_fn')}")
    for key, block in BLOCKS.items():
        if other := set(config.get(key, [block])) - {block}:
            raise ValueError(f"{where}: {key} has {', '.join(sorted(other))}, known is {block}")
    return {key: config[key] for key in NET_KEYS if key in config}


def read_autoencoder(source: str, revision: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read config and weights of a local folder in diffusers' layout, or of one of the hub."""
    folder = Path(source)
    if not folder.is_dir():
        folder = _from_hub(source, revision)
    home = next((each for each in (folder, folder / "vae") if (each / CONFIG_NAME).is_file()), None)
    if home is None:
        raise FileNotFoundError(f"autoencoder: {folder} holds no {CONFIG_NAME}, neither itself nor in vae/")
    config = {"scaling_factor": USUAL_SCALE, **json.loads((home / CONFIG_NAME).read_text(encoding="utf-8"))}
    if not (home / WEIGHTS_NAME).is_file():
        raise FileNotFoundError(f"{home}: no weights {WEIGHTS_NAME} beside {CONFIG_NAME}")
    return config, {_current(key): value for key, value in load_file(home / WEIGHTS_NAME).items()}


def write_autoencoder(net: AutoencoderKL, config: Mapping[str, Any], folder: Path) -> None:
    """Write config and weights as diffusers reads them."""
    save_file({key: value.contiguous() for key, value in net.state_dict().items()}, folder / WEIGHTS_NAME)
    levels = len(config.get("block_out_channels", (128, 256, 512, 512)))
    blocks = {key: [block] * levels for key, block in BLOCKS.items()}
    diffusers_config = {"_class_name": "AutoencoderKL", "act_fn": "silu", "scaling_factor": None, **blocks, **config}
    (folder / CONFIG_NAME).write_text(json.dumps(diffusers_config, indent=2), encoding="utf-8")


def _from_hub(source: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    if source.startswith((".", "/", "runs/")):
        raise FileNotFoundError(f"autoencoder: no folder {source}")
    patterns = [f"{place}{name}" for place in ("", "vae/") for name in (CONFIG_NAME, WEIGHTS_NAME)]
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"autoencoder {source}: neither a local folder nor to be had from the hub ({reason}); without network, "
            "copy its folder to this machine and name that"
        ) from error


def _current(name: str) -> str:
    """Today's name of a tensor: files of before 2023 call the parts of attention otherwise."""
    for old, new in OLD_ATTENTION.items():
        name = name.replace(f".attentions.0.{old}.", f".attentions.0.{new}.")
    return name


def _load(net: AutoencoderKL, state: Mapping[str, Tensor], where: str) -> None:
    expected = net.state_dict()
    shaped = dict(state)
    for key, value in state.items():  # old files have convolutions of size 1 for linear layers
        if ".attentions." in key and key in expected and value.numel() == expected[key].numel():
            shaped[key] = value.reshape(expected[key].shape)
    missing, others = sorted(expected.keys() - shaped.keys()), sorted(shaped.keys() - expected.keys())
    differing = [key for key in expected.keys() & shaped.keys() if expected[key].shape != shaped[key].shape]
    for what, names in (("lacks", missing), ("has unknown", others), ("has other shapes for", differing)):
        if names:
            raise ValueError(f"{where}: the file {what} {len(names)} of the config's tensors, among them {names[0]}")
    net.load_state_dict(shaped)
