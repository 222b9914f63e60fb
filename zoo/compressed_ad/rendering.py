"""Figures of a policy in training: attention, reconstruction, learning curve, episodes."""

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
GRID_PIXELS, MARGIN = 160, 6  # of a grid in an animation, and around it
LINE, FLOOR, TRAIL, AGENT, REWARDED = (200, 200, 200), (255, 255, 255), (198, 219, 239), (33, 113, 181), (35, 139, 69)
GOALS = ((253, 141, 60), (158, 154, 200))  # the first one (key), the second one (door)


@torch.no_grad()
def attention_weights(policy: InContextPolicy, steps: Steps) -> tuple[Tensor, int]:
    """Return the attention of the last block when the window is full, or else at the end of the histories.

    Returns:
        Weights (B, heads, N, N), float32 on the CPU, of token n (row) for token m; the last token is the query. And how
        many of the first tokens are latents.
    """
    if policy.compressor is None:
        steps = steps.slice(max(0, steps.length - policy.window), steps.length)
    cuts = policy.segments(steps.length)
    if len(cuts) > 1 and cuts[-1] < policy.capacity(True):
        steps = steps.slice(0, steps.length - cuts.pop())
    inputs: list[tuple[Tensor, Tensor | None]] = []

    def record(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs.append((arguments[0], arguments[1]))

    block: Any = policy.transformer.blocks[-1]
    hook = block.attn.register_forward_pre_hook(record)
    was_training = policy.training
    policy.eval()
    try:
        policy.forward(steps, last_only=True)  # not called: a compiled policy would not run the hook
    finally:
        hook.remove()
        policy.train(was_training)
    x, mask = inputs[-1]
    q, k, _ = block.attn.split(x)
    if mask is None:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    scores = (q.float() @ k.float().transpose(2, 3)) / q.shape[-1] ** 0.5
    latents = policy.num_latents if len(cuts) > 1 else 0
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).cpu(), latents


def attention_figure(weights: Tensor, latents: int) -> Figure:
    """Plot the attention (heads, N, N) of a history: all tokens (mean over heads), and the query's for each head.

    Args:
        latents: of the first tokens, behind which a line is drawn.
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
def reconstruction_figure(policy: InContextPolicy, steps: Steps) -> Figure:
    """Plot a history, its reconstruction by the decoder from the latents alone, and their difference.

    Fields are shown as shares of their largest values for a `FieldDecoder`, tokens for a plain decoder.

    Args:
        steps: (B, L), no longer than the first compression; the first history is shown.
    """
    decoder, (tokens, steps, latents) = policy.decoder, policy.compress(None, steps)
    assert decoder is not None
    positions = torch.arange(steps.length, device=tokens.device)
    names: Sequence[str] = ()
    if isinstance(decoder, FieldDecoder):
        names, largest = FIELDS, torch.tensor(decoder.sizes) - 1
        classes = torch.stack([logits.argmax(-1) for logits in decoder.field_logits(latents, positions)], -1)
        target, output = (each[0].cpu() / largest for each in (torch.stack(decoder.field_values(steps), -1), classes))
    else:
        target, output = (each[0].float().cpu() for each in (tokens, decoder(latents, positions)))
    figure, reach = new_figure(8.0, 6.0), float(target.abs().max())
    panels = (("history", target), ("reconstructed from the latents", output), ("difference", output - target))
    for axes, (title, values) in zip(figure.subplots(3, 1, sharex=True), panels, strict=True):
        image = axes.imshow(values.T, aspect="auto", interpolation="nearest", cmap="coolwarm", vmin=-reach, vmax=reach)
        axes.set(title=title, ylabel="" if names else "channel")
        axes.set_yticks(range(len(names)), names) if names else None
        figure.colorbar(image, ax=axes)
    axes.set_xlabel("transition")
    return figure


def learning_curve(env: Env, tasks: Tensor, returns: Tensor) -> Figure:
    """Plot the mean and middle 80 % of returns (B, episodes), with oracle and random returns of tasks (B, F)."""
    tasks, rows = tasks.unique(dim=0, return_inverse=True)  # outside grids random returns are played
    oracle, random = (float(values(env, tasks)[rows].mean()) for values in (oracle_return, random_return))
    figure = new_figure(6.5, 4.0)
    axes = figure.subplots()
    episodes, (low, high) = range(1, returns.shape[1] + 1), np.quantile(returns, (0.1, 0.9), axis=0)
    axes.axhline(oracle, color="0.3", linestyle="--", linewidth=1, label="oracle")
    axes.plot(episodes, returns.mean(0), marker=".", label=f"policy, mean of {len(returns)}")
    axes.fill_between(episodes, low, high, alpha=0.2, linewidth=0, label="middle 80 %")
    axes.axhline(random, color="0.3", linestyle=":", linewidth=1, label="random")
    axes.set(xlabel="episode", ylabel="return", title=f"learning in context, {env.name}")
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def episode_frames(env: GridEnv, tasks: Tensor, steps: Steps) -> list[np.ndarray]:
    """Render the first of some episodes (above) and the last (below), a grid for each task.

    Goals are orange (a second one violet); the agent is blue, and green in a step that is rewarded.

    Args:
        steps: (B, L), on the CPU: whole episodes of tasks (B, F).

    Returns:
        A frame (H, W, 3) uint8 for the start and for each step of an episode.
    """
    ends = (steps.slice(0, env.horizon), steps.slice(steps.length - env.horizon, None))
    goals = list(enumerate(env.goals(tasks)))
    return [
        np.concatenate([np.concatenate([_grid(env, cells, end, row, time) for row, cells in goals], 1) for end in ends])
        for time in range(env.horizon + 1)
    ]


def _grid(env: GridEnv, goals: Tensor, steps: Steps, row: int, time: int) -> np.ndarray:
    """Render a task's grid after some steps of an episode, with a margin."""
    size = max(4, GRID_PIXELS // env.grid_size)
    pixels = np.full((env.grid_size * size + 1, env.grid_size * size + 1, 3), FLOOR, dtype=np.uint8)

    def fill(cell: Tensor, colour: tuple[int, int, int], margin: int = 0) -> None:
        top, left = (int(number) * size + margin for number in cell)
        pixels[top : top + size + 1 - 2 * margin, left : left + size + 1 - 2 * margin] = colour

    path = torch.cat([steps.states[row], steps.next_states[row, -1:]])  # (horizon + 1, 2)
    for cell in path[:time]:
        fill(cell, TRAIL)
    for goal, colour in zip(goals, GOALS, strict=False):
        fill(goal, colour)
    pixels[::size] = pixels[:, ::size] = LINE
    fill(path[time], REWARDED if time and steps.rewards[row, time - 1] > 0 else AGENT, size // 4)
    return np.pad(pixels, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), constant_values=255)
