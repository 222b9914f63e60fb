"""The memory gap: an agent's return after a time without reward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.compressed_ad.envs.baselines import oracle_return, random_return
from zoo.compressed_ad.envs.grids import BatchedGrids, GridEnv
from zoo.compressed_ad.rollout import ContextPlayer


def probe_memory(player: ContextPlayer, before: Tensor, gap_steps: int) -> Tensor:
    """Let agents avoid the goals for a while, and score one more episode.

    After a gap of at least a window, what the agents know of the goal is in their latents.

    Args:
        player: agents in grids.
        before: returns (B, episodes) so far.
        gap_steps: at least so many steps, rounded up to whole episodes.

    Returns:
        (B, 3) float32 on the CPU: whether the agent reached all goals of its task in some episode before the gap, and
        the returns of the last episode before and of the one after it.
    """
    envs = player.envs
    assert isinstance(envs, BatchedGrids)
    env = envs.env
    player.run_episodes(-(-gap_steps // env.horizon), avoid_goals=True)
    goals = 1 if env.repeats else env.goals(envs.tasks).shape[1]
    return torch.stack([(before.amax(1) >= goals).float(), before[:, -1], player.run_episodes(1)[:, 0]], 1)


def summarise_gap(probes: Tensor, env: GridEnv, tasks: Tensor) -> dict[str, Any]:
    """Return means over the pairs that had found the goal, None where there are none.

    Args:
        probes: (B, 3), see `probe_memory`.
        tasks: (B, F) of the pairs.
    """
    informed = probes[:, 0] > 0
    figures = {
        "before": probes[informed, 1],
        "after": probes[informed, 2],
        "random": random_return(env, tasks[informed]),
        "oracle": oracle_return(env, tasks[informed]),
    }
    means = {name: float(values.double().mean()) if len(values) else None for name, values in figures.items()}
    return {"pairs": len(informed), "count": int(informed.sum()), **means}
