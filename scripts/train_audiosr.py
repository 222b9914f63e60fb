#!/usr/bin/env python
"""Train super-resolution, called as ProjectLily's trainers (trainMGPU_DataParallel.py and its siblings).

    python scripts/train_audiosr.py                                   # or --gui: the local web page
    python scripts/train_audiosr.py --headless --config config.yaml   # or --term: train
    torchrun --nproc-per-node 4 scripts/train_audiosr.py --distributed
    python scripts/train_audiosr.py --test-model

It prints the same call in the words of `zoo`; docs/audiosr.md has the table. Options of `zoo` may be mixed in.
"""

from __future__ import annotations

import sys

from zoo.audiosr.convert.legacy import command
from zoo.cli.main import main

if __name__ == "__main__":
    sys.exit(main(command()))
