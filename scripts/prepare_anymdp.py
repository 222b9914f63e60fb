"""Sample tasks of AnyMDP: python -m scripts.prepare_anymdp --tasks 1024; needs `pip install 'zoo[evidence]'`.

Writes `anymdp/tasks.npz` below ZOO_DATA, for `scripts/evidence/anymdp.py`: task n is what the sampler of the package
xenoverse makes of the seed n. Rewards of a task are divided by the standard deviation of those of random actions, which
differs between the package's tasks by a factor of 100.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
from rich.progress import track

from scripts.evidence.anymdp import FIELDS, LIMIT, NAME, folder
from zoo.common.atomic_files import write_atomic

STATES, ACTIONS = 16, 4


def sample_task(seed: int) -> dict[str, np.ndarray]:
    """Sample a task; fields as of `scripts.evidence.anymdp.load_tasks`, without N."""
    try:
        from xenoverse.anymdp import AnyMDPTaskSampler
    except ImportError as error:
        raise SystemExit(f"error: {error}: pip install 'zoo[evidence]'") from error
    task = AnyMDPTaskSampler(STATES, ACTIONS, seed=seed)
    order = np.argsort(task["state_mapping"])  # the package's number of each observation
    start = np.zeros(STATES)
    start[task["s_0"]] = task["s_0_prob"]
    grid = np.ix_(order, np.arange(ACTIONS), order)
    transition, reward, noise = (task[name][grid] for name in ("transition", "reward", "reward_noise"))
    scale = reward_deviation(transition, reward, noise, start[order])
    return dict(zip(FIELDS, (transition, reward / scale, noise / scale, start[order]), strict=True))


def reward_deviation(transition: np.ndarray, reward: np.ndarray, noise: np.ndarray, start: np.ndarray) -> float:
    """Return the standard deviation of the reward of a step of random actions."""
    states, visits = start, np.zeros_like(start)
    for _ in range(LIMIT):
        visits, states = visits + states, np.einsum("i,ijk->k", states, transition) / ACTIONS
    weights = visits[:, None, None] * transition
    weights /= weights.sum()
    return float(np.sqrt((weights * ((reward - (weights * reward).sum()) ** 2 + noise**2)).sum()))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--tasks", type=int, default=1024)
    tasks = [sample_task(seed) for seed in track(range(parser.parse_args().tasks))]
    fields: dict[str, Any] = {name: np.stack([task[name] for task in tasks]) for name in FIELDS}
    folder().mkdir(parents=True, exist_ok=True)
    write_atomic(folder() / NAME, partial(np.savez_compressed, **fields))


if __name__ == "__main__":
    main()
