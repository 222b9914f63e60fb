"""Prepare LJSpeech: python scripts/prepare_ljspeech.py data/ljspeech."""

from __future__ import annotations

from zoo.audio.corpora.prepare import main

if __name__ == "__main__":
    main("ljspeech", "Check LJSpeech; write manifest, file lists and corpus cache.")
