"""Summaries of returns: means with intervals over tasks and seeds, regret, and episodes to reach a level."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from zoo.common.reports import replace_non_finite
from zoo.common.statistics import LEVEL, RESAMPLES

AVERAGED = 20  # episodes of a moving average
LAST = 50  # episodes of the final level
SHARES = (0.5, 0.75, 0.9)  # of the final level
MAX_WEIGHTS = 4_000_000  # sampled at once, which bounds the memory of large sets


def bootstrap_groups(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Compute 95 % intervals of the mean of values (groups, members, N) by resampling groups, and in each its members.

    Returns:
        Lower and upper ends (N,); NaN for a single value.

    Source: Davison and Hinkley, "Bootstrap methods and their application" (1997), section 3.8.
    """
    groups, members, count = values.shape
    if groups * members < 2:
        return np.full(count, math.nan), np.full(count, math.nan)
    flat = values.reshape(groups * members, count).astype(np.float64)
    rng, batch = np.random.default_rng(seed), max(1, MAX_WEIGHTS // len(flat))
    means = []
    for first in range(0, resamples, batch):
        sampled = rng.multinomial(groups, [1 / groups] * groups, size=min(batch, resamples - first))
        weights = rng.multinomial(sampled * members, [1 / members] * members)
        means.append(weights.reshape(len(sampled), -1) @ flat / (groups * members))
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def confidence_interval(values: np.ndarray) -> dict[str, float | None]:
    """Return mean and interval of values (tasks, seeds); ends are None for a single pair."""
    low, high = bootstrap_groups(values[..., None])
    return replace_non_finite(
        {"mean": float(values.mean(dtype=np.float64)), "low": float(low[0]), "high": float(high[0])}
    )


def last_episodes(episodes: int) -> int:
    """Return the number of episodes of the final level: the last 50, but at most half of all."""
    return min(LAST, (episodes + 1) // 2)


def moving_average(curve: np.ndarray) -> np.ndarray:
    """Return the mean (N - n + 1,) over n episodes up to each; n is 20, but at most a fifth of all."""
    width = min(AVERAGED, max(1, len(curve) // 5))
    return np.convolve(curve, np.full(width, 1 / width), mode="valid")


def episodes_to_reach(curve: np.ndarray, level: float) -> int | None:
    """Return the episodes until the moving average of a curve (N,) is at a level; None when it never is."""
    means = moving_average(curve)
    reached = np.flatnonzero(means >= level)
    return None if not len(reached) else int(reached[0]) + len(curve) - len(means) + 1


def speed(curve: np.ndarray, final: float) -> dict[str, int | None]:
    """Return `episodes_to_reach` of shares of a final level, by share in percent; none for a level not above 0."""
    return {f"{share:.0%}": episodes_to_reach(curve, share * final) for share in SHARES} if final > 0 else {}


def summarise(returns: np.ndarray, random: np.ndarray, oracle: np.ndarray) -> dict[str, Any]:
    """Summarise the returns (tasks, seeds, episodes) of an evaluation, with random and oracle returns (tasks,).

    Returns:
        JSON values: `mean` of all episodes, `first` and `last` (see `last_episodes`) and `regret` against the oracle,
        each with `low` and `high`; `gain`, `last` between random (0) and oracle (1); `episodes_to_reach` shares of
        `last`; `curve` of the episodes.
    """
    episodes = returns.shape[2]
    tail = last_episodes(episodes)
    means = returns.mean(axis=(0, 1), dtype=np.float64)
    low, high = bootstrap_groups(returns)
    last = returns[:, :, episodes - tail :].mean(2, dtype=np.float64)
    reach = float(oracle.mean() - random.mean())
    level_mean = float(last.mean())
    return {
        "mean": confidence_interval(returns.mean(2, dtype=np.float64)),
        "first": confidence_interval(returns[:, :, 0]),
        "last": confidence_interval(last),
        "last_episodes": tail,
        "random": float(random.mean()),
        "oracle": replace_non_finite(float(oracle.mean())),
        "regret": confidence_interval(oracle[:, None] - returns.mean(2, dtype=np.float64)),
        "gain": replace_non_finite((level_mean - float(random.mean())) / reach) if reach else None,
        "episodes_to_reach": speed(means, level_mean),
        "curve": {
            "mean": means.tolist(),
            "low": replace_non_finite(low.tolist()),
            "high": replace_non_finite(high.tolist()),
        },
    }
