"""What a start costs: python -m scripts.bench.startup first_batch|answers|all [--quick] [--former COMMIT]."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from scripts.bench.tools import Finding, Settings, command, in_folders
from zoo.cli.trainer import ZooCLI
from zoo.common.options import take_option

REPOSITORY = Path(__file__).parents[2]
FORMER = "8e52760"  # the last commit before start-up was looked at
RECIPES = (
    "audiosr/smoke",
    "ci_llm/smoke",
    "compressed_ad/smoke",
    "flow/smoke",
    "hifigan/smoke",
    "miipher/smoke_pretrain",
)
MISTAKES = (
    ("fit", "flow/smoek"),
    ("fit", "flow/smoke", "--data.batch_sise", "3"),
    ("fit", "flow/smoke", "--model.net.init_args.chanels", "3"),
    ("fit", "flow/smoke", "--trainer.precision", "bf16-mixd"),
    ("fti",),
)
# Processor time from the start of the process to the first backward pass.
DRIVER = """
import os, runpy, sys, time, torch
def stop(*args, **kwargs):
    print(f"\\ncpu {time.process_time()}", flush=True)
    os._exit(0)
torch.Tensor.backward = stop
runpy.run_module("zoo", run_name="__main__")
"""


def first_batch(former: str, settings: Settings) -> list[Finding]:
    """`zoo fit` from the command to the first batch of smoke recipes, beside a former commit's, by turns."""
    tree = settings.folder / "former"
    subprocess.run(["git", "-C", str(REPOSITORY), "worktree", "add", "--detach", "-q", str(tree), former], check=True)
    findings = []
    try:
        for recipe in RECIPES[3:4] if settings.quick else RECIPES:
            ours, theirs = [], []
            for turn in range(settings.few(5, 1)):
                ours.append(_until_first_batch(REPOSITORY, recipe, settings.folder / f"ours{turn}"))
                theirs.append(_until_first_batch(tree, recipe, settings.folder / f"theirs{turn}"))
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            details = {"cpu_seconds": statistics.median(ours), "former_cpu_seconds": statistics.median(theirs)}
            findings.append(Finding(f"first batch of {recipe}", ratio, f"of {former}", at_most=0.6, details=details))
    finally:
        subprocess.run(["git", "-C", str(REPOSITORY), "worktree", "remove", "--force", str(tree)], check=True)
    return findings


def answers(settings: Settings) -> list[Finding]:
    """Help, and the answers to mistakes in names."""
    found = [Finding("fit --help", _cpu("fit", "--help"), "CPU-seconds", at_most=2.0)]
    return found + [Finding(" ".join(args), _cpu(*args), "CPU-seconds", at_most=1.5) for args in MISTAKES]


def _until_first_batch(tree: Path, recipe: str, folder: Path) -> float:
    arguments = ["fit", "--config", f"configs/{recipe}.yaml", f"--trainer.default_root_dir={folder / recipe}"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments], cwd=tree, env=environment, capture_output=True, text=True
    )
    times = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("cpu ")]
    if not times:
        raise ValueError(f"{recipe} in {tree}: {done.stderr.strip().splitlines()[-1]}")
    return float(times[0])


def _cpu(*args: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "zoo", *args], cwd=REPOSITORY, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    commits, sys.argv[1:] = take_option(sys.argv[1:], "--former")
    former = commits[-1] if commits else FORMER

    def first_batches(settings: Settings) -> list[Finding]:
        """See `first_batch`."""
        return first_batch(former, settings)

    benchmarks = {"first_batch": first_batches, "answers": answers}
    command("startup", in_folders(benchmarks, partial(Settings, partial(ZooCLI, "fit"))))
