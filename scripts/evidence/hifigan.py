"""What a HiFi-GAN run has learned: python scripts/evidence/hifigan.py RUN --clip FILE."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.hifigan.evidence import gather, show


def main() -> None:
    """Gather, print and keep the evidence; exits with 1 and one line when there is none to be had."""
    parser = argparse.ArgumentParser(description="Curve and copy synthesis of a run, written into its folder")
    parser.add_argument("run", type=Path, help="run folder of `zoo fit`")
    parser.add_argument("--clip", type=Path, required=True, help="audio file that the run did not train on")
    parser.add_argument("--seconds", type=float, default=10.0, help="longest excerpt of it (default: 10)")
    options = parser.parse_args()
    try:
        show(gather(options.run, options.clip, options.seconds))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
