"""What three Miipher-2 runs have learned: python scripts/evidence/miipher.py ADAPTER_RUN PRETRAIN_RUN FINETUNE_RUN."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.miipher.evidence import gather, show


def main() -> None:
    """Gather, print and keep the evidence; exits with 1 and one line when there is none to be had."""
    parser = argparse.ArgumentParser(
        description="Curves, and held-out clips restored, written into FINETUNE_RUN/evidence"
    )
    parser.add_argument("adapter", type=Path, help="run of stage 1 (demo_adapter)")
    parser.add_argument("pretrain", type=Path, help="run of stage 2 (demo_pretrain)")
    parser.add_argument("finetune", type=Path, help="run of stage 3 (demo_finetune)")
    parser.add_argument("--draws", type=int, default=4, help="degradations of each clip (default: 4)")
    options = parser.parse_args()
    try:
        show(gather(options.adapter, options.pretrain, options.finetune, options.draws))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
