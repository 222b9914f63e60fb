"""Trained nets that later stages use without training them: autoencoder and vocoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from zoo.runs.frozen_net import FrozenNet


class FrozenAutoencoder(FrozenNet):
    """A trained autoencoder; one instance encodes targets and conditions."""

    net_class = net_base = "zoo.blocks.AutoencoderKL"
    inference = "zoo.audiosr.Reconstructor"

    @property
    def factor(self) -> int:
        """Downsampling factor of the latent image along each axis."""
        return self.net.factor

    @property
    def latent_channels(self) -> int:
        """Channels of the latent image."""
        return self.net.latent_channels

    def encode(self, mel: Tensor) -> Tensor:
        """Moments (B, 2 * latent_channels, F / factor, n_mels / factor) of log-mels (B, 1, F, n_mels)."""
        return self.net.encode(mel)

    def decode(self, z: Tensor) -> Tensor:
        """Log-mels (B, 1, F, n_mels) of latents (B, latent_channels, F / factor, n_mels / factor), in its scale."""
        return self.net.decode(z)


class FrozenVocoder(FrozenNet):
    """A trained generator of any kind, its weight norm folded; HiFi-GAN's where it is built with random weights."""

    net_class = "zoo.hifigan.Generator"
    net_base = "zoo.hifigan.WaveformGenerator"
    inference = "zoo.hifigan.Vocoder"

    @classmethod
    def describe_net(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of HiFi-GAN's generator; recipes' parser makes "1" a number in free dicts."""
        resblock = {"resblock": str(config["resblock"])} if "resblock" in config else {}
        return super().describe_net({**config, **resblock})

    @property
    def hop_length(self) -> int:
        """Samples per frame."""
        return self.net.hop_length

    @property
    def n_mels(self) -> int:
        """Mel bands of its input."""
        return self.net.in_channels

    def forward(self, mel: Tensor) -> Tensor:
        """Waveforms (B, 1, F * hop_length), -1 to 1, of log-mels (B, 1, F, n_mels), natural logarithm."""
        return self.net(mel[:, 0].transpose(1, 2))
