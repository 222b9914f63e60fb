"""Autoencoders of images in diffusers' folder layout, and the space of their latents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from zoo.blocks.autoencoder import AutoencoderKL
from zoo.common.checks import check_at_least
from zoo.common.tensors import seeded_rng
from zoo.runs.components import component_state, find_run_path, is_export, read_single_net
from zoo.runs.frozen import FrozenModule

CONFIG_NAME, WEIGHTS_NAME = "config.json", "diffusion_pytorch_model.safetensors"
INDEX_NAME = f"{WEIGHTS_NAME}.index.json"
USUAL_SCALE = 0.18215  # of a diffusers config that gives none
BLOCKS = {"down_block_types": "DownEncoderBlock2D", "up_block_types": "UpDecoderBlock2D"}
OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
# Keys of config.json that decide about the net.
NET_KEYS = (
    "in_channels out_channels block_out_channels layers_per_block latent_channels norm_num_groups use_quant_conv "
    "use_post_quant_conv mid_block_add_attention"
).split()


class FrozenAutoencoder(FrozenModule):
    """A trained autoencoder, which is not trained here.

    Args:
        source: a folder in diffusers' layout (`config.json` and safetensors, whole or in parts), or one that holds such
            a folder as `vae/`; a hub id of either; a run of `zoo.flow.AutoencoderTask`, its checkpoint or export, or a
            folder of such runs, of which the newest is taken; null for random weights.
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
        self.config: dict[str, Any] = {**dict(config or {})}
        with seeded_rng(seed):
            self.net = AutoencoderKL(**net_arguments(self.config, str(source)))
        if state is not None:
            _load(self.net, state, str(source))
        self.requires_grad_(False)
        self.eval()

    def save_source(self, folder: Path) -> None:
        """Write a folder in diffusers' layout."""
        write_autoencoder(self.net, self.config, folder)

    def latent_shape(self, image: Sequence[int]) -> tuple[int, int, int]:
        """Shape of the latents of images of a shape (C, H, W)."""
        channels, *sides = image
        if channels != self.net.image_channels or any(side % self.net.factor for side in sides):
            raise ValueError(
                f"the autoencoder takes images of {self.net.image_channels} channels whose sides are multiples of "
                f"{self.net.factor}, not {tuple(image)}"
            )
        return (self.net.latent_channels, sides[0] // self.net.factor, sides[1] // self.net.factor)


class LatentSpace(nn.Module):
    """Latents of an autoencoder on the scale that a flow learns on: (z - shift) * scale, per channel.

    Shift and scale are those of the autoencoder's config, or, where `statistics` is set or the config has none, those
    that bring the training set's latents to zero mean and unit deviation. They are saved with the weights.

    Args:
        autoencoder: of images.
        statistics: take them from the training set, whatever the config says.
        chunk: latents decoded together; more need more memory.
    """

    shift: Tensor
    scale: Tensor
    is_fitted: Tensor

    def __init__(self, autoencoder: FrozenAutoencoder, statistics: bool = False, chunk: int = 8) -> None:
        super().__init__()
        check_at_least(1, chunk=chunk)
        self.autoencoder = autoencoder
        self.chunk = chunk
        channels = autoencoder.net.latent_channels
        fixed_scale = None if statistics else scale_of(autoencoder.config, channels)
        shift, scale = fixed_scale or (torch.zeros(channels), torch.ones(channels))
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)
        self.register_buffer("is_fitted", torch.tensor(fixed_scale is not None))

    def fit(self, mean: Tensor, deviation: Tensor) -> None:
        """Take the statistics (C,) of a training set's latents, unless there is a scale already."""
        if bool(self.is_fitted):
            return
        if not bool((deviation > 0).all()):
            raise ValueError("a channel of the training set's latents is constant: look at the images")
        self.shift.copy_(mean)
        self.scale.copy_(1 / deviation)
        self.is_fitted.fill_(True)

    def normalise(self, z: Tensor) -> Tensor:
        """Latents (B, C, h, w) of the autoencoder as the flow sees them."""
        return (z - self.shift[:, None, None]) * self.scale[:, None, None]

    def denormalise(self, z: Tensor) -> Tensor:
        """The flow's latents (B, C, h, w) on the autoencoder's own scale."""
        return z / self.scale[:, None, None] + self.shift[:, None, None]

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Moments of images (B, C, H, W) in [-1, 1], of the autoencoder's own scale, float32 whatever is trained in."""
        with torch.autocast(images.device.type, enabled=False):
            return self.autoencoder.net.encode(images.float())

    def condition(self, image: Tensor, masked: bool) -> Tensor:
        """An image condition (B, C, H, W) in the latents' size: the image encoded, a mask 1 where anything is missing.

        Args:
            masked: whether the first channel is a mask.
        """
        mask, images = image[:, : int(masked)], image[:, int(masked) :]
        latents = self.normalise(self.encode(images).chunk(2, dim=1)[0])
        return torch.cat([F.max_pool2d(mask, self.autoencoder.net.factor), latents], dim=1) if masked else latents

    @torch.no_grad()
    def decode(self, z: Tensor) -> Tensor:
        """Images (B, C, H, W), about in [-1, 1], of the flow's latents, a chunk at a time, in float32."""
        with torch.autocast(z.device.type, enabled=False):
            latents = self.denormalise(z.float())
            return torch.cat([self.autoencoder.net.decode(part) for part in latents.split(self.chunk)])


