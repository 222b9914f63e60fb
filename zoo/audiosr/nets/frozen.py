"""Trained nets that later stages use and do not train: the autoencoder, the vocoder, a teacher."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from zoo import __version__
from zoo.audiosr.nets.denoiser import Denoiser
from zoo.audiosr.nets.global_encoder import GlobalEncoder
from zoo.audiosr.nets.unet import UNet
from zoo.audiosr.nets.vae import Autoencoder
from zoo.common.build import build
from zoo.common.registry import find, public_name
from zoo.hifigan.nets.generator import Generator
from zoo.hifigan.nets.interface import WaveformGenerator
from zoo.runs.export import CONFIG_NAME, WEIGHTS_NAME, is_export, parts_state
from zoo.runs.folder import newest_run
from zoo.runs.frozen import FrozenModule
from zoo.runs.load import read_parts

_PART = "part"  # the net's name in a copy


class _FrozenNet(FrozenModule):
    """A net taken from a run, a checkpoint or an export, or built with random weights; without weight norm.

    Args:
        source: a run of the net's stage, a folder of such runs (the newest is taken), a checkpoint or an export; null
            for random weights.
        revision: not used; our runs have none.
        config: arguments of the net where there is no source.
        seed: of random weights.

    Raises:
        FileNotFoundError: when there is nothing at the source.
        ValueError: when the source holds no such net, or neither source nor config is given.
    """

    net_class: ClassVar[type[nn.Module]]  # of random weights
    net_base: ClassVar[type[nn.Module]]  # of those that a source may hold
    inference = ""  # of the stage that trains such nets

    def __init__(
        self,
        source: str | None = None,
        revision: str | None = None,
        config: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        class_path = public_name(self.net_class)
        super().__init__(source, revision)
        if source is None and config is None:
            raise ValueError(
                f"{type(self).__name__}: give source (a run, a checkpoint, an export) or config (arguments of "
                f"{class_path}, for random weights)"
            )
        state: dict[str, Tensor] | None = None
        fused = False
        self.recorded: dict[str, Any] = {}  # frozen parts that it was trained with, see `zoo.runs.frozen.records`
        if config is not None and "resblock" in config:
            config = {**config, "resblock": str(config["resblock"])}  # recipes' parser makes "1" a number in free dicts
        self.spec: dict[str, Any] = {"class_path": class_path, "init_args": self.arguments(config or {})}
        if source is not None:
            self.spec, state, fused, self.recorded = _read(Path(source), self.net_base, class_path)
        with torch.random.fork_rng(devices=[]):  # its random weights depend on the seed alone
            torch.manual_seed(seed)
            net: nn.Module = build(self.spec)
        fuse = getattr(net, "fuse_", None)
        if fuse is not None and fused:
            fuse()
        if state is not None:
            net.load_state_dict(state)
        if fuse is not None and not fused:
            fuse()
        self.is_fused = fuse is not None
        self.net: Any = net
        self.requires_grad_(False)
        self.eval()

    @staticmethod
    def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
        """The net's arguments, of plain values, that a `config` means."""
        return dict(config)

    @property
    def is_local(self) -> bool:
        """Always: no hub has these weights, so runs and exports keep a copy."""
        return True

    def frozen_state(self) -> dict[str, Tensor]:
        """All tensors."""
        return dict(self.state_dict())

    def save_source(self, folder: Path) -> None:
        """Write weights and description in the layout of an export."""
        weights = {f"{_PART}.{key}": value.contiguous() for key, value in self.net.state_dict().items()}
        save_file(weights, folder / WEIGHTS_NAME)
        config: dict[str, Any] = {
            "zoo": __version__,
            "inference": self.inference,
            "parts": {_PART: self.spec},
            "fused": [_PART] if self.is_fused else [],
        }
        if self.recorded:
            config["frozen"] = self.recorded
        (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2), encoding="utf-8")


class FrozenAutoencoder(_FrozenNet):
    """A trained autoencoder; one instance encodes targets and conditions."""

    net_class = net_base = Autoencoder
    inference = "zoo.audiosr.Reconstructor"

    @property
    def factor(self) -> int:
        """How much smaller the latent image is along each axis."""
        return self.net.factor

    @property
    def latent_channels(self) -> int:
        """Channels of the latent image."""
        return self.net.latent_channels

    def encode(self, mel: Tensor) -> Tensor:
        """Moments (B, 2 * latent_channels, F / factor, n_mels / factor) of log-mels (B, 1, F, n_mels)."""
        return self.net.encode(mel)

    def decode(self, z: Tensor) -> Tensor:
        """Log-mels (B, 1, F, n_mels) of latents (B, latent_channels, F / factor, n_mels / factor), in its own scale."""
        return self.net.decode(z)


class FrozenVocoder(_FrozenNet):
    """A trained generator of any kind, its weight norm folded; HiFi-GAN's where it is built with random weights."""

    net_class = Generator
    net_base = WaveformGenerator
    inference = "zoo.hifigan.Vocoder"

    @property
    def hop_length(self) -> int:
        """Samples per frame."""
        return self.net.hop_length

    @property
    def n_mels(self) -> int:
        """Bands that it takes."""
        return self.net.in_channels

    def forward(self, mel: Tensor) -> Tensor:
        """Waveforms (B, 1, F * hop_length), -1 to 1, of log-mels (B, 1, F, n_mels), natural logarithm."""
        return self.net(mel[:, 0].transpose(1, 2))


class FrozenDenoiser(_FrozenNet):
    """A trained denoiser, averaged weights where its run has them: the teacher of a distillation.

    `config` has the arguments of the UNet as `unet` and, if there is one, those of the encoder as `global_encoder`.
    """

    net_class = net_base = Denoiser
    inference = "zoo.audiosr.Restorer"

    @staticmethod
    def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
        """Descriptions of the parts."""
        classes = {"unet": UNet, "global_encoder": GlobalEncoder}
        return {
            name: {"class_path": public_name(classes[name]), "init_args": dict(given)} for name, given in config.items()
        }

    @property
    def trained_on(self) -> str | None:
        """sha256 of the autoencoder whose latents it was trained on; None where its source does not tell."""
        return self.recorded.get("autoencoder", {}).get("sha256")


def _read(
    source: Path, base: type[nn.Module], class_path: str
) -> tuple[dict[str, Any], dict[str, Tensor], bool, dict[str, Any]]:
    """Description and tensors of the only net of a base class in a run, checkpoint or export.

    Returns:
        Also whether norms are folded, and the records of the frozen parts beside the net.
    """
    path = source
    if source.is_dir() and not is_export(source) and not any(source.glob("*.ckpt")):
        path = newest_run(source) or source
    if not path.exists():
        raise FileNotFoundError(f"no run, checkpoint or export at {source}: train that stage first, or name its source")
    specs, state, fused = read_parts(path)
    parts = specs["parts"]
    built = {name: spec for name, spec in parts.items() if isinstance(spec, Mapping) and "class_path" in spec}
    names = [name for name, spec in built.items() if issubclass(find(spec["class_path"]), base)]
    if len(names) != 1:
        raise ValueError(
            f"{path}: expected one part of class {class_path} or its like, found {len(names)} among {list(parts)}"
        )
    return dict(parts[names[0]]), parts_state(state, names[0]), names[0] in fused, dict(specs.get("frozen", {}))
