"""The memory gap: does an agent still know a goal after a time in which nothing reminded it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from zoo.common.ranges import at_least
from zoo.compressed_ad.envs.grids import Env
from zoo.compressed_ad.evaluation.baselines import oracle_return, random_return
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.rollout import Player


class Gap(NamedTuple):
    """What came of the probe, for each pair of task and seed (B,), on the CPU.

    found: bool, whether the agent reached all goals of the task in some episode before the gap.
    before: float32, return of the last episode before the gap.
    after: float32, return of the one after it.
    """

    found: Tensor
    before: Tensor
    after: Tensor


def memory_gap(
    policy: InContextPolicy,
    env: Env,
    tasks: Tensor,
    seeds: Sequence[int],
    episodes: int,
    gap_steps: int | None = None,
    greedy: bool = False,
    cached: bool = True,
) -> Gap:
    """Let an agent learn, keep it from the goal for a while, and score one more episode.

    In the gap its actions are random among those that lead to no goal, so that there is no reward to see. It is at
    least a window long: what the agent then knows of the goal it has from its latents, not from a transition in view.

    Args:
        tasks: (B, F) int64.
        seeds: (B,).
        episodes: before the gap, at least 1.
        gap_steps: at least so many steps, rounded up to whole episodes; a window by default.

    Returns:
        Figures of each pair; those that did not find the goal before have nothing to remember.

    Raises:
        ValueError: when there is no episode, the gap is shorter than the window, or as in `rollout`.
    """
    at_least(1, episodes=episodes)
    with Player(policy, env, tasks, seeds, greedy, cached) as player:
        return probe(player, player.play(episodes), gap_steps)


def probe(player: Player, before: Tensor, gap_steps: int | None = None) -> Gap:
    """Go on after some episodes with the gap and the episode that is scored.

    Args:
        before: returns (B, episodes) of what it played.

    Raises:
        ValueError: when the gap is shorter than the window.
    """
    env, window = player.envs.env, player.policy.window
    steps = window if gap_steps is None else gap_steps
    if steps < window:
        raise ValueError(f"a gap of {steps} steps does not empty the window of {window}: raise gap_steps")
    player.play(-(-steps // env.horizon), aimless=True)
    goals = 1 if env.repeats else env.goals(player.envs.tasks).shape[1]
    found = before.amax(1) >= goals
    return Gap(found.clone(), before[:, -1].clone(), player.play(1)[:, 0].clone())


def summarise_gap(gap: Gap, env: Env, tasks: Tensor) -> dict[str, Any]:
    """Means over the pairs that had found the goal.

    Args:
        tasks: (B, F) of the pairs.

    Returns:
        `pairs`, `count` (that had found it), `before`, `after`, `random` and `oracle`: mean returns of these; None
        where there are none.
    """
    found = gap.found
    figures = {
        "before": gap.before[found],
        "after": gap.after[found],
        "random": random_return(env, tasks[found]),
        "oracle": oracle_return(env, tasks[found]),
    }
    means = {name: float(values.double().mean()) if len(values) else None for name, values in figures.items()}
    return {"pairs": len(found), "count": int(found.sum()), **means}
