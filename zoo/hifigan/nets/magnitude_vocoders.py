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
from zoo.hifigan.nets.vocos import ConvNeXtBackbone, clipped_exp

_MIN_MAGNITUDE = 1e-5
_INITIAL_LOG_MAGNITUDE = -5.0


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
    features of 25 or 50 frames a second need no net that learns phases. Training differentiates through the magnitudes.

    Args:
        in_channels: of the features.
        hop_length: samples per frame of the features.
        steps: frames of the transform in each; hop_length / steps is even.
        n_fft: size of the transform in samples, even; four hops or more let Griffin-Lim find phases.
        dim: width of the backbone.
        intermediate_dim: width inside its perceptrons.
        layers: number of its blocks.
        iterations: of Griffin-Lim outside of training.
        training_iterations: of Griffin-Lim in a training step.

    Source: Perraudin et al., "A fast Griffin-Lim algorithm" (2013); Vocos (Siuzdak, 2023); nets around Griffin-Lim:
    Masuyama et al., "Deep Griffin-Lim iteration" (2019).
    """

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
        training_iterations: int = 8,
    ) -> None:
        check_at_least(
            1, in_channels=in_channels, steps=steps, dim=dim, intermediate_dim=intermediate_dim, layers=layers
        )
        if hop_length % steps:
            raise ValueError(f"steps {steps} must divide hop_length {hop_length}")
        check_at_least(0, iterations=iterations, training_iterations=training_iterations)
        super().__init__()
        self.iterations, self.training_iterations = iterations, training_iterations
        self.transform, self.steps = PlainSTFT(n_fft, hop_length // steps), steps
        self.in_channels, self.hop_length = in_channels, hop_length
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

    def magnitudes(self, x: Tensor) -> Tensor:
        """Magnitudes (B, n_fft // 2 + 1, F * steps), at most 100, of features (B, C, F); float32 behind the net."""
        linear = self.shortcut(x.transpose(1, 2)).unflatten(2, (self.steps, -1)).flatten(1, 2)
        return clipped_exp(promote_to_float32(linear + self._correction(x)).transpose(1, 2))

    def _correction(self, x: Tensor) -> Tensor:
        """Compute what the backbone adds to the logarithms, (B, F * steps, n_fft // 2 + 1)."""
        finer = self.expand(x.transpose(1, 2)).unflatten(2, (self.steps, -1)).flatten(1, 2)  # (B, F * steps, dim)
        return self.out(self.backbone(finer.transpose(1, 2)))

    @torch.no_grad()
    def fit_shortcut(self, pairs: Iterable[tuple[Tensor, Tensor]], ridge: float = 1e-3) -> None:
        """Set the shortcut to the least-squares solution for the backbone as it is; ValueError without pairs.

        Gradients need thousands of steps for ill-conditioned features. Pairs are features (B, in_channels, F >= 3)
        and audio (B, F * hop_length); first and last frames do not count. `ridge` is a share of a channel's variance.
        """
        moments: list[Tensor] = []
        for x, audio in pairs:
            inner = slice(self.steps, -self.steps)
            residual = self._log_magnitudes(audio) - promote_to_float32(self._correction(x))
            targets = residual[:, inner].unflatten(1, (-1, self.steps)).flatten(2).flatten(0, 1).double()
            rows = torch.nn.functional.pad(x[..., 1:-1].transpose(1, 2).flatten(0, 1).double(), (0, 1), value=1.0)
            products = [rows.T @ rows, rows.T @ targets]
            moments = [a + b for a, b in zip(moments, products, strict=True)] if moments else products
        if not moments:
            raise ValueError("a least-squares solution needs features and audio, got none")
        square, product = moments
        mean = square[-1] / square[-1, -1]
        square.diagonal()[:-1] += ridge * (square.diagonal() - mean.square() * square[-1, -1])[:-1].clamp(min=1e-6)
        solution = torch.linalg.solve(square, product)
        self.shortcut.weight.copy_(solution[:-1].T)
        self.shortcut.bias.copy_(solution[-1])

    def _log_magnitudes(self, audio: Tensor) -> Tensor:
        """Log-magnitudes (B, T / hop of the transform, n_fft // 2 + 1) of audio (B, T)."""
        t = self.transform
        padded = torch.nn.functional.pad(promote_to_float32(audio), (t.padding_samples, t.padding_samples))
        spectra = torch.stft(padded, t.n_fft, t.hop_length, window=t.window, center=False, return_complex=True)
        return spectra.abs().clamp(min=_MIN_MAGNITUDE).log().transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length) from features (B, in_channels, F)."""
        magnitude = self.magnitudes(x)
        iterations = self.training_iterations if self.training else self.iterations
        with torch.autocast(magnitude.device.type, enabled=False):
            with torch.no_grad():
                phase = torch.complex(torch.ones_like(magnitude), torch.zeros_like(magnitude))
                phase = find_phase(magnitude, phase, self.transform, iterations)
            return synthesize(magnitude * phase, self.transform)[:, None]
