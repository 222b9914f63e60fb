"""What in-context policies have learned: python scripts/evidence/compressed_ad.py demo|demo_9x9|memory --help."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo.compressed_ad.evidence import gather_demo, gather_demo_9x9, gather_memory
from zoo.training.benchmark import show

SETS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "demo": (gather_demo, ["runs", "shuffled", "mixed"]),
    "demo_9x9": (gather_demo_9x9, ["runs"]),
    "memory": (gather_memory, ["latents", "none", "sliding"]),
}
OPTIONAL = {
    "shuffled": "runs with shuffle_episodes",
    "mixed": "with mix_tasks besides",
    "sliding": "with a sliding window",
}
REQUIRED = {"runs": "runs of the recipe", "latents": "runs of demo_memory", "none": "runs of it that forget"}


def main() -> None:
    """Gather, print and keep the evidence; exits with 1 and one line when there is none to be had."""
    parser = argparse.ArgumentParser(description="Figures with targets and controls, written into the first run")
    sets = parser.add_subparsers(dest="set", required=True)
    for name, (_, groups) in SETS.items():
        chosen = sets.add_parser(name, help=f"{', '.join(groups)}: one run per seed, in the same order")
        for group in groups:
            text = {**OPTIONAL, **REQUIRED}[group]
            chosen.add_argument(f"--{group}", type=Path, nargs="+", default=[], required=group in REQUIRED, help=text)
    options = parser.parse_args()
    gather, groups = SETS[options.set]
    try:
        show(options.set, gather(**{group: getattr(options, group) for group in groups}))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
