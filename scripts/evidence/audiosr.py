"""What super-resolution learns: audiosr.py train --help trains the demo, audiosr.py gather --help judges a run."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from zoo.audiosr.evidence import gather, plan
from zoo.training.benchmark import show


def main() -> None:
    """Train, or gather, print and keep the evidence; exits with 1 and one line when there is none to be had."""
    parser = argparse.ArgumentParser(description="The three stages of demo, and its held-out clips restored")
    commands = parser.add_subparsers(dest="command", required=True)
    trains = commands.add_parser("train", help="train each stage that is not trained yet, then gather")
    trains.add_argument("--root", type=Path, default=Path("runs/evidence/audiosr"), help="folder of the runs")
    trains.add_argument("--seed", type=int, help="of all stages; the recipes' own when not given")
    gathers = commands.add_parser("gather", help="judge a run of demo; figures go into its evidence/")
    gathers.add_argument("run", type=Path)
    options = parser.parse_args()
    try:
        if options.command == "train":
            for run, arguments in plan(options.root, options.seed):
                if not any(run.glob("*.ckpt")):
                    subprocess.run([sys.executable, "-m", "zoo", *arguments], check=True)
        else:
            run = options.run
        show("demo", gather(run))
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
