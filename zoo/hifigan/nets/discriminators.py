"""HiFi-GAN discriminators: waveforms folded by periods, and waveforms at several scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from zoo.common.checks import check_at_least, check_positive
from zoo.training.adversarial import Discriminator, Output

SLOPE = 0.1
PERIOD_CHANNELS = (32, 128, 512, 1024, 1024)
SCALE_LAYERS = (  # (channels out, kernel, stride, groups, padding)
    (128, 15, 1, 1, 7),
    (128, 41, 2, 4, 20),
    (256, 41, 2, 16, 20),
    (512, 41, 4, 16, 20),
    (1024, 41, 4, 16, 20),
    (1024, 41, 1, 16, 20),
    (1024, 5, 1, 1, 2),
)


class SpectralNorm(nn.Module):
    """Divides a weight by its largest singular value, estimated by one power iteration per training-mode forward.

    PyTorch's parametrisation updates u before v and iterates when it is built; the original's training does neither.
    Source: Miyato et al., 2018, algorithm 1.
    """

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        rows = weight.flatten(1)
        self.register_buffer("_u", F.normalize(rows.new_empty(rows.shape[0]).normal_(), dim=0))
        self.register_buffer("_v", F.normalize(rows.new_empty(rows.shape[1]).normal_(), dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight divided by its estimated spectral norm."""
        with torch.autocast(weight.device.type, enabled=False):
            rows = weight.flatten(1)
            u, v = self._u, self._v
            if self.training:
                with torch.no_grad():
                    v = F.normalize(torch.mv(rows.t(), u), dim=0, eps=1e-12)
                    u = F.normalize(torch.mv(rows, v), dim=0, eps=1e-12)
                    self._v.copy_(v)
                    self._u.copy_(u)
            else:
                # a later training-mode forward writes into the buffers before this graph's backward reads them
                u, v = u.clone(), v.clone()
            return weight / torch.dot(u, torch.mv(rows, v))


def spectral_norm(module: nn.Module) -> nn.Module:
    """Give a layer's weight spectral norm."""
    norm = SpectralNorm(module.weight)  # type: ignore[arg-type]
    return parametrize.register_parametrization(module, "weight", norm, unsafe=True)


def run_convolutions(convs: Iterable[nn.Module], x: Tensor) -> list[Tensor]:
    """Run convolutions with leaky activations one after the other; returns every activation (B, C, ...)."""
    maps = []
    for conv in convs:
        x = F.leaky_relu(conv(x), SLOPE)
        maps.append(x)
    return maps


class ConvolutionStack(nn.Module):
    """Convolutions with leaky activations and a last one to one channel of scores; returns every activation."""

    def __init__(
        self,
        convs: Sequence[nn.Module],
        conv_post: nn.Conv1d | nn.Conv2d,
        norm: Callable[[nn.Module], nn.Module],
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.conv_post = conv_post
        for conv in [*convs, conv_post]:
            norm(conv)

    def forward(self, x: Tensor) -> Output:
        """Score (B, 1, ...); scores are flattened to (B, N), the last feature map is the score map."""
        maps = run_convolutions(self.convs, x)
        scores = self.conv_post(maps[-1])  # (B, 1, ...)
        return scores.flatten(1), [*maps, scores]


class PeriodDiscriminator(ConvolutionStack):
    """Scores a waveform folded into rows of one period; see `MultiPeriodDiscriminator`."""

    def __init__(
        self,
        period: int,
        channel_mult: float,
        channels: Sequence[int],
        every_map: bool,
    ) -> None:
        widths = [max(1, round(width * channel_mult)) for width in channels]
        strides = [3, 3, 3, 3, 1]
        if len(widths) > len(strides):
            raise ValueError(f"channels are of at most {len(strides)} layers, found {list(channels)}")
        convs = [
            nn.Conv2d(before, after, (5, 1), (stride, 1), padding=(2, 0))
            for before, after, stride in zip([1, *widths], widths, strides, strict=False)
        ]
        super().__init__(convs, nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)), parametrizations.weight_norm)
        self.period, self.every_map = period, every_map

    def forward(self, x: Tensor) -> Output:
        """Score waveforms (B, 1, T)."""
        surplus = x.shape[-1] % self.period
        if surplus:
            x = F.pad(x, (0, self.period - surplus), mode="reflect")
        scores, maps = super().forward(x.unflatten(2, (-1, self.period)))  # of (B, 1, T / period, period)
        return scores, maps if self.every_map else maps[1:]


class MultiPeriodDiscriminator(Discriminator):
    """Discriminators of waveforms folded by periods; 41,105,770 parameters at full width, six feature maps each.

    Args:
        periods: row length of each, in samples; primes overlap least.
        channel_mult: width relative to `channels`, the paper's by default.
        channels: of the five layers.
        every_map: return the first layer's map too; Vocos does not.

    Source: HiFi-GAN, section 2.3 (Kong et al., 2020).
    """

    def __init__(
        self,
        periods: Sequence[int] = (2, 3, 5, 7, 11),
        channel_mult: float = 1.0,
        channels: Sequence[int] = PERIOD_CHANNELS,
        every_map: bool = True,
    ) -> None:
        super().__init__()
        check_positive(channel_mult=channel_mult)
        if not periods or min(periods) < 1:
            raise ValueError(f"periods must be positive sample counts, not {list(periods)}")
        self.discriminators = nn.ModuleList(
            PeriodDiscriminator(period, channel_mult, channels, every_map) for period in periods
        )


class ScaleDiscriminator(ConvolutionStack):
    """Scores a waveform by grouped one-dimensional convolutions; see `MultiScaleDiscriminator`.

    Widths are rounded to multiples of four, and the groups of a layer to the largest number that divides its widths.
    """

    def __init__(self, channel_mult: float = 1.0, spectral: bool = False) -> None:
        convs = []
        before = 1
        for channels, kernel, stride, groups, padding in SCALE_LAYERS:
            after = 4 * max(1, round(channels * channel_mult / 4))
            common = math.gcd(before, after)
            divisor = max(number for number in range(1, groups + 1) if common % number == 0)
            convs.append(nn.Conv1d(before, after, kernel, stride, padding=padding, groups=divisor))
            before = after
        norm = spectral_norm if spectral else parametrizations.weight_norm
        super().__init__(convs, nn.Conv1d(before, 1, 3, padding=1), norm)


class MultiScaleDiscriminator(Discriminator):
    """Scale discriminators on the waveform and its averaged halves; 29,618,821 parameters at full width.

    The first one carries spectral norm, the others weight norm.

    Args:
        scales: number of scales, each half the rate of the one before.
        channel_mult: width relative to the paper's.

    Source: HiFi-GAN, section 2.3 (Kong et al., 2020).
    """

    def __init__(self, scales: int = 3, channel_mult: float = 1.0) -> None:
        super().__init__()
        check_positive(channel_mult=channel_mult)
        check_at_least(1, scales=scales)
        self.discriminators = nn.ModuleList(
            ScaleDiscriminator(channel_mult, spectral=index == 0) for index in range(scales)
        )

    def forward(self, x: Tensor) -> list[Output]:
        """Score waveforms (B, 1, T); one score map per scale, eight feature maps each."""
        results = []
        for index, discriminator in enumerate(self.discriminators):
            if index:
                x = F.avg_pool1d(x, kernel_size=4, stride=2, padding=2)  # (B, 1, T // 2 + 1)
            results.append(discriminator(x))
        return results
