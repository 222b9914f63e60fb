"""Prepare AFHQ: python scripts/prepare_afhq.py afhq.zip --output data, or with the unpacked folder data/afhq.

Get it first: v1 or v2 of https://github.com/clovaai/stargan-v2, or a copy of it; nothing is downloaded here. The zoo's
tests use a made-up set of this layout: the real images were not tried.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from zoo.flow.data.afhq import prepare
from zoo.flow.data.image_cache import CACHES


def main() -> None:
    """Read the command line and prepare the images; exits with 1 and one line on a faulty set."""
    parser = argparse.ArgumentParser(description="Check AFHQ's layout and counts; write the cache of resized images.")
    parser.add_argument("sources", nargs="+", type=Path, help="the folder of AFHQ (v1 or v2), or its archives")
    parser.add_argument("--output", type=Path, help="folder that archives are unpacked into")
    parser.add_argument("--resolution", type=int, default=64, help="height and width in pixels (default: 64)")
    parser.add_argument("--max-per-class", type=int, default=3000, help="as in the recipe (default: 3000); 0 for all")
    parser.add_argument("--cache", type=Path, default=CACHES, help=f"folder of the caches (default: {CACHES})")
    parser.add_argument("--eval-folder", type=Path, help="write the resized validation images here, as PNG")
    parser.add_argument("--strict", action="store_true", help="fail on counts of no known version")
    options = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    try:
        facts = prepare(**options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(*(f"{key}: {value}" for key, value in facts.items()), sep="\n")


if __name__ == "__main__":
    main()
