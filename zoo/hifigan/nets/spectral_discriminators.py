"""Discriminators of spectra: magnitudes at several resolutions, bands of complex spectra, constant-Q octaves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
import torchaudio
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.common.checks import check_at_least, check_positive
from zoo.common.tensors import promote_to_float32
from zoo.hifigan.nets.constant_q import ConstantQ
from zoo.hifigan.nets.discriminators import ConvolutionStack, run_convolutions, spectral_norm
from zoo.training.adversarial import Discriminator, Output

PEAK = 0.8
_SILENCE = 1e-9


def spectral_convolutions(channels_in: int, channels: int, dilations: Sequence[int] = (1, 1, 1)) -> list[nn.Conv2d]:
    """Make the layers for a spectrum (B, channels_in, ..., ...); those with dilations halve the last axis."""
    return [
        nn.Conv2d(channels_in, channels, (3, 9), padding=(1, 4)),
        *(nn.Conv2d(channels, channels, (3, 9), (1, 2), (each, 4), (each, 1)) for each in dilations),
        nn.Conv2d(channels, channels, (3, 3), padding=(1, 1)),
    ]


class ResolutionDiscriminator(ConvolutionStack):
    """Scores the magnitude of one transform (n_fft, hop and window in samples), rectangular as the original's."""

    def __init__(self, resolution: tuple[int, int, int], channels: int = 32, spectral: bool = False) -> None:
        convs = spectral_convolutions(1, channels)
        norm = spectral_norm if spectral else parametrizations.weight_norm
        super().__init__(convs, nn.Conv2d(channels, 1, (3, 3), padding=(1, 1)), norm)
        self.resolution = resolution

    def forward(self, x: Tensor) -> Output:
        """Score waveforms (B, 1, T)."""
        n_fft, hop, window = self.resolution
        with torch.autocast(x.device.type, enabled=False):
            padding = (n_fft - hop) // 2
            padded = F.pad(promote_to_float32(x), (padding, padding), mode="reflect")[:, 0]
            rectangle = torch.ones(window, device=x.device, dtype=padded.dtype)
            spectrum = torch.stft(padded, n_fft, hop, window, rectangle, center=False, return_complex=True)
            magnitude = torch.linalg.vector_norm(torch.view_as_real(spectrum), dim=-1)  # with a gradient of 0 at 0
        return super().forward(magnitude[:, None])  # of (B, 1, n_fft / 2 + 1, F)


class MultiResolutionDiscriminator(Discriminator):
    """Magnitudes at several resolutions; 280,902 parameters at full width, six feature maps each.

    Args:
        resolutions: n_fft, hop and window of each, in samples.
        channel_mult: width relative to the paper's 32.
        spectral: spectral instead of weight norm.

    Source: UnivNet, section 2.2 (Jang et al., 2021), as BigVGAN trains with it (Lee et al., 2023).
    """

    def __init__(
        self,
        resolutions: Sequence[Sequence[int]] = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240)),
        channel_mult: float = 1.0,
        spectral: bool = False,
    ) -> None:
        super().__init__()
        check_positive(channel_mult=channel_mult)
        channels = max(1, int(32 * channel_mult))
        self.discriminators = nn.ModuleList(
            ResolutionDiscriminator((n_fft, hop, window), channels, spectral) for n_fft, hop, window in resolutions
        )


