"""Training in shards (FSDP2) on CPU processes: its weights against DDP's, and resumes on other numbers of processes.

    python scripts/bench/sharded.py equality [--processes 2] [--recipes flow/smoke hifigan/smoke]
    python scripts/bench/sharded.py resharding [--sequence 4 2 1 3] [--recipe hifigan/smoke] [--options ...]

Each prints a Markdown table and ends with 1 where a figure is above 1e-5 (equality) or 1e-4 (resharding).
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[2]
RECIPES = (
    "flow/smoke hifigan/smoke miipher/smoke_adapter miipher/smoke_pretrain miipher/smoke_backbone audiosr/smoke "
    "audiosr/smoke_vae audiosr/smoke_vocoder ci_llm/smoke ci_llm/smoke_backbone compressed_ad/smoke"
).split()
STEPS = 5
STRATEGIES = {
    "ddp": ["--config", "configs/trainer/ddp.yaml"],
    "fsdp": ["--config", "configs/trainer/fsdp.yaml", "--trainer.strategy.init_args.min_block_parameters", "1000"],
}


def fit(strategy: str, world: int, folder: Path, steps: int, recipe: str, options: Sequence[str] = ()) -> Path:
    """Train, or go on with the run in `folder`, on so many processes forked from this one; returns its checkpoint."""
    arguments = ["fit", "--config", f"configs/{recipe}.yaml", *STRATEGIES[strategy], "--trainer.accelerator", "cpu"]
    arguments += ["--trainer.devices", str(world), "--trainer.precision", "32-true", "--trainer.max_steps", str(steps)]
    arguments += ["--trainer.log_every_n_steps", "1", "--trainer.limit_val_batches", "0", "--samples.enabled", "false"]
    arguments += ["--trainer.num_sanity_val_steps", "0", "--checkpoints.every_n_batches", "1000000", *options]
    if any(folder.glob("*.ckpt")):
        arguments += ["--ckpt_path", str(folder)]
    arguments += ["--trainer.default_root_dir", str(folder)]
    fork(world, arguments)
    return folder / f"step_{steps:08d}.ckpt"


def fork(world: int, arguments: list[str]) -> None:
    """Run one `zoo` command on so many processes.

    Raises:
        RuntimeError: with what the first of them said, when one failed.
    """
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.multiprocessing import start_processes

    import zoo.cli.trainer  # noqa: F401  (once, for all forks)

    with tempfile.TemporaryDirectory() as said:
        try:
            start_processes(_rank, (world, get_free_port(), arguments, said), world, start_method="fork")
        except Exception as error:
            text = "".join(file.read_text(errors="replace") for file in sorted(Path(said).iterdir()))
            raise RuntimeError(f"zoo {' '.join(arguments)}\n{text[-6000:]}") from error


def _rank(rank: int, world: int, port: int, arguments: list[str], said: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "NODE_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    file = os.open(str(Path(said) / f"{rank}"), os.O_CREAT | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from zoo.cli.main import main

    if code := main(arguments):
        sys.exit(code)


def losses(folder: Path) -> dict[int, dict[str, float]]:
    """Logged losses of a run by step."""
    rows: dict[int, dict[str, float]] = {}
    with (folder / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            wanted = {key: float(row[key]) for key in ("train/loss", "train/g/total") if row.get(key)}
            rows.setdefault(int(row["step"]), {}).update(wanted)
    return rows


def distance(first: Any, second: Any) -> float:
    """The largest difference of two nested containers' tensors."""
    import torch

    if isinstance(first, torch.Tensor):
        if first.shape != second.shape:
            raise ValueError(f"{tuple(first.shape)} against {tuple(second.shape)}")
        return float((first.double() - second.double()).abs().max()) if first.numel() else 0.0
    if isinstance(first, dict):
        if first.keys() != second.keys():
            raise ValueError(f"other keys: {sorted(map(str, first.keys() ^ second.keys()))[:4]}")
        return max((distance(first[key], second[key]) for key in first), default=0.0)
    if isinstance(first, list | tuple):
        return max((distance(a, b) for a, b in zip(first, second, strict=True)), default=0.0)
    return 0.0


def equality(recipes: Sequence[str], processes: Sequence[int]) -> bool:
    """Compare weights, moments and averages after the same steps under DDP and in shards."""
    from zoo.runs.checkpoints import load_checkpoint

    print(
        f"| recipe | processes | weights after {STEPS} steps | moments | averages | losses |\n|---|---|---|---|---|---|"
    )
    good = True
    for recipe in recipes:
        for world in processes:
            with tempfile.TemporaryDirectory() as place:
                runs = {name: Path(place) / name for name in STRATEGIES}
                found = {name: load_checkpoint(fit(name, world, runs[name], STEPS, recipe)) for name in STRATEGIES}
                of = [losses(run) for run in runs.values()]
                pair = list(found.values())
                figures = [
                    distance(*(each["state_dict"] for each in pair)),
                    distance(*([s["state"] for s in each["optimizer_states"]] for each in pair)),
                    distance(*(each.get("ema", {}) for each in pair)),
                    max((abs(of[0][step][key] - of[1][step][key]) for step in of[0] for key in of[0][step]), default=0),
                ]
            good &= figures[0] <= 1e-5
            print(f"| {recipe} | {world} | {' | '.join(f'{figure:.1e}' for figure in figures)} |", flush=True)
    return good


def resharding(sequence: Sequence[int], recipe: str, batch: int, options: Sequence[str]) -> bool:
    """Train in turns on other numbers of processes with the same global batch; compare with an uninterrupted run."""
    from zoo.runs.checkpoints import load_checkpoint

    sized = lambda world: ["--data.init_args.batch_size", str(batch // world), *options]  # noqa: E731
    steps = STEPS * len(sequence)
    with tempfile.TemporaryDirectory() as place:
        whole, turns = Path(place) / "whole", Path(place) / "turns"
        uninterrupted = load_checkpoint(fit("ddp", 1, whole, steps, recipe, sized(1)))
        print("| steps | processes | largest difference of a loss, relative |\n|---|---|---|")
        for number, world in enumerate(sequence, 1):
            last = fit("fsdp", world, turns, number * STEPS, recipe, sized(world))
        here, there = losses(whole), losses(turns)
        worst = 0.0
        for number, world in enumerate(sequence):
            own = range(number * STEPS, (number + 1) * STEPS)
            figure = max(abs(here[s][k] - there[s][k]) / max(abs(here[s][k]), 1e-6) for s in own for k in here[s])
            worst = max(worst, figure)
            print(f"| {own[0]} to {own[-1]} | {world} | {figure:.1e} |")
        states = [each["state_dict"] for each in (uninterrupted, load_checkpoint(last))]
        print(f"\nweights after {steps} steps: {distance(*states):.1e}")
    return worst <= 1e-4


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest="table", required=True)
    one = tables.add_parser("equality")
    one.add_argument("--recipes", nargs="+", default=RECIPES)
    one.add_argument("--processes", nargs="+", type=int, default=[2])
    other = tables.add_parser("resharding")
    other.add_argument("--sequence", nargs="+", type=int, default=[4, 2, 1, 3])
    other.add_argument("--recipe", default="hifigan/smoke")
    other.add_argument("--batch", type=int, default=12)
    other.add_argument("--options", nargs=argparse.REMAINDER, default=[])
    given = parser.parse_args()
    os.chdir(HERE)
    if given.table == "equality":
        return int(not equality(given.recipes, given.processes))
    return int(not resharding(given.sequence, given.recipe, given.batch, given.options))


if __name__ == "__main__":
    sys.exit(main())
