"""Prepare JVS: python scripts/prepare_jvs.py jvs_ver1.zip --output data/jvs.

Get it first from https://sites.google.com/site/shinnosuketakamichi/research-topics/jvs_corpus (jvs_ver1.zip).
Nothing is downloaded here, and the zoo's tests use made-up corpora of this layout: the real archives were not tried.
"""

from __future__ import annotations

from zoo.audio.corpora.prepare import main

if __name__ == "__main__":
    main("jvs", "Unpack JVS if need be, check every file, write manifest.jsonl.", "jvs_ver1.zip")