def scale_of(config: Mapping[str, Any], channels: int) -> tuple[Tensor, Tensor] | None:
    """Shift and scale (C,) that a config gives; None where it gives none."""
    if config.get("latents_mean") is not None and config.get("latents_std") is not None:
        mean, deviation = (torch.tensor(config[key], dtype=torch.float32) for key in ("latents_mean", "latents_std"))
        return mean, float(config.get("scaling_factor") or 1.0) / deviation
    if config.get("scaling_factor") is None:
        return None
    shift = float(config.get("shift_factor") or 0.0)
    return torch.full((channels,), shift), torch.full((channels,), float(config["scaling_factor"]))


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
    """Config and weights of a folder in diffusers' layout, of one of a hub, or of a run of `zoo.flow.AutoencoderTask`.

    The hub was not reached from where this was written.
    """
    folder = Path(source)
    foreign = not is_export(folder) and any((each / CONFIG_NAME).is_file() for each in (folder, folder / "vae"))
    if not foreign and (run := find_run_path(folder)) is not None:
        name, saved = read_single_net(run, AutoencoderKL, "zoo.blocks.AutoencoderKL")
        return dict(saved.description["components"][name].get("init_args") or {}), component_state(saved.state, name)
    if not folder.is_dir():
        folder = _from_hub(source, revision)
    home = next((each for each in (folder, folder / "vae") if (each / CONFIG_NAME).is_file()), None)
    if home is None:
        raise FileNotFoundError(f"autoencoder: {folder} holds no {CONFIG_NAME}, neither itself nor in vae/")
    config = {"scaling_factor": USUAL_SCALE, **json.loads((home / CONFIG_NAME).read_text(encoding="utf-8"))}
    if (home / INDEX_NAME).is_file():
        index = json.loads((home / INDEX_NAME).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    else:
        names = [WEIGHTS_NAME]
    state: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name or not (home / name).is_file():
            raise FileNotFoundError(f"{home}: no weights {name} (safetensors) beside {CONFIG_NAME}")
        state |= load_file(home / name)
    return config, {_current(key): value for key, value in state.items()}


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
    patterns = [f"{place}{name}" for place in ("", "vae/") for name in (CONFIG_NAME, INDEX_NAME, "*.safetensors")]
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=patterns, ignore_patterns=["*fp16*"]))
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
