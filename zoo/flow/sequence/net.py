"""A transformer that predicts the flow of feature sequences under a condition, and the scale that it works on."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.blocks import maybe_checkpointed
from zoo.flow.nets.transformer import ROTARY_BASE, Block, Modulated, modulate
from zoo.flow.nets.velocity import TimeEmbedding, VelocityNet, expand_time

LEAST_DEVIATION = 0.01  # of the mean deviation: what a bin that never changes is divided by


class SequenceNet(nn.Module):
    """Velocity (or data, or noise) of a feature sequence, given a condition of the same length.

    Pre-norm blocks of attention with rotary positions and a feed-forward layer, each scaled, shifted and gated by the
    time; the gates and the last layer start at zero. Positions are relative, so any length can be computed. Frames
    beyond an item's length neither enter the others nor come out other than zero.

    Args:
        channels: bins of a frame of the sequence.
        condition_channels: bins of a frame of the condition.
        dim: width of the blocks, a multiple of twice `heads`.
        layers: number of blocks.
        heads: of attention.
        hidden_mult: width of the feed-forward layers in multiples of `dim`.
        front_kernel: frames that the first layer sees, odd; 1 for each frame by itself.
        dropout: in training, after attention and feed-forward layers.
        time_scale: factor on the time before its sinusoids.
        gradient_checkpointing: compute blocks again in the backward pass instead of keeping their activations.

    Source: Peebles and Xie, "Scalable Diffusion Models with Transformers" (2023), section 3.2 (adaLN-Zero); Su et al.,
    "RoFormer" (2021), equation 34.
    """

    def __init__(
        self,
        channels: int,
        condition_channels: int,
        dim: int = 256,
        layers: int = 6,
        heads: int = 4,
        hidden_mult: int = 4,
        front_kernel: int = 1,
        dropout: float = 0.0,
        time_scale: float = 1000.0,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if dim % (2 * heads):
            raise ValueError(f"dim is a multiple of twice the heads, which dim {dim} and heads {heads} are not")
        if front_kernel < 1 or front_kernel % 2 == 0:
            raise ValueError(f"front_kernel is odd and at least 1, not {front_kernel}")
        self.channels = channels
        self.condition_channels = condition_channels
        self.gradient_checkpointing = gradient_checkpointing
        self.time_embedding = TimeEmbedding(dim, time_scale)
        self.null_condition = nn.Parameter(torch.zeros(condition_channels))
        self.front = nn.Conv1d(channels + condition_channels, dim, front_kernel, padding=front_kernel // 2)
        self.rotary = Rotary(dim // heads)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden_mult, dropout) for _ in range(layers))
        self.norm = Modulated(dim, 2)
        self.tail = nn.Linear(dim, channels)
        for weight in self.tail.parameters():
            nn.init.zeros_(weight)

    def forward(
        self,
        x: Tensor,
        t: Tensor | float,
        condition: Tensor,
        lengths: Tensor | None = None,
        given: Tensor | None = None,
    ) -> Tensor:
        """Predict (B, channels, T), zero beyond the lengths.

        Args:
            x: points on the path (B, channels, T), float.
            t: flow time (B,), (1,) or a number, 0 (noise) to 1 (data).
            condition: (B, condition_channels, T), float.
            lengths: frames of each item (B,), 1 to T; None for T.
            given: (B,), False or at most 0 where the learned null condition takes the condition's place; None for none.
        """
        self._check(x, condition)
        if given is not None:
            null = self.null_condition.to(condition.dtype)[None, :, None]
            condition = torch.where((given > 0)[:, None, None], condition, null)
        joined = torch.cat([x, condition], dim=1)  # (B, channels + condition_channels, T)
        mask = None if lengths is None else valid_frames(lengths, x.shape[2])
        if mask is not None:
            joined = joined.masked_fill(~mask[:, None], 0)
        h = self.front(joined).transpose(1, 2).to(x.dtype)  # under autocast the residual stream stays float32
        time = functional.silu(self.time_embedding(expand_time(t, x)))
        positions = self.rotary(h)  # (T, D / 2) twice
        attended = None if mask is None else mask[:, None, None]
        for block in self.blocks:
            h = maybe_checkpointed(self.gradient_checkpointing, block, h, time, positions, attended)
        shift, scale = self.norm(time)
        output = self.tail(modulate(h, shift, scale)).transpose(1, 2)  # (B, channels, T)
        return output if mask is None else output.masked_fill(~mask[:, None], 0)

    def _check(self, x: Tensor, condition: Tensor) -> None:
        expected = (len(x), self.condition_channels, x.shape[-1])
        if x.dim() != 3 or x.shape[1] != self.channels or condition.shape != expected:
            raise ValueError(
                f"expected x (B, {self.channels}, T) and a condition (B, {self.condition_channels}, T), found "
                f"{tuple(x.shape)} and {tuple(condition.shape)}"
            )


class Rotary(nn.Module):
    """Cosines and sines of rotary positions.

    Args:
        head_dim: width of a head, even.
    """

    frequencies: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self.register_buffer("frequencies", ROTARY_BASE**-exponents, persistent=False)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (T, head_dim / 2) for (B, T, dim), float32 whatever the net computes in."""
        angles = torch.outer(torch.arange(h.shape[1], device=h.device).float(), self.frequencies.float())
        return angles.cos(), angles.sin()


