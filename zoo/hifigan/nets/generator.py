"""HiFi-GAN generator: mel or SSL features to waveform, by transposed convolutions and multi-receptive-field fusion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.common.ranges import one_of
from zoo.hifigan.nets.conditioners import Conditioner
from zoo.hifigan.nets.interface import WaveformGenerator, upsampled_context

SLOPE = 0.1
LAST_SLOPE = 0.01  # the original's last activation omits the slope; its weights are trained with PyTorch's default
EDGE_KERNEL = 7

PaddingMode = Literal["zeros", "reflect", "replicate"]


class ResidualBlock(nn.Module):
    """Residual units of one kernel size: type "1" pairs a dilated with a plain convolution, "2" has the first only.

    Args:
        dilations: dilation of each unit's first convolution.

    Source: HiFi-GAN, appendix A.1 (Kong et al., 2020).
    """

    def __init__(
        self, channels: int, kernel_size: int, dilations: Sequence[int], kind: str, padding_mode: PaddingMode = "zeros"
    ) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Conv1d:
            padding = (kernel_size - 1) * dilation // 2
            return nn.Conv1d(
                channels, channels, kernel_size, dilation=dilation, padding=padding, padding_mode=padding_mode
            )

        self.kind = kind
        dilated = nn.ModuleList(conv(dilation) for dilation in dilations)
        if kind == "1":
            self.convs1 = dilated
            self.convs2 = nn.ModuleList(conv(1) for _ in dilations)
        else:
            self.convs = dilated

    def forward(self, x: Tensor) -> Tensor:
        """Refine activations (B, C, T); the shape stays."""
        if self.kind == "2":
            for conv in self.convs:
                x = x + conv(F.leaky_relu(x, SLOPE))
            return x
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, SLOPE)), SLOPE))
        return x


class Generator(WaveformGenerator):
    """Turns frames of a mel or of SSL features into a waveform.

    Args:
        in_channels: channels of the input frames.
        initial_channels: width before the first up-sampling; every stage halves it, rounding down as the original.
        upsample_rates: up-sampling factor of each stage; their product is the hop in samples.
        upsample_kernel_sizes: kernel of each stage; kernel minus rate must not be negative, and even unless
            `output_padding` says what an odd one means.
        resblock: residual block type, "1" or "2".
        resblock_kernel_sizes: odd kernel sizes of the residual blocks run side by side in every stage.
        resblock_dilation_sizes: dilations of each of these blocks.
        conditioner: net run on the frames first; None feeds them into the first convolution.
        padding_mode: edges of all convolutions that are not transposed ("reflect": SpeechBrain's checkpoints).
        init: "default" is PyTorch's, which is also what the original effectively trains from; "normal" draws the
            up-sampling, residual and last weights from N(0, 0.01).
        last_slope: of the last leaky ReLU: 0.01 (HiFi-GAN, AudioSR) or 0.1 (ProjectLily).
        output_padding: of the stages whose kernel minus rate is odd: 0 (AudioSR) or 1 (ProjectLily). They give one or
            two samples too many at their end; later stages see these, and the waveform is cut to whole frames. None
            refuses such stages.

    Attributes:
        hop_length: samples per frame (of the conditioner's output frames where it changes their rate).

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
        super().__init__()
        check_upsampling(upsample_rates, upsample_kernel_sizes, initial_channels, output_padding)
        check_resblocks(resblock, resblock_kernel_sizes, resblock_dilation_sizes)
        one_of(("default", "normal"), init=init)
        if conditioner is not None and conditioner.in_channels != in_channels:
            raise ValueError(f"in_channels is {in_channels} and the conditioner takes {conditioner.in_channels}")
        self.in_channels = in_channels
        self.initial_channels = initial_channels
        self.upsample_rates = tuple(upsample_rates)
        self.upsample_kernel_sizes = tuple(upsample_kernel_sizes)
        self.resblock = resblock
        self.resblock_kernel_sizes = tuple(resblock_kernel_sizes)
        self.resblock_dilation_sizes = tuple(tuple(dilations) for dilations in resblock_dilation_sizes)
        self.padding_mode = padding_mode
        self.last_slope = last_slope
        self.output_padding = output_padding
        self.hop_length = math.prod(upsample_rates)
        self.conditioner = conditioner

        def edge(channels_in: int, channels_out: int) -> nn.Conv1d:
            return nn.Conv1d(
                channels_in, channels_out, EDGE_KERNEL, padding=EDGE_KERNEL // 2, padding_mode=padding_mode
            )

        self.conv_pre = edge(in_channels if conditioner is None else conditioner.out_channels, initial_channels)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        channels = initial_channels
        for rate, kernel in zip(upsample_rates, upsample_kernel_sizes, strict=True):
            excess = kernel - rate
            added = (output_padding or 0) * (excess % 2)
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, kernel, rate, excess // 2, added))
            channels //= 2
            for size, dilations in zip(resblock_kernel_sizes, resblock_dilation_sizes, strict=True):
                self.resblocks.append(ResidualBlock(channels, size, dilations, resblock, padding_mode))
        self.conv_post = edge(channels, 1)
        for name, module in self.convolutions():
            if init == "normal" and name != "conv_pre":
                nn.init.normal_(module.weight, 0.0, 0.01)
            parametrizations.weight_norm(module)
        self.receptive_frames = self._receptive_frames()

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length), -1 to 1, from log-mels or SSL features (B, in_channels, F)."""
        if self.conditioner is not None:
            x = self.conditioner(x)  # (B, conditioner.out_channels, F)
        samples = x.shape[-1] * self.hop_length
        x = self.conv_pre(x)  # (B, initial_channels, F)
        parallel = len(self.resblock_kernel_sizes)
        for stage, upsample in enumerate(self.ups):
            x = upsample(F.leaky_relu(x, SLOPE))  # (B, C / 2, rate * T)
            blocks = self.resblocks[stage * parallel : (stage + 1) * parallel]
            x = sum(block(x) for block in blocks) / parallel
        x = torch.tanh(self.conv_post(F.leaky_relu(x, self.last_slope)))  # (B, 1, T)
        return x if self.output_padding is None else x[..., :samples]

    def convolutions(self) -> list[tuple[str, nn.Conv1d | nn.ConvTranspose1d]]:
        """Every convolution that carries weight norm, with its name."""
        return [
            (name, module)
            for name, module in self.named_modules()
            if isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and not name.startswith("conditioner.")
        ]

    def _receptive_frames(self) -> int | None:
        reach = max(
            sum((size - 1) * dilation // 2 + (size // 2 if self.resblock == "1" else 0) for dilation in dilations)
            for size, dilations in zip(self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True)
        )
        edge = EDGE_KERNEL // 2
        frames = upsampled_context(self.upsample_rates, self.upsample_kernel_sizes, reach, edge, edge)
        if self.conditioner is None:
            return frames
        context = self.conditioner.receptive_frames
        return None if context is None else frames + context


def check_upsampling(rates: Sequence[int], kernels: Sequence[int], channels: int, output_padding: int | None) -> None:
    """Refuse stages that do not give whole frames; see `Generator`."""
    one_of((None, 0, 1), output_padding=output_padding)
    if not rates or len(rates) != len(kernels):
        raise ValueError(
            f"upsample_rates and upsample_kernel_sizes must have the same length, not {len(rates)} and {len(kernels)}"
        )
    for rate, kernel in zip(rates, kernels, strict=True):
        if kernel < rate or ((kernel - rate) % 2 and output_padding is None):
            raise ValueError(
                f"upsample kernel {kernel} with rate {rate}: kernel - rate must be even and not negative, or a stage "
                f"does not give exactly {rate} samples per frame; use kernel {2 * rate + rate % 2} or {rate}, or set "
                "output_padding to 0 (AudioSR) or 1 (ProjectLily) for a vocoder trained with an odd difference"
            )
    if channels < 2 ** len(rates):
        raise ValueError(f"initial_channels {channels} leaves no channel after {len(rates)} halvings: take more")


def check_resblocks(kind: str, kernels: Sequence[int], dilations: Sequence[Sequence[int]]) -> None:
    """Refuse residual blocks that cannot be; see `Generator`."""
    one_of(("1", "2"), resblock=kind)
    if not kernels or len(kernels) != len(dilations):
        raise ValueError(
            "resblock_kernel_sizes and resblock_dilation_sizes must have the same length, "
            f"not {len(kernels)} and {len(dilations)}"
        )
    even = [kernel for kernel in kernels if kernel % 2 == 0]
    if even:
        raise ValueError(f"resblock_kernel_sizes must be odd, found {even}")
