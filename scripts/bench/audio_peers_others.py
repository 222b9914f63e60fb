"""What ours is measured beside: generators of other packages and denoisers on spectra.

Nothing else is imported before it is built, so that a start can be measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class VocosPackage(nn.Module):
    """Backbone and head of the package vocos.

    Args:
        sizes: arguments of our `Vocos`.
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        models, heads = (import_module(f"vocos.{name}") for name in ("models", "heads"))  # nothing here depends on it
        names = ("in_channels", "dim", "intermediate_dim", "layers")
        self.backbone = models.VocosBackbone(*(sizes[key] for key in names))
        self.head = heads.ISTFTHead(*(sizes[key] for key in ("dim", "n_fft", "hop_length", "padding")))

    def forward(self, frames: Tensor) -> Tensor:
        """Audio (B, T) of frames (B, in_channels, F)."""
        return self.head(self.backbone(frames))


class TransformersPackage(nn.Module):
    """HiFi-GAN of transformers (SpeechT5's).

    Args:
        sizes: arguments of our `Generator`.
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

        names = ("upsample_rates", "upsample_kernel_sizes", "resblock_kernel_sizes", "resblock_dilation_sizes")
        config = SpeechT5HifiGanConfig(
            model_in_dim=sizes["in_channels"], upsample_initial_channel=sizes["initial_channels"],
            normalize_before=False, **{name: sizes[name] for name in names},
        )  # fmt: skip
        self.net = SpeechT5HifiGan(config)

    def forward(self, frames: Tensor) -> Tensor:
        """Audio (B, T) of frames (B, in_channels, F)."""
        return self.net(frames.transpose(1, 2))


class OurRestorer(nn.Module):
    """Encoder and vocoder of Miipher-2, of their descriptions.

    Args:
        encoder: class_path and init_args.
        generator: likewise.
    """

    def __init__(self, encoder: Mapping[str, Any], generator: Mapping[str, Any]) -> None:
        super().__init__()
        from zoo.common.build import build

        self.encoder, self.generator = build(encoder), build(generator).remove_weight_norm_()

    def forward(self, waveform: Tensor) -> Tensor:
        """Audio (B, 1, T') at the vocoder's rate of waveforms (B, T) at 16 kHz."""
        return self.generator(self.encoder(waveform).transpose(1, 2))


class _Spectral(nn.Module):
    """Base of denoisers that scale a spectrum (512 samples, a quarter apart)."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))

    def gains(self, magnitude: Tensor) -> Tensor:
        """Factors, 0 to 1, of magnitudes (B, 257, F)."""
        raise NotImplementedError

    def forward(self, waveform: Tensor) -> Tensor:
        """Audio (B, T) of waveforms (B, T), at the same rate."""
        spectrum = torch.stft(waveform, 512, 128, window=self.window, return_complex=True)
        spectrum = spectrum * self.gains(spectrum.abs())
        return torch.istft(spectrum, 512, 128, window=self.window, length=waveform.shape[1])


class SpectralGate(_Spectral):
    """Wiener gains of a noise floor that is each band's lowest tenth, at least -20 dB; nothing is learned."""

    def gains(self, magnitude: Tensor) -> Tensor:
        """See the base."""
        power = F.avg_pool1d(magnitude.square(), 5, 1, 2, count_include_pad=False)
        floor = 3 * power.quantile(0.1, dim=2, keepdim=True)
        return (1 - floor / power.clamp(min=1e-12)).clamp(0.1, 1)


class MaskNet(_Spectral):
    """A convolutional U-Net on the spectrum that predicts a mask, the form of many denoisers; random weights.

    Args:
        channels: of the first level; each of four further ones has twice as many at half the size.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(5)]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip([1, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[:-1])
        self.join = nn.ModuleList(_block(2 * width, width) for width in widths[:-1])
        self.out = nn.Conv2d(channels, 1, 1)

    def gains(self, magnitude: Tensor) -> Tensor:
        """See the base."""
        bands, frames = magnitude.shape[1:]
        x, kept = F.pad(magnitude[:, None].log1p(), (0, -frames % 16, 0, -bands % 16)), []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for level in (3, 2, 1, 0):
            x = self.join[level](torch.cat([self.up[level](x), kept[level]], 1))
        return self.out(x)[:, 0, :bands, :frames].sigmoid()


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
    )
