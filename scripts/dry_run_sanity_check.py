#!/usr/bin/env python
"""The original's dry run: environment, init, a step of training, save and load, diversity, generation.

    python scripts/dry_run_sanity_check.py

It is `zoo doctor --config configs/ci_llm/smoke.yaml`, then the checks of zoo.ci_llm.convert.sanity;
ends with 1 when one fails.
"""

from __future__ import annotations

import sys

from zoo.ci_llm.convert.sanity import report
from zoo.cli.main import main
from zoo.common.systems import recipe_root

if __name__ == "__main__":
    code = main(["doctor", "--config", str(recipe_root() / "ci_llm" / "smoke.yaml")])
    sys.exit(max(code, report()))
