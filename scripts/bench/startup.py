"""What a start costs in processor time: python -m scripts.bench.startup names|parsing|all [--quick]."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.bench.tools import Finding, command, read_clocks

REPOSITORY = Path(__file__).parents[2]
IMPORTS = ("-c", "import torch, lightning")
NAMES = (("--help",), ("list",), ("fit", "--help"), ("fti",), ("fit", "flow/smoek"))
PARSING = (
    ("fit", "flow/smoke", "--data.batch_sise", "3"),
    ("fit", "flow/smoke", "--model.net.init_args.chanels", "3"),
    ("fit", "flow/smoke", "--trainer.precision", "bf16-mixd"),
    ("fit", "flow/smoke", "trainer/cpu", "--trainer.max_steps=1", "--trainer.limit_val_batches=0"),
)


def names(quick: bool) -> list[Finding]:
    """Help, lists and answers to wrong names, which need no torch."""
    turns = range(1 if quick else 5)
    return [
        Finding(" ".join(args), statistics.median(_cpu("-m", "zoo", *args) for _ in turns), "CPU-seconds", at_most=0.5)
        for args in NAMES
    ]


def parsing(quick: bool) -> list[Finding]:
    """Answers to wrong keys, and a fit of one step, relative to `import torch, lightning`, by turns."""
    findings = []
    for args in PARSING:
        with tempfile.TemporaryDirectory() as folder:
            pairs = [
                (_cpu("-m", "zoo", *args, f"--trainer.default_root_dir={folder}/{turn}"), _cpu(*IMPORTS))
                for turn in range(1 if quick else 5)
            ]
        ratio = statistics.median(zoo_result / imports for zoo_result, imports in pairs)
        details = {"cpu_seconds": statistics.median(zoo_result for zoo_result, _ in pairs)}
        findings.append(Finding(" ".join(args), ratio, "times `import torch, lightning`", at_most=1.2, details=details))
    return findings


def _cpu(*args: str) -> float:
    before = read_clocks()
    done = subprocess.run([sys.executable, *args], cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode not in (0, 2):  # 2 answers a wrong name
        raise RuntimeError(done.stderr[-2000:])
    return (read_clocks() - before).cpu


if __name__ == "__main__":
    command("startup", {"names": names, "parsing": parsing})
