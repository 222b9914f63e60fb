"""The Inception net of the field's FID, which TensorFlow published in 2015; its weights come from the user.

The layers' names are those of torch-fidelity's and pytorch-fid's files (`weights-inception-2015-12-05-6726825d.pth`,
`pt_inception-2015-12-05-6726825d.pth`, Apache-2.0), which are read as they are. Pooling differs from torchvision's net.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.common.safe_load import load_foreign_checkpoint, to_plain_values
from zoo.flow.evaluation.features import FeatureExtractor, with_channels
from zoo.flow.rendering import to_pixels

RESOLUTION = 299  # pixels
DIMS = 2048
CLASSES = 1008  # of the layer after the features, which a file holds too
Kernel = int | tuple[int, int]

_mean = partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1, count_include_pad=False)  # TensorFlow's leaves out
_max = partial(F.max_pool2d, kernel_size=3, stride=1, padding=1)
_halving = partial(F.max_pool2d, kernel_size=3, stride=2)


class Layer(NamedTuple):
    """A convolution of a branch; with halves its outputs are those of two convolutions beside each other."""

    name: str
    channels: int
    kernel: Kernel = 1
    stride: int = 1
    halves: bool = False


class Convolution(nn.Module):
    """Convolution, batch norm of fixed statistics, ReLU."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: Kernel, stride: int = 1, padded: bool = True
    ) -> None:
        super().__init__()
        sides = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (sides[0] // 2, sides[1] // 2) if padded and stride == 1 else 0
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Filter (B, C, H, W)."""
        return F.relu(self.bn(self.conv(x)))


class Mixed(nn.Module):
    """Branches beside each other, the last of which begins with a pooling.

    Args:
        branches: layers of each; that of the pooling may be empty.
        pool: of the last branch.
    """

    def __init__(self, in_channels: int, branches: list[list[Layer]], pool: Any) -> None:
        super().__init__()
        self.branches, self.pool = branches, pool
        for branch in branches:
            width = in_channels
            for name, channels, kernel, stride, halves in branch:
                if halves:
                    self.add_module(f"{name}a", Convolution(width, channels, (1, 3)))
                    self.add_module(f"{name}b", Convolution(width, channels, (3, 1)))
                else:
                    self.add_module(name, Convolution(width, channels, kernel, stride))
                width = channels

    def forward(self, x: Tensor) -> Tensor:
        """Join what the branches give of (B, C, H, W)."""
        outputs = []
        for number, branch in enumerate(self.branches):
            h = self.pool(x) if number == len(self.branches) - 1 else x
            for layer in branch:
                names = [f"{layer.name}a", f"{layer.name}b"] if layer.halves else [layer.name]
                h = torch.cat([self.get_submodule(name)(h) for name in names], dim=1)
            outputs.append(h)
        return torch.cat(outputs, dim=1)


def _small(in_channels: int, pooled: int) -> Mixed:
    wide = [Layer("branch5x5_1", 48), Layer("branch5x5_2", 64, 5)]
    deep = [Layer("branch3x3dbl_1", 64), Layer("branch3x3dbl_2", 96, 3), Layer("branch3x3dbl_3", 96, 3)]
    return Mixed(in_channels, [[Layer("branch1x1", 64)], wide, deep, [Layer("branch_pool", pooled)]], _mean)


def _seven(channels: int) -> Mixed:
    row, column = (1, 7), (7, 1)
    wide = [Layer("branch7x7_1", channels), Layer("branch7x7_2", channels, row), Layer("branch7x7_3", 192, column)]
    deep = [
        Layer("branch7x7dbl_1", channels),
        Layer("branch7x7dbl_2", channels, column),
        Layer("branch7x7dbl_3", channels, row),
        Layer("branch7x7dbl_4", channels, column),
        Layer("branch7x7dbl_5", 192, row),
    ]
    return Mixed(768, [[Layer("branch1x1", 192)], wide, deep, [Layer("branch_pool", 192)]], _mean)


def _last(in_channels: int, pool: Any) -> Mixed:
    wide = [Layer("branch3x3_1", 384), Layer("branch3x3_2", 384, halves=True)]
    deep = [Layer("branch3x3dbl_1", 448), Layer("branch3x3dbl_2", 384, 3), Layer("branch3x3dbl_3", 384, halves=True)]
    return Mixed(in_channels, [[Layer("branch1x1", 320)], wide, deep, [Layer("branch_pool", 192)]], pool)


class FIDInception(FeatureExtractor):
    """Features (B, 2048) that the field's FID compares: of 8-bit images, brought to 299 x 299 as TensorFlow 1 does.

    Source: Heusel et al., "GANs Trained by a Two Time-Scale Update Rule" (2017); the net is that of
    `inception-2015-12-05.tgz`, its patches are those that torch-fidelity's `inception-v3-compat` documents.
    """

    dims = DIMS

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(3, 32, 3, 2)
        self.Conv2d_2a_3x3 = Convolution(32, 32, 3, padded=False)
        self.Conv2d_2b_3x3 = Convolution(32, 64, 3)
        self.Conv2d_3b_1x1 = Convolution(64, 80, 1)
        self.Conv2d_4a_3x3 = Convolution(80, 192, 3, padded=False)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _small(192, 32), _small(256, 64), _small(288, 64)
        deep = [Layer("branch3x3dbl_1", 64), Layer("branch3x3dbl_2", 96, 3), Layer("branch3x3dbl_3", 96, 3, 2)]
        self.Mixed_6a = Mixed(288, [[Layer("branch3x3", 384, 3, 2)], deep, []], _halving)
        self.Mixed_6b, self.Mixed_6c = _seven(128), _seven(160)
        self.Mixed_6d, self.Mixed_6e = _seven(160), _seven(192)
        deep = [
            Layer("branch7x7x3_1", 192),
            Layer("branch7x7x3_2", 192, (1, 7)),
            Layer("branch7x7x3_3", 192, (7, 1)),
            Layer("branch7x7x3_4", 192, 3, 2),
        ]
        self.Mixed_7a = Mixed(768, [[Layer("branch3x3_1", 192), Layer("branch3x3_2", 320, 3, 2)], deep, []], _halving)
        self.Mixed_7b, self.Mixed_7c = _last(1280, _mean), _last(2048, _max)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, 2048) of images (B, C, H, W), float in [-1, 1]; grey is repeated."""
        pixels = torch.from_numpy(to_pixels(with_channels(images, 3))).permute(0, 3, 1, 2)
        x = (resized_as_tensorflow(pixels.to(images), RESOLUTION) - 128) / 128  # (B, 3, 299, 299)
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(_halving(x)))
        x = _halving(x)  # (B, 192, 35, 35)
        for name, block in self.named_children():
            if name.startswith("Mixed"):
                x = block(x)
        return x.mean(dim=(2, 3))


