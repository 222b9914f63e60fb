"""Discriminator of mel images, for the autoencoder's adversarial training."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.common.checks import check_at_least
from zoo.training.adversarial import Discriminator, Output

SLOPE = 0.2  # pix2pix
MAX_WIDTH = 8  # times the base width


class PatchDiscriminator(Discriminator):
    """Scores overlapping patches of a mel image.

    With three layers a score sees 70 x 70 pixels. Weights are normalised (weight norm), activations are not: scores do
    not depend on the other items of a batch.

    Args:
        channels: width of the first layer; each further one doubles it, up to eight times.
        layers: convolutions with stride 2; both axes need at least 2 ** (layers + 2) pixels.

    Source: Isola et al., "Image-to-Image Translation with Conditional Adversarial Networks" (2017), appendix 6.1.2.
    """

    def __init__(self, channels: int = 64, layers: int = 3) -> None:
        super().__init__()
        check_at_least(1, channels=channels, layers=layers)
        widths = [channels * min(2**index, MAX_WIDTH) for index in range(layers + 1)]
        strides = [2] * layers + [1]
        self.convs = nn.ModuleList(
            parametrizations.weight_norm(nn.Conv2d(before, width, 4, stride, padding=1))
            for before, width, stride in zip([1, *widths], widths, strides, strict=False)
        )
        self.out = parametrizations.weight_norm(nn.Conv2d(widths[-1], 1, 4, padding=1))

    def forward(self, x: Tensor) -> list[Output]:
        """Score log-mels (B, 1, F, n_mels): one (scores (B, N), feature maps)."""
        maps = []
        for conv in self.convs:
            x = nn.functional.leaky_relu(conv(x), SLOPE)  # (B, C, F / 2^i, n_mels / 2^i)
            maps.append(x)
        x = self.out(x)
        maps.append(x)
        return [(x.flatten(1), maps)]