def valid_frames(lengths: Tensor, frames: int) -> Tensor:
    """Mask (B, frames), True where a frame lies within its item's length (B,)."""
    return torch.arange(frames, device=lengths.device) < lengths[:, None]


class Conditioned(VelocityNet):
    """A sequence net with its condition filled in, as a net of one class: label 1 has the condition, 0 and -1 do not.

    So guidance and fields written for labels serve conditions as well.

    Args:
        net: whose condition is filled in.
        condition: (B, condition_channels, T), float.
        lengths: frames of each item (B,); None for T.
    """

    def __init__(self, net: SequenceNet, condition: Tensor, lengths: Tensor | None = None) -> None:
        super().__init__()
        self.sample_shape = (net.channels, condition.shape[2])
        self.num_classes = 1
        self.net = net
        self.condition = condition
        self.lengths = lengths

    def forward(self, x: Tensor, t: Tensor | float, label: Tensor | None = None) -> Tensor:
        """Predict; see `VelocityNet.forward`. A batch of several times B rows repeats the conditions in order."""
        copies = len(x) // len(self.condition)
        lengths = None if self.lengths is None else self.lengths.repeat(copies)
        return self.net(x, t, self.condition.repeat(copies, 1, 1), lengths, label)


class Normaliser(nn.Module):
    """Brings each bin of a sequence and of its condition to zero mean and unit deviation; saved with the weights.

    Args:
        channels: bins of a frame of the sequence.
        condition_channels: bins of a frame of the condition.
    """

    mean: Tensor
    deviation: Tensor
    condition_mean: Tensor
    condition_deviation: Tensor
    frames: Tensor

    def __init__(self, channels: int, condition_channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.condition_channels = condition_channels
        for prefix, size in (("", channels), ("condition_", condition_channels)):
            self.register_buffer(f"{prefix}mean", torch.zeros(size))
            self.register_buffer(f"{prefix}deviation", torch.ones(size))
        self.register_buffer("frames", torch.zeros((), dtype=torch.int64))

    @property
    def is_fitted(self) -> bool:
        """Whether it has statistics."""
        return bool(self.frames > 0)

    def fit(self, examples: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take the statistics of sequences (channels, T) with their conditions (condition_channels, T)."""
        sums = [torch.zeros(2, size, dtype=torch.float64) for size in (self.channels, self.condition_channels)]
        frames = 0
        for example in examples:
            for total, sequence in zip(sums, example, strict=True):
                if sequence.shape != (total.shape[1], example[0].shape[1]):
                    raise ValueError(
                        f"expected {self.channels} and {self.condition_channels} bins (model.normaliser) of as many "
                        f"frames, found {' and '.join(str(tuple(each.shape)) for each in example)}"
                    )
                values = sequence.double().cpu()
                total += torch.stack([values.sum(dim=1), values.square().sum(dim=1)])
            frames += example[0].shape[1]
        if not frames:
            raise ValueError("no example to take the statistics of the features from")
        for prefix, total in zip(("", "condition_"), sums, strict=True):
            mean, square = total / frames
            deviation = (square - mean.square()).clamp(min=0).sqrt()
            if not bool(torch.isfinite(deviation).all()) or not bool(deviation.mean() > 0):
                kind = "conditions" if prefix else "sequences"
                raise ValueError(f"the {kind} of the training set are constant or not finite: look at its files")
            getattr(self, f"{prefix}mean").copy_(mean)
            getattr(self, f"{prefix}deviation").copy_(deviation.clamp(min=LEAST_DEVIATION * float(deviation.mean())))
        self.frames.fill_(frames)

    def normalise(self, sequence: Tensor) -> Tensor:
        """Sequences (B, channels, T) as the net sees them."""
        return (sequence - self.mean[:, None]) / self.deviation[:, None]

    def normalise_condition(self, condition: Tensor) -> Tensor:
        """Conditions (B, condition_channels, T) as the net sees them."""
        return (condition - self.condition_mean[:, None]) / self.condition_deviation[:, None]

    def restore(self, sequence: Tensor) -> Tensor:
        """Sequences (B, channels, T) of the net in their own units."""
        return sequence * self.deviation[:, None] + self.mean[:, None]
