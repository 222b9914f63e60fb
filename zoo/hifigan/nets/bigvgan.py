"""BigVGAN generator: HiFi-GAN's stages with periodic activations that add no aliases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.common.checks import check_one_of
from zoo.hifigan.nets.antialiasing import REACH, AntiAliasedActivation, Snake
from zoo.hifigan.nets.base import StagedGenerator, edge_convolution


class BigVGAN(StagedGenerator):
    """Turns frames of a mel into a waveform; the other arguments are those of `StagedGenerator`.

    Args:
        activation: "snakebeta" or "snake".
        log_scale: whether the activations' parameters are logarithms.
        tanh: bound the waveform by tanh (v1), or clamp it (v2), where no gradient passes.
        last_bias: give the last convolution a bias (v1).

    Source: BigVGAN (Lee et al., 2023).
    """

    def __init__(
        self,
        in_channels: int = 100,
        initial_channels: int = 1536,
        upsample_rates: Sequence[int] = (4, 4, 2, 2, 2, 2),
        upsample_kernel_sizes: Sequence[int] = (8, 8, 4, 4, 4, 4),
        resblock: Literal["1", "2"] = "1",
        resblock_kernel_sizes: Sequence[int] = (3, 7, 11),
        resblock_dilation_sizes: Sequence[Sequence[int]] = ((1, 3, 5), (1, 3, 5), (1, 3, 5)),
        activation: Literal["snakebeta", "snake"] = "snakebeta",
        log_scale: bool = True,
        tanh: bool = False,
        last_bias: bool = False,
        output_padding: Literal[0, 1] | None = None,
    ) -> None:
        check_one_of(("snakebeta", "snake"), activation=activation)

        def periodic(channels: int) -> AntiAliasedActivation:
            return AntiAliasedActivation(Snake(channels, activation == "snakebeta", log_scale))

        super().__init__(
            in_channels, initial_channels, upsample_rates, upsample_kernel_sizes, resblock, resblock_kernel_sizes,
            resblock_dilation_sizes, periodic, output_padding=output_padding,
        )  # fmt: skip
        self.activation, self.log_scale, self.tanh, self.last_bias = activation, log_scale, tanh, last_bias
        self.activation_post = periodic(self.last_channels)
        self.conv_post = edge_convolution(self.last_channels, 1, bias=last_bias)
        for module in [each for each in self.modules() if isinstance(each, nn.Conv1d | nn.ConvTranspose1d)]:
            parametrizations.weight_norm(module)
        self.receptive_frames = self.context(lambda size, dilation: (size - 1) * dilation // 2 + REACH, REACH)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length), -1 to 1, from log-mels (B, in_channels, F)."""
        samples = x.shape[-1] * self.hop_length
        x = self.run_stages(self.conv_pre(x))
        x = self.conv_post(self.activation_post(x))  # (B, 1, T)
        x = torch.tanh(x) if self.tanh else x.clamp(-1, 1)
        return x if self.output_padding is None else x[..., :samples]
