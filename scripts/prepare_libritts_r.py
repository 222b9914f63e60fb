"""Prepare LibriTTS-R: python scripts/prepare_libritts_r.py dev_clean.tar.gz --output data/libritts_r.

Get it first from https://www.openslr.org/141 (train_clean_100.tar.gz, ...; 7 archives, CC BY 4.0).
Nothing is downloaded here, and the zoo's tests use made-up corpora of this layout: the real archives were not tried.
"""

from __future__ import annotations

from zoo.audio.corpora.prepare import main

if __name__ == "__main__":
    main(
        "libritts_r",
        "Unpack LibriTTS-R if need be, check every file, write manifest.jsonl.",
        "dev_clean.tar.gz, train_clean_100.tar.gz, ...",
    )
