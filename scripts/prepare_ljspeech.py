"""Prepare LJSpeech: python scripts/prepare_ljspeech.py data/LJSpeech-1.1 --output data/ljspeech."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from zoo.audio.corpora.corpus import CACHES
from zoo.audio.corpora.ljspeech import FULL_COUNT, prepare


def main() -> None:
    """Read the command line and prepare the corpus; exits with 1 and one line on a faulty one."""
    parser = argparse.ArgumentParser(description="Check LJSpeech; write manifest, file lists and corpus cache.")
    parser.add_argument("folder", type=Path, help="unpacked LJSpeech-1.1 (metadata.csv, wavs/*.wav or *.flac)")
    parser.add_argument("--output", type=Path, help="folder for manifest.jsonl and *.txt (default: the corpus folder)")
    parser.add_argument("--cache", type=Path, default=CACHES, help=f"folder of the corpus caches (default: {CACHES})")
    parser.add_argument("--sample-rate", type=int, default=22050, help="rate of the cache in Hz (default: 22050)")
    parser.add_argument("--lists", type=Path, help="folder with the original's training.txt and validation.txt")
    parser.add_argument("--expected", type=int, default=FULL_COUNT, help="utterances of the whole set")
    parser.add_argument("--strict", action="store_true", help="fail on what is otherwise a warning")
    options = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    try:
        facts = prepare(**options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(*(f"{key}: {value}" for key, value in facts.items()), sep="\n")


if __name__ == "__main__":
    main()
