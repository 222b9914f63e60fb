"""What a policy attends to: heat maps of its last block, and figures of how wide and how recent its attention is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from torch import Tensor, nn

from zoo.common.ranges import at_least
from zoo.common.report import new_figure
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.runs.folder import run_folder
from zoo.training.callbacks.media import log_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class AttentionMaps(L.Callback):
    """In each validation, draws what the last block attends to and logs its entropy and recency.

    It looks at the first batch of histories that rank zero validates, at the end of the longest piece that fills the
    window. Logged are `val/attention_entropy` (nats, of the query's attention), `val/attention_recent` (mean weight of
    the newer half of the tokens over that of the older half) and `val/attention_latents` (share on the latents). The
    pictures are in `media/`. The policy must be whole on each rank: not for sharded strategies.

    Args:
        histories: of the batch that are looked at; the first is drawn.

    Raises:
        ValueError: when there is none.
    """

    def __init__(self, histories: int = 8) -> None:
        at_least(1, histories=histories)
        self.histories = histories
        self._steps: Steps | None = None

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the first histories."""
        if self._steps is None and "steps" in batch:
            self._steps = Steps(*(field[: self.histories] for field in batch["steps"]))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at them."""
        run_folder(trainer)  # the first call is collective, and a rank may have no histories
        steps, self._steps = self._steps, None
        if steps is None:
            return
        policy: InContextPolicy = pl_module.policy  # type: ignore[assignment]
        weights, latents = attention(policy, steps)
        for key, value in figures(weights, latents).items():
            pl_module.log(f"val/attention_{key}", value, rank_zero_only=True, batch_size=1)
        log_figure(pl_module, "val/attention", draw(weights[0], latents))


@torch.no_grad()
def attention(policy: InContextPolicy, steps: Steps) -> tuple[Tensor, int]:
    """Attention of the last block when the window is full, or else at the end of the histories.

    Returns:
        Weights (B, heads, N, N), float32 on the CPU: how much token n (row) attends to token m; the last token is the
        query. And how many of the first tokens are latents.
    """
    if policy.compressor is None:
        steps = steps.slice(max(0, steps.length - policy.window), steps.length)
    cuts = policy.segments(steps.length)
    if len(cuts) > 1 and cuts[-1] < policy.capacity(True):
        steps = steps.slice(0, steps.length - cuts.pop())
    seen: list[tuple[Tensor, Tensor | None]] = []

    def look(module: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append((given[0], given[1]))

    block: Any = policy.transformer.blocks[-1]
    hook = block.attn.register_forward_pre_hook(look)
    was_training = policy.training
    policy.eval()
    try:
        policy.forward(steps, last_only=True)  # not called: a compiled policy would run past the hook
    finally:
        hook.remove()
        policy.train(was_training)
    x, mask = seen[-1]
    q, k, _ = block.attn.split(x)
    if mask is None:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    scores = (q.float() @ k.float().transpose(2, 3)) / q.shape[-1] ** 0.5
    latents = policy.num_latents if len(cuts) > 1 else 0
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).cpu(), latents


def figures(weights: Tensor, latents: int) -> dict[str, float]:
    """How wide and how recent the query's attention is, means over histories and heads.

    Args:
        weights: (B, heads, N, N), see `attention`.

    Returns:
        `entropy` in nats; `recent`, the mean weight of the newer half of the tokens over that of the older half;
        `latents`, the share on the latents.
    """
    last = weights[:, :, -1]
    older = last.shape[-1] // 2
    ratio = last[..., older:].mean() / last[..., :older].mean() if older else torch.ones(())
    return {
        "entropy": float(-torch.xlogy(last, last).sum(-1).mean()),
        "recent": float(ratio),
        "latents": float(last[..., :latents].sum(-1).mean()),
    }


def draw(weights: Tensor, latents: int) -> Figure:
    """Draw the attention of a history: all tokens (mean over heads), and the query's for each head.

    Args:
        weights: (heads, N, N).
        latents: of the first tokens; a line is drawn behind them.
    """
    figure = new_figure(9.0, 4.5)
    left, right = figure.subplots(1, 2)
    image = left.imshow(weights.mean(0).numpy(), cmap="magma", vmin=0)
    left.set(title="mean over heads", xlabel="attends to token", ylabel="token")
    figure.colorbar(image, ax=left)
    image = right.imshow(weights[:, -1].numpy(), cmap="magma", vmin=0, aspect="auto", interpolation="nearest")
    right.set(title="the query's", xlabel="attends to token", ylabel="head")
    figure.colorbar(image, ax=right)
    for axes in (left, right) if latents else ():
        axes.axvline(latents - 0.5, color="w", linewidth=1)
    return figure
