#!/usr/bin/env python
"""Train CI-LLM, called as the original's train.py.

    python scripts/train_ci_llm.py --config configs.yaml
    python scripts/train_ci_llm.py --config configs.yaml --resume_from_checkpoint ci_llm_output/checkpoint_step_100
    accelerate launch --num_processes 4 scripts/train_ci_llm.py --config configs.yaml

It prints the same call in the words of `zoo fit`; docs/ci_llm.md has the table. Options of `zoo fit` may be mixed in.
"""

from __future__ import annotations

import sys

from zoo.ci_llm.convert.legacy import command
from zoo.cli.main import main

if __name__ == "__main__":
    sys.exit(main(command()))