class BandDiscriminator(nn.Module):
    """Scores a complex spectrum, with separate convolutions for each of its bands; see `MultiBandDiscriminator`."""

    window: Tensor

    def __init__(self, window: int, bands: Sequence[float], channels: int) -> None:
        super().__init__()
        bins = window // 2 + 1
        self.edges = [int(share * bins) for share in bands]
        if any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError(
                f"a transform of {window} samples has bands {self.edges}, one without bins: take a larger one"
            )
        self.n_fft = window
        self.band_convs = nn.ModuleList(
            nn.ModuleList(map(parametrizations.weight_norm, spectral_convolutions(2, channels))) for _ in bands[1:]
        )
        self.conv_post = parametrizations.weight_norm(nn.Conv2d(channels, 1, (3, 3), padding=(1, 1)))
        self.register_buffer("window", torch.hann_window(window), persistent=False)

    def forward(self, x: Tensor) -> Output:
        """Score waveforms (B, 1, T)."""
        with torch.autocast(x.device.type, enabled=False):
            x = normalize_peak(promote_to_float32(x))[:, 0]
            spectrum = torch.stft(x, self.n_fft, self.n_fft // 4, window=self.window, return_complex=True)
            parts = torch.view_as_real(spectrum).permute(0, 3, 2, 1)  # (B, 2, F, window / 2 + 1)
        maps, ends = [], []
        for low, high, convs in zip(self.edges, self.edges[1:], self.band_convs, strict=False):
            band_maps = run_convolutions(convs.children(), parts[..., low:high])  # (B, C, F, bins)
            maps += band_maps[1:]
            ends.append(band_maps[-1])
        scores = self.conv_post(torch.cat(ends, -1))
        return scores.flatten(1), [*maps, scores]


class MultiBandDiscriminator(Discriminator):
    """Bands of complex spectra at several resolutions; 1,413,990 parameters at full width.

    Args:
        fft_sizes: size of each transform in samples; a quarter of it is the hop.
        bands: edges as shares of the bins.
        channels: of all layers.

    Source: DAC, section 3.4 (Kumar et al., 2023); Vocos, section 3.4 (Siuzdak, 2023).
    """

    def __init__(
        self,
        fft_sizes: Sequence[int] = (2048, 1024, 512),
        bands: Sequence[float] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
        channels: int = 32,
    ) -> None:
        super().__init__()
        check_at_least(1, channels=channels)
        self.discriminators = nn.ModuleList(BandDiscriminator(size, bands, channels) for size in fft_sizes)


class OctaveDiscriminator(nn.Module):
    """Scores a constant-Q transform at twice the rate, after a convolution for each octave.

    The arguments are those of `MultiOctaveDiscriminator` for one transform.
    """

    def __init__(
        self, sample_rate: int, hop_length: int, octaves: int, bins_per_octave: int, filters: int,
        dilations: Sequence[int], normalize: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.bins_per_octave, self.normalize = bins_per_octave, normalize
        self.resample = torchaudio.transforms.Resample(sample_rate, 2 * sample_rate)
        self.resample._non_persistent_buffers_set.add("kernel")
        self.transform = ConstantQ(2 * sample_rate, hop_length, octaves, bins_per_octave)
        self.conv_pres = nn.ModuleList(nn.Conv2d(2, 2, (3, 9), padding=(1, 4)) for _ in range(octaves))
        first, *rest = spectral_convolutions(2, filters, dilations)
        self.convs = nn.ModuleList([first, *map(parametrizations.weight_norm, rest)])
        self.conv_post = parametrizations.weight_norm(nn.Conv2d(filters, 1, (3, 3), padding=(1, 1)))

    def forward(self, x: Tensor) -> Output:
        """Score waveforms (B, 1, T)."""
        with torch.autocast(x.device.type, enabled=False):
            x = promote_to_float32(x)
            x = normalize_peak(x) if self.normalize else x
            spectrum = self.transform(self.resample(x)[:, 0])  # (B, bins, F, 2)
        octaves = spectrum.permute(0, 3, 2, 1).split(self.bins_per_octave, -1)  # each (B, 2, F, bins_per_octave)
        hidden = torch.cat([conv(octave) for conv, octave in zip(self.conv_pres, octaves, strict=True)], -1)
        maps = run_convolutions(self.convs, hidden)
        return self.conv_post(maps[-1]).flatten(1), maps


class MultiOctaveDiscriminator(Discriminator):
    """Constant-Q transforms of several resolutions, octave by octave; 4,454,304 parameters at full width.

    Args:
        sample_rate: of the waveforms in Hz.
        hop_lengths: of each transform, in samples of twice the rate.
        octaves: of each, from 32.7 Hz on.
        bins_per_octave: of each.
        filters: channels of all layers.
        dilations: over frames, of the layers that halve the bins.
        normalize: remove offset and scale the peak first.

    Source: Gu et al., "Multi-Scale Sub-Band Constant-Q Transform Discriminator" (2024), as BigVGAN v2 trains with it.
    """

    def __init__(
        self,
        sample_rate: int,
        hop_lengths: Sequence[int] = (512, 256, 256),
        octaves: Sequence[int] = (9, 9, 9),
        bins_per_octave: Sequence[int] = (24, 36, 48),
        filters: int = 128,
        dilations: Sequence[int] = (1, 2, 4),
        normalize: bool = False,
    ) -> None:
        super().__init__()
        check_at_least(1, filters=filters)
        self.sample_rate = sample_rate
        self.discriminators = nn.ModuleList(
            OctaveDiscriminator(sample_rate, hop, count, bins, filters, dilations, normalize)
            for hop, count, bins in zip(hop_lengths, octaves, bins_per_octave, strict=True)
        )


def normalize_peak(x: Tensor) -> Tensor:
    """Remove the offset of waveforms (B, 1, T) and scale each to a peak of `PEAK`."""
    x = x - x.mean(-1, keepdim=True)
    return PEAK * x / (x.abs().amax(-1, keepdim=True) + _SILENCE)
