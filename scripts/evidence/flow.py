"""What flow matching runs have learned: python scripts/evidence/flow.py digits|swissroll --help."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.flow.evidence import gather_digits, gather_swissroll, show


def main() -> None:
    """Gather, print and keep the evidence; exits with 1 and one line when there is none to be had."""
    parser = argparse.ArgumentParser(description="Figures with targets and controls, written into the first run")
    sets = parser.add_subparsers(dest="set", required=True)
    digits = sets.add_parser("digits", help="runs of demo_digits, one per seed")
    digits.add_argument("--pooled", type=Path, nargs="+", required=True, help="runs of the recipe as it is")
    digits.add_argument("--independent", type=Path, nargs="+", default=[], help="runs with independent noise")
    digits.add_argument("--batch", type=Path, nargs="+", default=[], help="runs with noise paired in each batch")
    roll = sets.add_parser("swissroll", help="runs of demo_swissroll, one per seed")
    roll.add_argument("--assigned", type=Path, nargs="+", required=True, help="runs of the recipe as it is")
    roll.add_argument("--transport", type=Path, nargs="+", default=[], help="runs with minibatch optimal transport")
    roll.add_argument("--distilled", type=Path, nargs="+", default=[], help="runs of demo_swissroll_distill")
    options = parser.parse_args()
    try:
        if options.set == "digits":
            show(gather_digits(options.pooled, options.independent, options.batch))
        else:
            show(gather_swissroll(options.assigned, options.transport, options.distilled))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
