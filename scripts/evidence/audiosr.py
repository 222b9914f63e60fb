"""What super-resolution learns: python -m scripts.evidence.audiosr train|gather --help."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from scripts.bench.tools import Finding, evidence, save, train_once
from zoo.audiosr.evaluation.evaluate import (
    CEILING,
    LINEAR,
    MEASURES,
    NOISE,
    RESTORED,
    UNPROCESSED,
    Evaluation,
    Settings,
    evaluate,
)
from zoo.common.systems import recipe_root

FOLDER, NAME = "evidence", "evidence.json"
STAGES = ("demo_vae", "demo_vocoder", "demo")
PARTS = "model.init_args.autoencoder.init_args.source", "model.init_args.vocoder.init_args.source"
LEAST_SI_SDR_DB = 30.0
SAMPLERS: dict[str, dict[str, Any]] = {
    "ddim": {"class_path": "zoo.audiosr.DDIM", "init_args": {"steps": 100}},
    "dpm": {"class_path": "zoo.audiosr.DPMSolver", "init_args": {"steps": 15}},
}


def plan(root: Path, seed: int | None = None) -> Iterator[tuple[Path, list[str]]]:
    """The three trainings, one after the other.

    Args:
        root: folder of the runs.
        seed: of all of them; the recipes' own when None.

    Yields:
        The run folder and the arguments of `zoo`.
    """
    for stage in STAGES:
        folder = root / stage
        arguments = ["fit", f"--config={recipe_root() / 'audiosr' / stage}.yaml"]
        arguments += [f"--trainer.default_root_dir={folder}"]
        if seed is not None:
            arguments += [f"--seed_everything={seed}", f"--data.init_args.seed={seed}"]
        if stage == STAGES[-1]:
            arguments += [f"--{key}={root / part}" for key, part in zip(PARTS, STAGES, strict=False)]
        yield folder, arguments


def train(root: Path = Path("runs/evidence/audiosr"), seed: int | None = None, quick: bool = False) -> list[Finding]:
    """Train each stage that is not trained yet, then gather.

    Args:
        root: folder of the runs.
        seed: of all stages; the recipes' own when not given.
    """
    for run, arguments in plan(root, seed):
        train_once(run, arguments, quick)
    return gather(run, quick)


def gather(run: Path, quick: bool = False) -> list[Finding]:
    """Evaluate a run of `demo` on its validation clips; tables, sounds and images go into its `evidence/`.

    Args:
        run: run folder of the diffusion stage.
        quick: one clip, few steps.

    Returns:
        The figures.

    Raises:
        FileNotFoundError: when there is no such run.
        ValueError: when it restores nothing.
    """
    found = {}
    for name, sampler in SAMPLERS.items():
        chosen = {**sampler, "init_args": {"steps": 2}} if quick else sampler
        settings = Settings(
            max_items=1 if quick else None, keep=2 if name == "ddim" else 0, options={"sampler": chosen}
        )
        found[name] = evaluate(run, run / FOLDER / name, settings)
    means = {name: _means(each) for name, each in found.items()}
    slow, fast = means["ddim"], means["dpm"]
    distances = {system: values["lsd_hf"] for system, values in slow.items()}
    ours = distances[RESTORED]
    findings = [
        Finding("LSD-HF to linear interpolation", ours / distances[LINEAR], "x", at_most=1.0, details=distances),
        Finding("LSD-HF to shaped noise", ours / distances[NOISE], "x", at_most=1.0),
        Finding("LSD-HF to unprocessed", ours / distances[UNPROCESSED], "x", at_most=1.0),
        Finding("LSD-HF to the ceiling", ours / distances[CEILING], "x"),
        Finding("SI-SDR of the low band, least", _least(found["ddim"]), "dB", at_least=LEAST_SI_SDR_DB),
        Finding("LSD of 15 steps of DPM-Solver++ to 100 of DDIM", fast[RESTORED]["lsd"] / slow[RESTORED]["lsd"], "x",
                at_most=1.05),
    ]  # fmt: skip
    save(run / FOLDER / NAME, findings, evidence="demo", means=means)
    return findings


def _means(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Means by system and measure, where they are defined."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in evaluation.rows:
        if row["status"] == "done":
            for measure in MEASURES:
                value = row.get(measure.name, math.nan)
                if math.isfinite(value):
                    values.setdefault(row["system"], {}).setdefault(measure.name, []).append(value)
    return {system: {name: fmean(each) for name, each in measures.items()} for system, measures in values.items()}


def _least(evaluation: Evaluation) -> float:
    rows = [row for row in evaluation.rows if row["status"] == "done" and row["system"] == RESTORED]
    return min(float(row["si_sdr_low"]) for row in rows)


if __name__ == "__main__":
    evidence({"train": train, "gather": gather})
