"""Base classes of vocoder generators: features to waveform, hop, receptive field, folding of weight norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from zoo.audio.analysis.mel import LogMel
from zoo.common.checks import check_one_of, check_within
from zoo.hifigan.nets.conditioners import Conditioner
from zoo.hifigan.nets.encodec import EncodecFeatures

EDGE_KERNEL = 7

PaddingMode = Literal["zeros", "reflect", "replicate"]


class WaveformGenerator(nn.Module):
    """Base of all generators: frames (B, in_channels, F) to audio (B, 1, F * hop_length), -1 to 1.

    Attributes:
        in_channels: channels of the input frames.
        hop_length: samples per frame, of the conditioner's output frames where one changes their rate.
        receptive_frames: input frames on each side that a frame's samples depend on; None means all.
        conditions: number of conditions; one of them is an input besides the frames. None for none.
    """

    in_channels: int
    hop_length: int
    receptive_frames: int | None = None
    conditions: int | None = None

    def remove_weight_norm_(self) -> Self:
        """Fold weight norm into plain weights, in place: faster, but the module cannot be trained on as it was."""
        for name, module in self.named_modules():
            if not name.startswith("conditioner.") and parametrize.is_parametrized(module, "weight"):
                weight = module.weight.detach().clone()
                # torch's remove_parametrizations strips the generated class, which deep copies share
                module.__class__ = type(module).__bases__[0]
                del module.parametrizations
                module.weight = nn.Parameter(weight)
        return self


def check_front_end(generator: WaveformGenerator, mel: LogMel | EncodecFeatures) -> None:
    """Refuse a front end whose frames are not those of a generator with a ValueError."""
    bandwidths = len(mel.bandwidths) if isinstance(mel, EncodecFeatures) else 0
    sizes = {"hop_length": mel.hop_length, "n_mels": mel.n_mels, "bandwidths": bandwidths}
    needs = (generator.hop_length, generator.in_channels, generator.conditions or 0)
    expected = dict(zip(sizes, needs, strict=True))
    if sizes != expected:
        raise ValueError(
            f"the front end has {sizes}, the generator needs {expected}: its samples per frame (the product of "
            "upsample_rates), in_channels and conditions"
        )


class Conditioned(WaveformGenerator):
    """A generator whose condition is set to a number, from 0."""

    number: Tensor

    def __init__(self, generator: WaveformGenerator, condition: int) -> None:
        super().__init__()
        check_within(0, (generator.conditions or 1) - 1, condition=condition)
        self.generator = generator
        self.in_channels, self.hop_length = generator.in_channels, generator.hop_length
        self.receptive_frames = generator.receptive_frames
        device = next(generator.parameters()).device
        self.register_buffer("number", torch.tensor(condition, device=device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Synthesise (B, 1, F * hop_length) from frames (B, in_channels, F)."""
        return self.generator(x, self.number)


