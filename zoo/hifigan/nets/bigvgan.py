"""BigVGAN generator: HiFi-GAN's stages with periodic activations that add no aliases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.common.checks import check_one_of
from zoo.hifigan.nets.antialiasing import AntiAliased, Snake
from zoo.hifigan.nets.causal import conv1d
from zoo.hifigan.nets.interface import StagedGenerator


class PeriodicBlock(nn.Module):
    """BigVGAN's AMP block: residual units of one kernel size, each convolution after an activation.

    Args:
        dilations: of each unit's first convolution; type "1" has a plain one behind it, "2" has not.
        activation: made for so many channels.

    Source: BigVGAN, section 3.3 (Lee et al., 2023).
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        dilations: Sequence[int],
        kind: str,
        activation: Callable[[int], AntiAliased],
        causal: bool = False,
    ) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Conv1d:
            return conv1d(channels, channels, kernel_size, causal, dilation)

        self.kind = kind
        dilated = nn.ModuleList(conv(dilation) for dilation in dilations)
        if kind == "1":
            self.convs1 = dilated
            self.convs2 = nn.ModuleList(conv(1) for _ in dilations)
        else:
            self.convs = dilated
        self.activations = nn.ModuleList(
            activation(channels) for _ in range(len(dilations) * (2 if kind == "1" else 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Refine activations (B, C, T); the shape stays."""
        if self.kind == "2":
            for conv, act in zip(self.convs, self.activations, strict=True):
                x = x + conv(act(x))
            return x
        acts = self.activations
        for dilated, plain, before, between in zip(self.convs1, self.convs2, acts[::2], acts[1::2], strict=True):
            x = x + plain(between(dilated(before(x))))
        return x


class BigVGAN(StagedGenerator):
    """Turns frames of a mel into a waveform.

    Args:
        in_channels: channels of the input frames.
        initial_channels: width before the first up-sampling; every stage halves it, rounding down as the original.
        upsample_rates: up-sampling factor of each stage; their product is the hop in samples.
        upsample_kernel_sizes: kernel of each stage; kernel minus rate must not be negative, and even unless
            `output_padding` says what an odd one means.
        resblock: residual block type, "1" or "2".
        resblock_kernel_sizes: odd kernel sizes of the residual blocks run side by side in every stage.
        resblock_dilation_sizes: dilations of each of these blocks.
        activation: "snakebeta" or "snake".
        log_scale: whether the activations' parameters are logarithms.
        tanh: bounds the waveform by tanh (v1) or cuts it off at -1 and 1 (v2), where no gradient passes.
        last_bias: of the last convolution (v1).
        output_padding: see `Generator`; 0 is the original's.
        causal: convolutions and filters look back only, so that a frame's samples depend on no later frame; any kernel
            not below its rate is then allowed.

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
        causal: bool = False,
    ) -> None:
        check_one_of(("snakebeta", "snake"), activation=activation)

        def periodic(channels: int) -> AntiAliased:
            return AntiAliased(Snake(channels, activation == "snakebeta", log_scale), causal=causal)

        super().__init__(
            in_channels, initial_channels, upsample_rates, upsample_kernel_sizes, resblock, resblock_kernel_sizes,
            resblock_dilation_sizes, partial(PeriodicBlock, kind=resblock, activation=periodic, causal=causal),
            output_padding=output_padding, causal=causal,
        )  # fmt: skip
        self.activation, self.log_scale, self.tanh, self.last_bias = activation, log_scale, tanh, last_bias
        self.activation_post = periodic(self.last_channels)
        self.conv_post = self.edge(self.last_channels, 1, bias=last_bias)
        for module in [each for each in self.modules() if isinstance(each, nn.Conv1d | nn.ConvTranspose1d)]:
            parametrizations.weight_norm(module)
        own, sides = self.activation_post.reach, 1 if causal else 2
        self.receptive_frames = self.context(lambda size, dilation: (size - 1) * dilation // sides + own, own)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length), -1 to 1, from log-mels (B, in_channels, F)."""
        samples = x.shape[-1] * self.hop_length
        x = self.stages(self.conv_pre(x))
        x = self.conv_post(self.activation_post(x))  # (B, 1, T)
        x = torch.tanh(x) if self.tanh else x.clamp(-1, 1)
        return x if self.output_padding is None else x[..., :samples]
