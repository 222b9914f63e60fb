#!/usr/bin/env python
"""Train flow matching, called with the flags of the lineage's train.py.

    python scripts/train_flow.py --use_cfg --batch_size 32 --train_num_steps 100000
    torchrun --nproc-per-node 4 scripts/train_flow.py --use_cfg --batch_size 128 --mixed_precision fp16
    accelerate launch --multi_gpu --num_processes 4 scripts/train_flow.py --use_cfg --batch_size 32

It prints the same call in the words of `zoo fit`; docs/flow.md has the table. Options of `zoo fit` may be mixed in.
"""

from __future__ import annotations

import sys

from zoo.cli.main import main
from zoo.flow.convert.legacy import command

if __name__ == "__main__":
    sys.exit(main(command()))
