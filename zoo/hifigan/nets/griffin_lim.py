"""A vocoder that learns the magnitudes only: Vocos' backbone before the fast Griffin-Lim algorithm."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from zoo.audio.analysis.griffin_lim import find_phase, invert_mel_kl, synthesise
from zoo.audio.analysis.mel import LogMel
from zoo.common.ranges import at_least
from zoo.common.reading.unpickle import at_least_float32
from zoo.hifigan.nets.interface import WaveformGenerator
from zoo.hifigan.nets.vocos import MOST_MAGNITUDE, ConvNeXtBackbone

_LEAST_MAGNITUDE = 1e-5  # of which the logarithm is corrected


class GriffinLimVocos(WaveformGenerator):
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
        super().__init__()
        at_least(1, dim=dim, intermediate_dim=intermediate_dim, layers=layers)
        at_least(0, updates=updates, iterations=iterations, training_iterations=training_iterations)
        self.mel, self.updates = mel, updates
        self.iterations, self.training_iterations = iterations, training_iterations
        self.in_channels, self.hop_length = mel.n_mels, mel.hop_length
        self.backbone = ConvNeXtBackbone(mel.n_mels, dim, intermediate_dim, layers, scale=None, conditions=None)
        self.out = nn.Linear(dim, mel.n_fft // 2 + 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        overlap = math.ceil(mel.n_fft / mel.hop_length)
        self.receptive_frames = self.backbone.reach + overlap + iterations * (overlap - 1)

    def magnitudes(self, x: Tensor) -> Tensor:
        """Magnitudes (B, n_fft // 2 + 1, F), at most 100, of log-mels (B, n_mels, F); float32 behind the net."""
        correction = at_least_float32(self.out(self.backbone(x))).transpose(1, 2)  # (B, n_fft / 2 + 1, F)
        with torch.autocast(x.device.type, enabled=False):
            inverted = invert_mel_kl(at_least_float32(x).exp(), self.mel, self.updates)
            return (inverted.clamp(min=_LEAST_MAGNITUDE).log() + correction).exp().clamp(max=MOST_MAGNITUDE)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length) from log-mels (B, n_mels, F)."""
        magnitude = self.magnitudes(x)
        iterations = self.training_iterations if self.training else self.iterations
        with torch.autocast(x.device.type, enabled=False):
            with torch.no_grad():
                phase = torch.complex(torch.ones_like(magnitude), torch.zeros_like(magnitude))
                phase = find_phase(magnitude, phase, self.mel, iterations)
            return synthesise(magnitude * phase, self.mel)[:, None]
