"""The memory gap: does an agent still know a goal after a time in which nothing reminded it?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.compressed_ad.envs.baselines import oracle_return, random_return
from zoo.compressed_ad.envs.grids import BatchedEnv, GridEnv
from zoo.compressed_ad.rollout import Player


def probe(player: Player, before: Tensor, gap_steps: int) -> Tensor:
    """Keep an agent that has learned from the goal for a while, and score one more episode.

    In the gap its actions are random among those that lead to no goal, so that there is no reward to see. It is at
    least a window long: what the agent then knows of the goal it has from its latents, not from a transition in view.

    Args:
        before: returns (B, episodes) of what it played.
        gap_steps: at least so many steps, rounded up to whole episodes.

    Returns:
        (B, 3) float32 on the CPU: whether the agent reached all goals of its task in some episode before the gap, and
        the returns of the last episode before and of the one after it.

    Raises:
        ValueError: when the gap is shorter than the window, or the environment is no grid.
    """
    envs, window = player.envs, player.policy.window
    if not isinstance(envs, BatchedEnv):
        raise ValueError("the memory gap is for grids, whose goals are known")
    env = envs.env
    if window is not None and gap_steps < window:
        raise ValueError(f"a gap of {gap_steps} steps does not empty the window of {window}: raise gap_steps")
    player.play(-(-gap_steps // env.horizon), aimless=True)
    goals = 1 if env.repeats else env.goals(envs.tasks).shape[1]
    return torch.stack([(before.amax(1) >= goals).float(), before[:, -1], player.play(1)[:, 0]], 1)


def summarise_gap(probed: Tensor, env: GridEnv, tasks: Tensor) -> dict[str, Any]:
    """Means over the pairs that had found the goal; the others have nothing to remember.

    Args:
        probed: (B, 3), see `probe`.
        tasks: (B, F) of the pairs.

    Returns:
        `pairs`, `count` (that had found it), `before`, `after`, `random` and `oracle`: mean returns of these; None
        where there are none.
    """
    found = probed[:, 0] > 0
    figures = {
        "before": probed[found, 1],
        "after": probed[found, 2],
        "random": random_return(env, tasks[found]),
        "oracle": oracle_return(env, tasks[found]),
    }
    means = {name: float(values.double().mean()) if len(values) else None for name, values in figures.items()}
    return {"pairs": len(found), "count": int(found.sum()), **means}
