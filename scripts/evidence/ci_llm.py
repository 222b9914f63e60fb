"""What a crowd of agents brings: ci_llm.py train --help trains the arms, ci_llm.py gather --help judges them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from zoo.ci_llm.evidence import gather
from zoo.ci_llm.evidence_plan import plan
from zoo.training.benchmark import show


def main() -> None:
    """Train, or gather, print and keep the evidence; exits with 1 and one line when there is none to be had."""
    parser = argparse.ArgumentParser(description="Runs of demo with and without diversity, and one agent of their size")
    commands = parser.add_subparsers(dest="command", required=True)
    trains = commands.add_parser("train", help="train every arm that is not trained yet, then gather")
    trains.add_argument("--root", type=Path, default=Path("runs/evidence/ci_llm"), help="folder of the runs")
    trains.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    gathers = commands.add_parser("gather", help="judge runs; figures and picture go into the first")
    gathers.add_argument("--runs", type=Path, nargs="+", required=True, help="of the recipe as it is, one per seed")
    gathers.add_argument("--baseline", type=Path, nargs="+", default=[], help="with diversity of weight 0")
    gathers.add_argument("--others", type=Path, nargs="+", default=[], help="with other weights and strategies")
    gathers.add_argument("--single", type=Path, nargs="+", default=[], help="one agent of rank K * r")
    options = parser.parse_args()
    try:
        if options.command == "train":
            groups: dict[str, list[Path]] = {}
            for group, folder, arguments in plan(options.root, options.seeds):
                if not any(folder.glob("*.ckpt")):
                    subprocess.run([sys.executable, "-m", "zoo", *arguments], check=True)
                if group:
                    groups.setdefault(group, []).append(folder)
        else:
            groups = {name: getattr(options, name) for name in ("runs", "baseline", "others", "single")}
        show("demo", gather(**groups))
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