def resized_as_tensorflow(x: Tensor, side: int) -> Tensor:
    """Images (B, C, H, W) as squares by TensorFlow 1's bilinear filter: not antialiased, corners meet."""
    for axis in (3, 2):
        size = x.shape[axis]
        places = torch.arange(side, dtype=x.dtype, device=x.device) * (size / side)
        low = places.long()
        high = (low + 1).clamp(max=size - 1)
        share = (places - low).reshape(-1, *(1,) * (3 - axis))
        first = x.index_select(axis, low)
        x = first + (x.index_select(axis, high) - first) * share
    return x


def load_fid_inception(path: Path) -> FIDInception:
    """Build the net, in evaluation mode on the CPU, with the user's weights, of which nothing is executed.

    Raises:
        ValueError: when the file's tensors are not this net's.
    """
    content: Any = to_plain_values(load_foreign_checkpoint(path))
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: expected tensors by name, found {type(content).__name__}")
    state = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    after = {"fc.weight": (CLASSES, DIMS), "fc.bias": (CLASSES,)}
    state = {key: value for key, value in state.items() if tuple(value.shape) != after.get(key)}
    net = FIDInception()
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"{path} does not fit the Inception of the FID: {' '.join(str(error).split())[:300]}"
        ) from error
    return net.eval().requires_grad_(False)
