"""HiFi-GAN generator: mel or SSL features to waveform, by transposed convolutions and multi-receptive-field fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.common.checks import check_one_of
from zoo.hifigan.nets.base import PaddingMode, StagedGenerator, edge_convolution
from zoo.hifigan.nets.conditioners import Conditioner

SLOPE = 0.1
LAST_SLOPE = 0.01  # PyTorch's default: the original's last activation omits the slope


class Generator(StagedGenerator):
    """Turns frames of a mel or of SSL features into a waveform; the other arguments are those of `StagedGenerator`.

    Args:
        init: "default" is PyTorch's, as in effect the original's; "normal" samples the up-sampling, residual and last
            weights from N(0, 0.01).
        last_slope: of the last leaky ReLU: 0.01 (HiFi-GAN, AudioSR) or 0.1 (ProjectLily).

    Source: HiFi-GAN, section 2.2 (Kong et al., 2020).
    """

    def __init__(
        self,
        in_channels: int = 80,
        initial_channels: int = 512,
        upsample_rates: Sequence[int] = (8, 8, 2, 2),
        upsample_kernel_sizes: Sequence[int] = (16, 16, 4, 4),
        resblock: Literal["1", "2"] = "1",
        resblock_kernel_sizes: Sequence[int] = (3, 7, 11),
        resblock_dilation_sizes: Sequence[Sequence[int]] = ((1, 3, 5), (1, 3, 5), (1, 3, 5)),
        conditioner: Conditioner | None = None,
        padding_mode: PaddingMode = "zeros",
        init: Literal["default", "normal"] = "default",
        last_slope: float = LAST_SLOPE,
        output_padding: Literal[0, 1] | None = None,
    ) -> None:
        check_one_of(("default", "normal"), init=init)
        if conditioner is not None and conditioner.in_channels != in_channels:
            raise ValueError(f"in_channels is {in_channels} and the conditioner takes {conditioner.in_channels}")
        super().__init__(
            in_channels, initial_channels, upsample_rates, upsample_kernel_sizes, resblock, resblock_kernel_sizes,
            resblock_dilation_sizes, lambda channels: nn.LeakyReLU(SLOPE), conditioner, padding_mode, output_padding,
        )  # fmt: skip
        self.padding_mode = padding_mode
        self.last_slope = last_slope
        self.conv_post = edge_convolution(self.last_channels, 1, padding_mode)
        for name, module in list(self.named_modules()):
            if isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and not name.startswith("conditioner."):
                if init == "normal" and name != "conv_pre":
                    nn.init.normal_(module.weight, 0.0, 0.01)
                parametrizations.weight_norm(module)
        self.receptive_frames = self.context(lambda size, dilation: (size - 1) * dilation // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length), -1 to 1, from log-mels or SSL features (B, in_channels, F)."""
        if self.conditioner is not None:
            x = self.conditioner(x)  # (B, conditioner.out_channels, F)
        samples = x.shape[-1] * self.hop_length
        x = self.run_stages(self.conv_pre(x), lambda x: F.leaky_relu(x, SLOPE))
        x = torch.tanh(self.conv_post(F.leaky_relu(x, self.last_slope)))  # (B, 1, T)
        return x if self.output_padding is None else x[..., :samples]
