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
from zoo.hifigan.nets.discriminators import SLOPE, ConvolutionStack, spectral_norm, weight_norm
from zoo.training.adversarial import Discriminator, Output

PEAK = 0.8
_SILENCE = 1e-9

Resolution = tuple[int, int, int]


class ResolutionDiscriminator(ConvolutionStack):
    """Scores the magnitude of one short-time Fourier transform, with a rectangular window as the original.

    Args:
        resolution: n_fft, hop and window in samples.
        channels: of all layers.
        spectral: spectral instead of weight norm.

    Source: UnivNet, section 2.2 (Jang et al., 2021).
    """

    def __init__(self, resolution: Resolution, channels: int = 32, spectral: bool = False) -> None:
        convs = [nn.Conv2d(1, channels, (3, 9), padding=(1, 4))]
        convs += [nn.Conv2d(channels, channels, (3, 9), (1, 2), padding=(1, 4)) for _ in range(3)]
        convs += [nn.Conv2d(channels, channels, (3, 3), padding=(1, 1))]
        post = nn.Conv2d(channels, 1, (3, 3), padding=(1, 1))
        super().__init__(convs, post, spectral_norm if spectral else weight_norm)
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
    """Magnitudes at several resolutions; 280,902 parameters at full width.

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

    def forward(self, x: Tensor) -> list[Output]:
        """Score waveforms (B, 1, T); one score map per resolution, six feature maps each."""
        return [discriminator(x) for discriminator in self.discriminators]


class BandDiscriminator(nn.Module):
    """Scores a complex spectrum, each of its bands by convolutions of its own.

    Args:
        window: size of the transform in samples; a quarter of it is the hop.
        bands: edges as shares of the bins.
        channels: of all layers.
        match_stride: frames as DAC takes them, without those at the ends.
        every_map: keep each band's first map too (DAC).

    Source: DAC, section 3.4 (Kumar et al., 2023); Vocos, section 3.4 (Siuzdak, 2023).
    """

    window: Tensor

    def __init__(
        self,
        window: int,
        bands: Sequence[float],
        channels: int,
        match_stride: bool,
        every_map: bool,
    ) -> None:
        super().__init__()
        bins = window // 2 + 1
        self.edges = [int(share * bins) for share in bands]
        if any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError(
                f"a transform of {window} samples has bands {self.edges}, one without bins: take a larger one"
            )
        self.n_fft, self.match_stride, self.every_map = window, match_stride, every_map

        def stack() -> nn.ModuleList:
            convs = [nn.Conv2d(2, channels, (3, 9), padding=(1, 4))]
            convs += [nn.Conv2d(channels, channels, (3, 9), (1, 2), padding=(1, 4)) for _ in range(3)]
            convs += [nn.Conv2d(channels, channels, (3, 3), padding=(1, 1))]
            return nn.ModuleList(parametrizations.weight_norm(conv) for conv in convs)

        self.band_convs = nn.ModuleList(stack() for _ in bands[1:])
        self.conv_post = parametrizations.weight_norm(nn.Conv2d(channels, 1, (3, 3), padding=(1, 1)))
        self.register_buffer("window", torch.hann_window(window), persistent=False)

    def spectrum(self, x: Tensor) -> Tensor:
        """Complex spectrum (B, 2, F, window / 2 + 1) of waveforms (B, 1, T) without offset and of one peak."""
        with torch.autocast(x.device.type, enabled=False):
            hop = self.n_fft // 4
            x = normalize_peak(promote_to_float32(x))[:, 0]
            if self.match_stride:
                padding = (self.n_fft - hop) // 2
                x = F.pad(x[:, None], (padding, padding - x.shape[-1] % -hop), mode="reflect")[:, 0]
            found = torch.stft(x, self.n_fft, hop, window=self.window, return_complex=True)
            found = found[..., 2:-2] if self.match_stride else found
            return torch.view_as_real(found).permute(0, 3, 2, 1)

    def forward(self, x: Tensor) -> Output:
        """Score waveforms (B, 1, T)."""
        spectrum, maps, ends = self.spectrum(x), [], []
        for low, high, convs in zip(self.edges, self.edges[1:], self.band_convs, strict=False):
            band = spectrum[..., low:high]
            for index, conv in enumerate(convs.children()):
                band = F.leaky_relu(conv(band), SLOPE)  # (B, C, F, bins)
                if index or self.every_map:
                    maps.append(band)
            ends.append(band)
        scores = self.conv_post(torch.cat(ends, -1))
        return scores.flatten(1), [*maps, scores]


class MultiBandDiscriminator(Discriminator):
    """Bands of complex spectra at several resolutions; 1,413,990 parameters at full width.

    Args:
        fft_sizes: size of each transform in samples.
        bands: edges as shares of the bins.
        channels: of all layers.
        match_stride: frames as DAC takes them, without those at the ends.
        every_map: keep each band's first map too (DAC).

    Source: DAC, section 3.4 (Kumar et al., 2023).
    """

    def __init__(
        self,
        fft_sizes: Sequence[int] = (2048, 1024, 512),
        bands: Sequence[float] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0),
        channels: int = 32,
        match_stride: bool = False,
        every_map: bool = False,
    ) -> None:
        super().__init__()
        check_at_least(1, channels=channels)
        self.discriminators = nn.ModuleList(
            BandDiscriminator(size, bands, channels, match_stride, every_map) for size in fft_sizes
        )

    def forward(self, x: Tensor) -> list[Output]:
        """Score waveforms (B, 1, T); one score map per transform, four feature maps per band and one more."""
        return [discriminator(x) for discriminator in self.discriminators]


class OctaveDiscriminator(nn.Module):
    """Scores a constant-Q transform at twice the rate, after a convolution for each octave.

    Args:
        sample_rate: of the waveforms in Hz.
        hop_length: in samples of the doubled rate.
        dilations: over frames, of the layers that halve the bins.
        normalize: take away offset and peak first.

    Source: Gu et al., "Multi-Scale Sub-Band Constant-Q Transform Discriminator" (2024).
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
        convs = [nn.Conv2d(2, filters, (3, 9), padding=(1, 4))]
        convs += [nn.Conv2d(filters, filters, (3, 9), (1, 2), (each, 4), (each, 1)) for each in dilations]
        convs += [nn.Conv2d(filters, filters, (3, 3), padding=(1, 1))]
        self.convs = nn.ModuleList([convs[0], *map(parametrizations.weight_norm, convs[1:])])
        self.conv_post = parametrizations.weight_norm(nn.Conv2d(filters, 1, (3, 3), padding=(1, 1)))

    def forward(self, x: Tensor) -> Output:
        """Score waveforms (B, 1, T)."""
        with torch.autocast(x.device.type, enabled=False):
            x = promote_to_float32(x)
            found = self.transform(self.resample(normalize_peak(x) if self.normalize else x)[:, 0])  # (B, bins, F, 2)
        octaves = found.permute(0, 3, 2, 1).split(self.bins_per_octave, -1)  # each (B, 2, F, bins_per_octave)
        hidden = torch.cat([conv(octave) for conv, octave in zip(self.conv_pres, octaves, strict=True)], -1)
        maps = []
        for conv in self.convs:
            hidden = F.leaky_relu(conv(hidden), SLOPE)
            maps.append(hidden)
        return self.conv_post(hidden).flatten(1), maps


class MultiOctaveDiscriminator(Discriminator):
    """Constant-Q transforms of several resolutions, octave by octave; 4,454,304 parameters at full width.

    Args:
        sample_rate: of the waveforms in Hz.
        hop_lengths: of each transform, in samples of twice the rate.
        octaves: of each, from 32.7 Hz on.
        bins_per_octave: of each.
        filters: channels of all layers.
        dilations: over frames, of the layers that halve the bins.
        normalize: take away offset and peak first.

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
        self.discriminators = nn.ModuleList(
            OctaveDiscriminator(sample_rate, hop, count, bins, filters, dilations, normalize)
            for hop, count, bins in zip(hop_lengths, octaves, bins_per_octave, strict=True)
        )

    def forward(self, x: Tensor) -> list[Output]:
        """Score waveforms (B, 1, T); one score map per transform, the feature maps without the score."""
        return [discriminator(x) for discriminator in self.discriminators]


def normalize_peak(x: Tensor) -> Tensor:
    """Remove the offset of waveforms (B, 1, T) and scale each to a peak of `PEAK`."""
    x = x - x.mean(-1, keepdim=True)
    return PEAK * x / (x.abs().amax(-1, keepdim=True) + _SILENCE)
