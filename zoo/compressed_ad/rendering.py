"""Pictures of a policy in training: what it attends to, what its latents keep, how it learns in context and acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.common.reports import new_figure
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.baselines import oracle_return, random_return
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.nets.compression import FieldDecoder
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FIELDS = ("row", "column", "action", "reward", "next row", "next column")
ROOM, MARGIN = 160, 6  # pixels of a room in an animation, and around it
LINE, FLOOR, TRAIL, AGENT, REWARDED = (200, 200, 200), (255, 255, 255), (198, 219, 239), (33, 113, 181), (35, 139, 69)
GOALS = ((253, 141, 60), (158, 154, 200))  # the first one (key), the second one (door)


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
    right.set(title="the query's", xlabel="attends to token", ylabel="head", yticks=range(len(weights)))
    figure.colorbar(image, ax=right)
    for axes in (left, right) if latents else ():
        axes.axvline(latents - 0.5, color="w", linewidth=1)
    return figure


@torch.no_grad()
def reconstruction(policy: InContextPolicy, steps: Steps) -> Figure:
    """Draw a history, what the decoder gives back of it from the latents alone, and how far that is off.

    A `FieldDecoder` gives back the fields of the transitions, drawn as shares of their largest values; a plain decoder
    the tokens.

    Args:
        policy: with compressor and decoder.
        steps: (B, L), no longer than the first compression; the first history is drawn.
    """
    decoder, (tokens, steps, latents) = policy.decoder, policy.compress(None, steps)
    assert decoder is not None
    positions = torch.arange(steps.length, device=tokens.device)
    names: Sequence[str] = ()
    if isinstance(decoder, FieldDecoder):
        names, largest = FIELDS, torch.tensor(decoder.sizes) - 1
        classes = torch.stack([logits.argmax(-1) for logits in decoder.field_logits(latents, positions)], -1)
        target, found = (each[0].cpu() / largest for each in (torch.stack(decoder.field_values(steps), -1), classes))
    else:
        target, found = (each[0].float().cpu() for each in (tokens, decoder(latents, positions)))
    figure, reach = new_figure(8.0, 6.0), float(target.abs().max())
    shown = (("history", target), ("reconstructed from the latents", found), ("difference", found - target))
    for axes, (title, values) in zip(figure.subplots(3, 1, sharex=True), shown, strict=True):
        image = axes.imshow(values.T, aspect="auto", interpolation="nearest", cmap="coolwarm", vmin=-reach, vmax=reach)
        axes.set(title=title, ylabel="" if names else "channel")
        axes.set_yticks(range(len(names)), names) if names else None
        figure.colorbar(image, ax=axes)
    axes.set_xlabel("transition")
    return figure


def learning_curve(env: Env, tasks: Tensor, returns: Tensor) -> Figure:
    """Draw what a frozen policy earns episode after episode, beside who knows the task and who acts at random.

    Args:
        tasks: (B, F) int64, on the CPU.
        returns: (B, episodes), on the CPU; mean and middle 80 % are drawn.
    """
    figure = new_figure(6.5, 4.0)
    axes = figure.subplots()
    episodes, (low, high) = range(1, returns.shape[1] + 1), np.quantile(returns, (0.1, 0.9), axis=0)
    axes.axhline(float(oracle_return(env, tasks).mean()), color="0.3", linestyle="--", linewidth=1, label="oracle")
    axes.plot(episodes, returns.mean(0), marker=".", label=f"policy, mean of {len(returns)}")
    axes.fill_between(episodes, low, high, alpha=0.2, linewidth=0, label="middle 80 %")
    axes.axhline(float(random_return(env, tasks).mean()), color="0.3", linestyle=":", linewidth=1, label="random")
    axes.set(xlabel="episode", ylabel="return", title=f"learning in context, {env.name}")
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def episode_frames(env: GridEnv, tasks: Tensor, steps: Steps) -> list[np.ndarray]:
    """Animate the first of some episodes (above) and the last (below), a room for each task.

    Goals are orange (a second one violet); the agent is blue, and green in a step that is rewarded.

    Args:
        tasks: (B, F) int64, on the CPU.
        steps: (B, L), on the CPU: whole episodes.

    Returns:
        A frame (H, W, 3) uint8 for the start and for each step of an episode.
    """
    ends = (steps.slice(0, env.horizon), steps.slice(steps.length - env.horizon, None))
    rooms = list(enumerate(env.goals(tasks)))
    return [
        np.concatenate([np.concatenate([_room(env, goals, end, row, time) for row, goals in rooms], 1) for end in ends])
        for time in range(env.horizon + 1)
    ]


def _room(env: GridEnv, goals: Tensor, steps: Steps, row: int, time: int) -> np.ndarray:
    """A task's room after some steps of an episode, with a margin."""
    size = max(4, ROOM // env.grid_size)
    pixels = np.full((env.grid_size * size + 1, env.grid_size * size + 1, 3), FLOOR, dtype=np.uint8)

    def fill(cell: Tensor, colour: tuple[int, int, int], margin: int = 0) -> None:
        top, left = (int(place) * size + margin for place in cell)
        pixels[top : top + size + 1 - 2 * margin, left : left + size + 1 - 2 * margin] = colour

    way = torch.cat([steps.states[row], steps.next_states[row, -1:]])  # (horizon + 1, 2)
    for cell in way[:time]:
        fill(cell, TRAIL)
    for goal, colour in zip(goals, GOALS, strict=False):
        fill(goal, colour)
    pixels[::size] = pixels[:, ::size] = LINE
    fill(way[time], REWARDED if time and steps.rewards[row, time - 1] > 0 else AGENT, size // 4)
    return np.pad(pixels, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), constant_values=255)
