"""Prepare FLEURS-R: python scripts/prepare_fleurs_r.py data/fleurs_r.

Get it first from https://huggingface.co/datasets/google/fleurs-r (`data/<locale>/`, CC BY 4.0).
Nothing is downloaded here, and the zoo's tests use made-up corpora of this layout: the real archives were not tried.
"""

from __future__ import annotations

from zoo.audio.corpora.prepare import main

if __name__ == "__main__":
    main(
        "fleurs_r",
        "Unpack FLEURS-R if need be, check every file, write manifest.jsonl.",
        "rather give the folder: its data/<locale>/audio/*.tar.gz are unpacked in place",
    )
