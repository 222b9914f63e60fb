"""BigVGAN generator: HiFi-GAN's stages with periodic activations that add no aliases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.common.checks import check_one_of
from zoo.hifigan.nets.antialiasing import AntiAliasedActivation, Snake
from zoo.hifigan.nets.base import StagedGenerator, edge_convolution, same_conv1d


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
        activation: Callable[[int], AntiAliasedActivation],
    ) -> None:
        super().__init__()
        self.kind = kind
        dilated = nn.ModuleList(same_conv1d(channels, kernel_size, dilation) for dilation in dilations)
        if kind == "1":
            self.convs1 = dilated
            self.convs2 = nn.ModuleList(same_conv1d(channels, kernel_size, 1) for _ in dilations)
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
            resblock_dilation_sizes, partial(PeriodicBlock, kind=resblock, activation=periodic),
            output_padding=output_padding,
        )  # fmt: skip
        self.activation, self.log_scale, self.tanh, self.last_bias = activation, log_scale, tanh, last_bias
        self.activation_post = periodic(self.last_channels)
        self.conv_post = edge_convolution(self.last_channels, 1, bias=last_bias)
        for module in [each for each in self.modules() if isinstance(each, nn.Conv1d | nn.ConvTranspose1d)]:
            parametrizations.weight_norm(module)
        reach = self.activation_post.reach
        self.receptive_frames = self.context(lambda size, dilation: (size - 1) * dilation // 2 + reach, reach)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length), -1 to 1, from log-mels (B, in_channels, F)."""
        samples = x.shape[-1] * self.hop_length
        x = self.stages(self.conv_pre(x))
        x = self.conv_post(self.activation_post(x))  # (B, 1, T)
        x = torch.tanh(x) if self.tanh else x.clamp(-1, 1)
        return x if self.output_padding is None else x[..., :samples]
