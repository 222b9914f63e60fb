"""A vocoder that predicts magnitudes with Vocos' backbone and finds phases with the fast Griffin-Lim algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from zoo.audio.analysis.griffin_lim import find_phase, synthesize
from zoo.common.checks import check_at_least
from zoo.common.tensors import promote_to_float32
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.hifigan.nets.vocos import MAX_MAGNITUDE, ConvNeXtBackbone, clipped_exp

_COMPRESSION = 0.3  # exponent of magnitudes in the loss
_INITIAL_LOG_MAGNITUDE = -5.0
_MIN_MAGNITUDE = 1e-5
_MIN_VARIANCE = 1e-5


class PlainSTFT(nn.Module):
    """Settings of a transform for Griffin-Lim: a Hann window of n_fft; frame i covers samples from i * hop_length on.

    Sizes are even, in samples, the hop at most n_fft; others are a ValueError.
    """

    window: Tensor

    def __init__(self, n_fft: int, hop_length: int) -> None:
        super().__init__()
        if n_fft % 2 or hop_length % 2 or not 0 < hop_length <= n_fft:
            raise ValueError(f"expected even 0 < hop_length <= n_fft, got hop_length {hop_length}, n_fft {n_fft}")
        self.n_fft = self.win_length = n_fft
        self.hop_length = hop_length
        self.padding_samples = (n_fft - hop_length) // 2
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)


class MagnitudeVocos(WaveformGenerator):
    """Predicts the magnitudes of a finer transform from the frames of any features, and finds phases by Griffin-Lim.

    Vocos' backbone and a linear shortcut around it predict the log-magnitudes of `steps` finer frames of each, so that
    features of 25 or 50 frames a second need no net that learns phases. It is trained on magnitudes alone.

    Args:
        in_channels: of the features.
        hop_length: samples per frame of the features.
        steps: frames of the transform in each; hop_length / steps is even.
        n_fft: size of the transform in samples, even; four hops or more let Griffin-Lim find phases.
        dim: width of the backbone.
        intermediate_dim: width inside its perceptrons.
        layers: number of its blocks.
        iterations: of Griffin-Lim.

    Source: Perraudin et al., "A fast Griffin-Lim algorithm" (2013); Vocos (Siuzdak, 2023); compressed magnitudes as a
    loss: Braun and Tashev, "A consolidated view of loss functions for supervised deep learning-based speech
    enhancement" (2020).
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        in_channels: int,
        hop_length: int,
        steps: int,
        n_fft: int = 1024,
        dim: int = 192,
        intermediate_dim: int = 512,
        layers: int = 4,
        iterations: int = 32,
    ) -> None:
        check_at_least(
            1, in_channels=in_channels, steps=steps, dim=dim, intermediate_dim=intermediate_dim, layers=layers
        )
        if hop_length % steps:
            raise ValueError(f"steps {steps} must divide hop_length {hop_length}")
        check_at_least(0, iterations=iterations)
        super().__init__()
        self.iterations = iterations
        self.transform, self.steps = PlainSTFT(n_fft, hop_length // steps), steps
        self.in_channels, self.hop_length = in_channels, hop_length
        self.register_buffer("mean", torch.zeros(in_channels))
        self.register_buffer("deviation", torch.ones(in_channels))
        self.expand = nn.Linear(in_channels, steps * dim)
        self.backbone = ConvNeXtBackbone(dim, dim, intermediate_dim, layers)
        self.out = nn.Linear(dim, n_fft // 2 + 1)
        self.shortcut = nn.Linear(in_channels, steps * (n_fft // 2 + 1))
        for weight in (self.out.weight, self.out.bias, self.shortcut.weight):
            nn.init.zeros_(weight)
        nn.init.constant_(self.shortcut.bias, _INITIAL_LOG_MAGNITUDE)
        overlap = math.ceil(n_fft / self.transform.hop_length)
        reach = self.backbone.reach + overlap + iterations * (overlap - 1)  # in frames of the transform
        self.receptive_frames = math.ceil(reach / steps)

    @torch.no_grad()
    def fit_shortcut(self, pairs: Iterable[tuple[Tensor, Tensor]], ridge: float = 1e-3) -> None:
        """Scale the input by its channels' mean and deviation, and solve for the shortcut by least squares.

        Features of speech encoders have a few channels that outweigh all others, and gradients learn those alone.
        Pairs are features (B, in_channels, F >= 3) and audio (B, F * hop_length); first and last frames do not count.
        `ridge` is a share of a channel's variance. What the backbone adds begins at zero. ValueError without pairs.
        """
        moments: list[Tensor] = []
        for x, audio in pairs:
            targets = self._spectra(audio).clamp(min=_MIN_MAGNITUDE).log().transpose(1, 2)
            targets = targets[:, self.steps : -self.steps].unflatten(1, (-1, self.steps)).flatten(2).flatten(0, 1)
            rows = torch.nn.functional.pad(x[..., 1:-1].transpose(1, 2).flatten(0, 1).double(), (0, 1), value=1.0)
            products = [rows.T @ rows, rows.T @ targets.double()]
            moments = [a + b for a, b in zip(moments, products, strict=True)] if moments else products
        if not moments:
            raise ValueError("a least-squares solution needs features and audio, got none")
        square, product = moments
        count, mean = square[-1, -1], square[-1, :-1] / square[-1, -1]
        variance = (square.diagonal()[:-1] / count - mean.square()).clamp(min=_MIN_VARIANCE)
        square.diagonal()[:-1] += ridge * count * variance
        solution = torch.linalg.solve(square, product)
        weight, deviation = solution[:-1], variance.sqrt()
        self.mean.copy_(mean)
        self.deviation.copy_(deviation)
        self.shortcut.weight.copy_((weight * deviation[:, None]).T)
        self.shortcut.bias.copy_(solution[-1] + mean @ weight)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def _spectra(self, audio: Tensor) -> Tensor:
        """Magnitudes (B, n_fft // 2 + 1, T / hop of the transform) of audio (B, T)."""
        t = self.transform
        padded = torch.nn.functional.pad(promote_to_float32(audio), (t.padding_samples, t.padding_samples))
        return torch.stft(padded, t.n_fft, t.hop_length, window=t.window, center=False, return_complex=True).abs()

    def _log_magnitudes(self, x: Tensor) -> Tensor:
        """Log-magnitudes (B, n_fft // 2 + 1, F * steps) of features (B, C, F); float32 behind the net."""
        x = (x.transpose(1, 2) - self.mean) / self.deviation
        linear = self.shortcut(x).unflatten(2, (self.steps, -1)).flatten(1, 2)
        finer = self.expand(x).unflatten(2, (self.steps, -1)).flatten(1, 2)  # (B, F * steps, dim)
        return promote_to_float32(linear + self.out(self.backbone(finer.transpose(1, 2)))).transpose(1, 2)

    def _training_pair(self, x: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        logarithms, target = self._log_magnitudes(x).clamp(max=math.log(MAX_MAGNITUDE)), self._spectra(audio)
        frames = min(target.shape[2], logarithms.shape[2])
        target = target[..., :frames].clamp(min=_MIN_MAGNITUDE).pow(_COMPRESSION)
        return (_COMPRESSION * logarithms[..., :frames]).exp(), target

    def forward(self, x: Tensor, audio: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Synthesise (B, 1, F * hop_length) from features (B, in_channels, F).

        With `audio` (B, T): what training compares, magnitudes to the power of 0.3 (B, n_fft // 2 + 1, frames), of the
        features and of the audio.
        """
        if audio is not None:
            return self._training_pair(x, audio)
        magnitude = clipped_exp(self._log_magnitudes(x))
        with torch.autocast(magnitude.device.type, enabled=False):
            with torch.no_grad():
                phase = torch.complex(torch.ones_like(magnitude), torch.zeros_like(magnitude))
                phase = find_phase(magnitude, phase, self.transform, self.iterations)
            return synthesize(magnitude * phase, self.transform)[:, None]