class ResidualBlock(nn.Module):
    """Residual units of one kernel size, each convolution after an activation.

    Args:
        dilations: of each unit's first convolution.
        kind: "1" has a plain convolution after the dilated one, "2" has none.
        activation: makes one for a number of channels.

    Source: HiFi-GAN, appendix A.1 (Kong et al., 2020); BigVGAN, section 3.3 (Lee et al., 2023).
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        dilations: Sequence[int],
        kind: str,
        activation: Callable[[int], nn.Module],
        padding_mode: PaddingMode,
    ) -> None:
        super().__init__()
        self.kind = kind
        dilated = nn.ModuleList(same_conv1d(channels, kernel_size, dilation, padding_mode) for dilation in dilations)
        if kind == "1":
            self.convs1 = dilated
            self.convs2 = nn.ModuleList(same_conv1d(channels, kernel_size, 1, padding_mode) for _ in dilations)
        else:
            self.convs = dilated
        convolutions = len(dilations) * (2 if kind == "1" else 1)
        self.activations = nn.ModuleList(activation(channels) for _ in range(convolutions))

    def forward(self, x: Tensor) -> Tensor:
        """Refine activations (B, C, T); the shape stays."""
        if self.kind == "2":
            for conv, activate in zip(self.convs, self.activations, strict=True):
                x = x + conv(activate(x))
            return x
        for number, (dilated, plain) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            hidden = dilated(self.activations[2 * number](x))
            x = x + plain(self.activations[2 * number + 1](hidden))
        return x


class StagedGenerator(WaveformGenerator):
    """Base of generators that raise the rate by transposed convolutions, each followed by parallel residual blocks.

    Args:
        in_channels: channels of the input frames.
        initial_channels: width before the first up-sampling; every stage halves it, rounding down as the original.
        upsample_rates: up-sampling factor of each stage; their product is the hop in samples.
        upsample_kernel_sizes: kernel of each stage; kernel minus rate must not be negative, and even unless
            `output_padding` is set.
        resblock: residual block type, "1" or "2".
        resblock_kernel_sizes: odd kernel sizes of the residual blocks run side by side in every stage.
        resblock_dilation_sizes: dilations of each of these blocks.
        activation: makes that of the residual blocks for a number of channels.
        conditioner: net run on the frames first; None feeds them into the first convolution.
        padding_mode: edges of all convolutions that are not transposed ("reflect": SpeechBrain's checkpoints).
        output_padding: of the stages whose kernel minus rate is odd: 0 (AudioSR) or 1 (ProjectLily). They give one or
            two samples too many at their end; later stages see these, and the waveform is cut to whole frames. None
            refuses such stages.
    """

    def __init__(
        self,
        in_channels: int,
        initial_channels: int,
        upsample_rates: Sequence[int],
        upsample_kernel_sizes: Sequence[int],
        resblock: str,
        resblock_kernel_sizes: Sequence[int],
        resblock_dilation_sizes: Sequence[Sequence[int]],
        activation: Callable[[int], nn.Module],
        conditioner: Conditioner | None = None,
        padding_mode: PaddingMode = "zeros",
        output_padding: Literal[0, 1] | None = None,
    ) -> None:
        super().__init__()
        _check_upsampling(upsample_rates, upsample_kernel_sizes, initial_channels, output_padding)
        _check_resblocks(resblock, resblock_kernel_sizes, resblock_dilation_sizes)
        self.in_channels = in_channels
        self.initial_channels = initial_channels
        self.upsample_rates = tuple(upsample_rates)
        self.upsample_kernel_sizes = tuple(upsample_kernel_sizes)
        self.resblock = resblock
        self.resblock_kernel_sizes = tuple(resblock_kernel_sizes)
        self.resblock_dilation_sizes = tuple(tuple(dilations) for dilations in resblock_dilation_sizes)
        self.output_padding = output_padding
        self.hop_length = math.prod(upsample_rates)
        self.conditioner = conditioner
        first = in_channels if conditioner is None else conditioner.out_channels
        self.conv_pre = edge_convolution(first, initial_channels, padding_mode)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        channels = initial_channels
        for rate, kernel in zip(upsample_rates, upsample_kernel_sizes, strict=True):
            excess = kernel - rate
            added = (output_padding or 0) * (excess % 2)
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, kernel, rate, excess // 2, added))
            channels //= 2
            for size, dilations in zip(resblock_kernel_sizes, resblock_dilation_sizes, strict=True):
                self.resblocks.append(ResidualBlock(channels, size, dilations, resblock, activation, padding_mode))
        self.last_channels = channels

    def run_stages(self, x: Tensor, activate: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Raise the rate of (B, initial_channels, F) to (B, last_channels, T), by stages whose inputs are activated."""
        parallel = len(self.resblock_kernel_sizes)
        for stage, upsample in enumerate(self.ups):
            x = upsample(x if activate is None else activate(x))  # (B, C / 2, rate * T)
            blocks = self.resblocks[stage * parallel : (stage + 1) * parallel]
            x = sum(block(x) for block in blocks) / parallel
        return x

    def context(self, reach: Callable[[int, int], int], last: int = 0) -> int | None:
        """Compute the frames on each side that a frame's samples depend on; None means all.

        Follows the interval of inputs that a frame's first and last sample need, from the output backwards. `reach` are
        the samples on each side that a convolution of (kernel size, dilation) sees, `last` the final
        activation's.
        """
        edge, plain = EDGE_KERNEL // 2, self.resblock == "1"
        units = max(
            sum(reach(size, dilation) + (reach(size, 1) if plain else 0) for dilation in dilations)
            for size, dilations in zip(self.resblock_kernel_sizes, self.resblock_dilation_sizes, strict=True)
        )
        low, high = -edge - last, self.hop_length - 1 + edge + last
        for rate, kernel in zip(reversed(self.upsample_rates), reversed(self.upsample_kernel_sizes), strict=True):
            padding = (kernel - rate) // 2
            low, high = low - units, high + units
            low, high = math.ceil((low + padding - kernel + 1) / rate), (high + padding) // rate
        frames = max(-low, high) + edge
        if self.conditioner is None:
            return frames
        more = self.conditioner.receptive_frames
        return None if more is None else frames + more


def edge_convolution(
    channels_in: int, channels_out: int, padding_mode: PaddingMode = "zeros", bias: bool = True
) -> nn.Conv1d:
    """Make the first or the last convolution of a staged generator."""
    return nn.Conv1d(
        channels_in, channels_out, EDGE_KERNEL, padding=EDGE_KERNEL // 2, bias=bias, padding_mode=padding_mode
    )


def same_conv1d(channels: int, kernel_size: int, dilation: int, padding_mode: PaddingMode = "zeros") -> nn.Conv1d:
    """Make a convolution of odd kernel size that keeps channels and length."""
    padding = (kernel_size - 1) * dilation // 2
    return nn.Conv1d(channels, channels, kernel_size, 1, padding, dilation, padding_mode=padding_mode)


def _check_upsampling(rates: Sequence[int], kernels: Sequence[int], channels: int, output_padding: int | None) -> None:
    check_one_of((None, 0, 1), output_padding=output_padding)
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


def _check_resblocks(kind: str, kernels: Sequence[int], dilations: Sequence[Sequence[int]]) -> None:
    check_one_of(("1", "2"), resblock=kind)
    if not kernels or len(kernels) != len(dilations):
        raise ValueError(
            "resblock_kernel_sizes and resblock_dilation_sizes must have the same length, "
            f"not {len(kernels)} and {len(dilations)}"
        )
    even = [kernel for kernel in kernels if kernel % 2 == 0]
    if even:
        raise ValueError(f"resblock_kernel_sizes must be odd, found {even}")
