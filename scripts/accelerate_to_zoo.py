#!/usr/bin/env python
"""Translate an accelerate configuration into flags of `zoo fit`, or into a fragment for `--config`.

python scripts/accelerate_to_zoo.py accelerate_config.yaml                  prints the flags
python scripts/accelerate_to_zoo.py accelerate_config.yaml trainer.yaml     writes the fragment
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from zoo.common.atomic import write_atomic
from zoo.convert.old_calls import read_accelerate


def main(args: list[str] | None = None) -> int:
    """Translate one file; what has no counterpart goes to standard error."""
    parser = argparse.ArgumentParser(description="accelerate configuration -> trainer settings")
    parser.add_argument("source", type=Path, help="YAML written by `accelerate config`")
    parser.add_argument("target", type=Path, nargs="?", help="fragment to write; without it the flags are printed")
    given = parser.parse_args(args)
    try:
        launch = read_accelerate(given.source)
    except (ValueError, OSError) as error:
        print(f"accelerate_to_zoo: error: {error}", file=sys.stderr)
        return 1
    for key in launch.unmapped:
        print(f"not translated: {key}", file=sys.stderr)
    if given.target is None:
        variables = [f"{name}={value}" for name, value in launch.environment.items()]
        print(" ".join([*variables, shlex.join(launch.to_flags())]))
    else:
        write_atomic(given.target, lambda stream: stream.write(launch.to_yaml().encode()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
