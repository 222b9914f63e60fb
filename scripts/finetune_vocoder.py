#!/usr/bin/env python
"""Train the vocoder on cleaned features of Miipher-2, called as in the Accelerate version.

    python scripts/finetune_vocoder.py --config-name hifigan_finetune_layer_6 batch_size=16 ...
    accelerate launch scripts/finetune_vocoder.py ...

It prints the same call in the words of `zoo fit`; docs/miipher.md has the table. Options of `zoo fit` may be mixed in.
"""

from __future__ import annotations

import sys

from zoo.cli.main import main
from zoo.miipher.convert.legacy import command

if __name__ == "__main__":
    sys.exit(main(command("finetune")))
