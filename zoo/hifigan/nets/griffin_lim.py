"""Vocoders that learn the magnitudes only: Vocos' backbone before the fast Griffin-Lim algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from zoo.audio.analysis.griffin_lim import Spectra, Transform, find_phase, invert_mel_kl, synthesize
from zoo.audio.analysis.mel import LogMel
from zoo.common.checks import check_at_least
from zoo.common.tensors import promote_to_float32
from zoo.hifigan.nets.interface import WaveformGenerator
from zoo.hifigan.nets.vocos import ConvNeXtBackbone, magnitude_of

_LEAST_MAGNITUDE = 1e-5  # of which the logarithm is corrected
_QUIET = -5.0  # logarithm of the magnitudes that an untrained net predicts


class PhaseSearch(WaveformGenerator):
    """Base of the generators that predict magnitudes and search for their phases.

    Args:
        transform: whose magnitudes are predicted.
        iterations: of Griffin-Lim outside of training.
        training_iterations: of Griffin-Lim in a training step.
    """

    def __init__(self, transform: Transform, iterations: int, training_iterations: int) -> None:
        super().__init__()
        check_at_least(0, iterations=iterations, training_iterations=training_iterations)
        self.iterations, self.training_iterations = iterations, training_iterations
        overlap = math.ceil(transform.n_fft / transform.hop_length)
        self.search_reach = overlap + iterations * (overlap - 1)  # frames of the transform

    def magnitudes(self, x: Tensor) -> Tensor:
        """Magnitudes (B, n_fft // 2 + 1, F'), at most 100, of frames (B, in_channels, F); float32 behind the net."""
        raise NotImplementedError(f"{type(self).__name__} defines no magnitudes()")

    def waveform(self, magnitude: Tensor, transform: Transform) -> Tensor:
        """Audio (B, 1, F' * its hop) of magnitudes; phases are constants to the gradient."""
        iterations = self.training_iterations if self.training else self.iterations
        with torch.autocast(magnitude.device.type, enabled=False):
            with torch.no_grad():
                phase = torch.complex(torch.ones_like(magnitude), torch.zeros_like(magnitude))
                phase = find_phase(magnitude, phase, transform, iterations)
            return synthesize(magnitude * phase, transform)[:, None]


class GriffinLimVocos(PhaseSearch):
    """Corrects the magnitudes that a log-mel determines by a net, and finds their phases by Griffin-Lim.

    A mel is inverted to linear magnitudes by multiplicative updates, Vocos' backbone adds to their logarithms, and the
    fast Griffin-Lim algorithm starts from phases of zero. Untrained it is Griffin-Lim; trained it has better
    magnitudes, within minutes on a CPU, where a net that learns phases needs days on a GPU.

    Training differentiates through the magnitudes; phases are constants that fewer iterations found.

    Args:
        mel: front end that made the frames.
        dim: width of the backbone.
        intermediate_dim: width inside its perceptrons.
        layers: number of its blocks.
        updates: of the mel's inversion.
        iterations: of Griffin-Lim outside of training.
        training_iterations: of Griffin-Lim in a training step.

    Source: Perraudin et al., "A fast Griffin-Lim algorithm" (2013); the backbone: Vocos (Siuzdak, 2023); nets around
    Griffin-Lim: Masuyama et al., "Deep Griffin-Lim iteration" (2019).
    """

    def __init__(
        self,
        mel: LogMel,
        dim: int = 192,
        intermediate_dim: int = 512,
        layers: int = 4,
        updates: int = 10,
        iterations: int = 60,
        training_iterations: int = 8,
    ) -> None:
        super().__init__(mel, iterations, training_iterations)
        check_at_least(1, dim=dim, intermediate_dim=intermediate_dim, layers=layers)
        check_at_least(0, updates=updates)
        self.mel, self.updates = mel, updates
        self.in_channels, self.hop_length = mel.n_mels, mel.hop_length
        self.backbone = ConvNeXtBackbone(mel.n_mels, dim, intermediate_dim, layers, scale=None, conditions=None)
        self.out = nn.Linear(dim, mel.n_fft // 2 + 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.receptive_frames = self.backbone.reach + self.search_reach

    def magnitudes(self, x: Tensor) -> Tensor:
        """Magnitudes (B, n_fft // 2 + 1, F), at most 100, of log-mels (B, n_mels, F); float32 behind the net."""
        correction = promote_to_float32(self.out(self.backbone(x))).transpose(1, 2)  # (B, n_fft / 2 + 1, F)
        with torch.autocast(x.device.type, enabled=False):
            inverted = invert_mel_kl(promote_to_float32(x).exp(), self.mel, self.updates)
            return magnitude_of(inverted.clamp(min=_LEAST_MAGNITUDE).log() + correction)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length) from log-mels (B, n_mels, F)."""
        return self.waveform(self.magnitudes(x), self.mel)


class MagnitudeVocos(PhaseSearch):
    """Predicts the magnitudes of a finer transform from the frames of any features, and finds phases by Griffin-Lim.

    A linear layer makes `steps` finer frames of each; Vocos' backbone and a linear shortcut around it predict the
    logarithms of their magnitudes. Features of 25 or 50 frames a second thus need no net that learns phases.

    Training differentiates through the magnitudes; phases are constants that fewer iterations found.

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

    Raises:
        ValueError: for sizes that do not fit each other.

    Source: see `GriffinLimVocos`; the shortcut is ours.
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
        transform = Spectra(n_fft, hop_length // steps)
        super().__init__(transform, iterations, training_iterations)
        self.transform, self.steps = transform, steps
        self.in_channels, self.hop_length = in_channels, hop_length
        self.expand = nn.Linear(in_channels, steps * dim)
        self.backbone = ConvNeXtBackbone(dim, dim, intermediate_dim, layers, scale=None, conditions=None)
        self.out = nn.Linear(dim, n_fft // 2 + 1)
        self.shortcut = nn.Linear(in_channels, steps * (n_fft // 2 + 1))
        for weight in (self.out.weight, self.out.bias, self.shortcut.weight):
            nn.init.zeros_(weight)
        nn.init.constant_(self.shortcut.bias, _QUIET)
        self.receptive_frames = math.ceil((self.backbone.reach + self.search_reach) / steps)

    def magnitudes(self, x: Tensor) -> Tensor:
        """Magnitudes (B, n_fft // 2 + 1, F * steps), at most 100, of features (B, C, F); float32 behind the net."""
        straight = self.shortcut(x.transpose(1, 2)).unflatten(2, (self.steps, -1)).flatten(1, 2)
        return magnitude_of(promote_to_float32(straight + self._bent(x)).transpose(1, 2))

    def _bent(self, x: Tensor) -> Tensor:
        """What the backbone adds to the logarithms, (B, F * steps, n_fft // 2 + 1)."""
        finer = self.expand(x.transpose(1, 2)).unflatten(2, (self.steps, -1)).flatten(1, 2)  # (B, F * steps, dim)
        return self.out(self.backbone(finer.transpose(1, 2)))

    @torch.no_grad()
    def solve(self, pairs: Iterable[tuple[Tensor, Tensor]], ridge: float = 1e-3) -> None:
        """Set the shortcut to the least-squares solution beside the backbone as it is.

        Gradients need thousands of steps for what ill-conditioned features tell a linear layer; this needs one pass.

        Args:
            pairs: features (B, in_channels, F) and their audio (B, F * hop_length), F >= 3; their first and last
                frames, whose windows leave the audio, do not count.
            ridge: share of each channel's variance that is added to it.

        Raises:
            ValueError: without pairs.
        """
        moments: list[Tensor] = []
        for x, audio in pairs:
            inner = slice(self.steps, -self.steps)
            wanted = (self._logarithms(audio) - promote_to_float32(self._bent(x)))[
                :, inner
            ]  # (B, (F - 2) * steps, bins)
            rows = torch.nn.functional.pad(x[..., 1:-1].transpose(1, 2).flatten(0, 1).double(), (0, 1), value=1.0)
            found = [rows.T @ rows, rows.T @ wanted.unflatten(1, (-1, self.steps)).flatten(2).flatten(0, 1).double()]
            moments = [a + b for a, b in zip(moments, found, strict=True)] if moments else found
        if not moments:
            raise ValueError("a least-squares solution needs features and audio, got none")
        square, product = moments
        mean = square[-1] / square[-1, -1]
        square.diagonal()[:-1] += ridge * (square.diagonal() - mean.square() * square[-1, -1])[:-1].clamp(min=1e-6)
        solution = torch.linalg.solve(square, product)
        self.shortcut.weight.copy_(solution[:-1].T)
        self.shortcut.bias.copy_(solution[-1])

    def _logarithms(self, audio: Tensor) -> Tensor:
        """Of the magnitudes of audio (B, T), (B, T / hop of the transform, n_fft // 2 + 1)."""
        t = self.transform
        padded = torch.nn.functional.pad(promote_to_float32(audio), (t.padding_samples, t.padding_samples))
        spectra = torch.stft(padded, t.n_fft, t.hop_length, window=t.window, center=False, return_complex=True)
        return spectra.abs().clamp(min=_LEAST_MAGNITUDE).log().transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length) from features (B, in_channels, F)."""
        return self.waveform(self.magnitudes(x), self.transform)
