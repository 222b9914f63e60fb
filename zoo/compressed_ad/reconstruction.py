"""A decoder that tells what happened in the transitions that were compressed, not what their tokens were."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.compressed_ad.compression import ReconstructionDecoder
from zoo.compressed_ad.embedding import REWARDS
from zoo.compressed_ad.histories import Steps


class FieldDecoder(ReconstructionDecoder):
    """Latents back to the fields of transitions: state, action, reward and successor, each as classes.

    Tokens are a moving target, which the embedding may make small; fields are not. A few positions of a segment, drawn
    anew in every training step, cost less than all.

    Args:
        dim: channels of a latent.
        grid_size: rows and columns of the grid.
        num_actions: of the environment.
        positions: transitions of a segment that a training step asks for; all by default.
        depth: layers.
        heads: of attention.
        feedforward: channels between the linear layers; four times `dim` by default.
        dropout: of attention and feedforward.
        max_tokens: positions that can be asked for.

    Raises:
        ValueError: when no position would be asked for.
    """

    def __init__(
        self,
        dim: int = 64,
        grid_size: int = 9,
        num_actions: int = 5,
        positions: int | None = 16,
        depth: int = 1,
        heads: int = 4,
        feedforward: int | None = None,
        dropout: float = 0.1,
        max_tokens: int = 1024,
    ) -> None:
        super().__init__(dim, depth, heads, feedforward, dropout, max_tokens)
        if positions is not None and positions < 1:
            raise ValueError(f"FieldDecoder: positions is at least 1 or null, not {positions}")
        self.positions = positions
        self.sizes = (grid_size, grid_size, num_actions, REWARDS, grid_size, grid_size)
        self.fields = nn.Linear(dim, sum(self.sizes))

    def chosen(self, count: int, seed: int | None, device: torch.device) -> Tensor:
        """Numbers (n,) of the transitions to ask for, out of `count`; all of them without a seed."""
        if seed is None or self.positions is None or self.positions >= count:
            return torch.arange(count, device=device)
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[: self.positions]
        return drawn.sort().values.to(device)

    def field_logits(self, latents: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """Logits (B, N, classes) of row, column, action, reward, next row, next column.

        Args:
            latents: (B, K, dim).
            positions: of the tokens asked for (N,), int64.
        """
        return self.fields(self(latents, positions)).split(self.sizes, -1)

    @staticmethod
    def field_values(steps: Steps) -> tuple[Tensor, ...]:
        """What these logits should tell, each (B, L) int64."""
        return (*steps.states.unbind(-1), steps.actions, steps.rewards.long(), *steps.next_states.unbind(-1))
