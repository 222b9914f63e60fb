"""What super-resolution learns: python -m scripts.evidence.audiosr [FOLDER] writes its clips; see `run.py`."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from zoo.audio.io import files
from zoo.audiosr.evaluation.evaluate import (
    CEILING,
    HF_BANDS,
    LINEAR,
    MEASURES,
    NOISE,
    RESTORED,
    UNPROCESSED,
    EvaluationOptions,
    evaluate,
)
from zoo.common.systems import recipe_root

FOLDER, NAME, DATA = "evidence", "evidence.json", "data"
STAGES = ("demo_vae", "demo_vocoder", "demo")
PARTS = "model.init_args.autoencoder.init_args.source", "model.init_args.vocoder.init_args.source"
KINDS = SPEECH, OTHER = "speech", "noise"  # of clips; their names begin with it
BANDS = ("lsd_lf", *HF_BANDS)
SPEECH_FOLDER, NOISE_FOLDER = "ljspeech/wavs", "noise"
SAMPLE_RATE = 16000  # Hz
HELD_OUT = 3  # recordings of speech
HELD_OUT_SHARE = 0.3  # of a recording of noise
TRAIN_SECONDS, VALID_SECONDS = 4.0, 1.5  # of a piece, at most
VALID_PIECES = 2  # of a recording
RECIPE = "recipe"
SAMPLERS: dict[str, dict[str, Any] | None] = {
    RECIPE: None,  # the run's own
    "ddim": {"class_path": "zoo.audiosr.DDIM", "init_args": {"steps": 100}},
    "dpm": {"class_path": "zoo.audiosr.DPMSolver", "init_args": {"steps": 15}},
}


def lay_out(output: Path, data: Path | None = None) -> Path:
    """Cut speech and noise into clips for training and for validation: `{train,valid}/high` and `valid.txt`.

    Held out are the last three recordings of speech and the last 30 % of each recording of noise. The rest trains, in
    equal pieces of at most 4 s; the first two pieces of 1.5 s of what is held out are validated on. What is there
    already stays.

    Args:
        output: folder to write; moved there when it is whole.
        data: folder with `ljspeech/wavs` and `noise`; ZOO_DATA, or `data`, when not given.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: a folder of recordings is missing.
    """
    if output.is_dir():
        return output
    data = data or Path(os.environ.get("ZOO_DATA", "data"))
    speech, noise = (files.find_audio_files(data / name) for name in (SPEECH_FOLDER, NOISE_FOLDER))
    held_out = set(speech[-HELD_OUT:])
    building = output.with_name(f"{output.name}.part")
    shutil.rmtree(building, ignore_errors=True)
    names = []
    for kind, paths in ((SPEECH, speech), (OTHER, noise)):
        for path in paths:
            audio = files.read_mono(path, SAMPLE_RATE)
            held_samples = len(audio) if path in held_out else 0
            split = len(audio) - (held_samples if kind == SPEECH else round(HELD_OUT_SHARE * len(audio)))
            _write(_equal(audio[:split]), building / "train" / "high" / f"{kind}_{path.stem}")
            names += _write(_first(audio[split:]), building / "valid" / "high" / f"{kind}_{path.stem}")
    (building / "valid.txt").write_text("".join(f"valid/high/{name}\n" for name in names), encoding="utf-8")
    building.rename(output)
    return output


def _equal(audio: np.ndarray) -> list[np.ndarray]:
    """All of a recording (T,) in equal pieces for training."""
    return np.array_split(audio, math.ceil(len(audio) / SAMPLE_RATE / TRAIN_SECONDS)) if len(audio) else []


def _first(audio: np.ndarray) -> list[np.ndarray]:
    """The first pieces of a recording (T,) for validation; one shorter than a piece as it is."""
    size = round(VALID_SECONDS * SAMPLE_RATE)
    count = min(max(len(audio) // size, 1), VALID_PIECES) if len(audio) else 0
    return [audio[number * size :][:size] for number in range(count)]


def _write(pieces: Iterable[np.ndarray], stem: Path) -> list[str]:
    """Write pieces (T,) beside each other; their names."""
    names = []
    for number, piece in enumerate(pieces):
        names.append(f"{stem.name}_{number}.wav")
        files.write(stem.with_name(names[-1]), piece, SAMPLE_RATE)
    return names


def plan(root: Path, seed: int | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Lay the clips out in `data/` first; then the three trainings, one after the other.

    Args:
        root: folder of the runs.
        seed: of all of them; the recipes' own when None.

    Yields:
        The run folder and the arguments of `zoo`.
    """
    data = lay_out(root / DATA)
    for stage in STAGES:
        folder = root / stage
        arguments = ["fit", f"--config={recipe_root() / 'audiosr' / stage}.yaml"]
        arguments += [f"--trainer.default_root_dir={folder}", f"--data.init_args.root={data}"]
        if seed is not None:
            arguments += [f"--seed_everything={seed}", f"--data.init_args.seed={seed}"]
        if stage == STAGES[-1]:
            arguments += [f"--{key}={root / part}" for key, part in zip(PARTS, STAGES, strict=False)]
        yield folder, arguments


def measure(run: Path, quick: bool = False) -> dict[str, float]:
    """Evaluate a run of `demo` on its validation clips; tables go into its `evidence/`.

    Args:
        run: run folder of the diffusion stage.
        quick: few steps.

    Raises:
        ValueError: when it restores nothing.
    """
    evaluations = {}
    for name, sampler in SAMPLERS.items():
        chosen = {**sampler, "init_args": {"steps": 2}} if quick and sampler else sampler
        options = EvaluationOptions(restore={"sampler": chosen} if chosen else {})
        evaluations[name] = evaluate(run, run / FOLDER / name, options)
    means = {name: _means(each) for name, each in evaluations.items()}
    recipe, slow, fast = (means[name] for name in (RECIPE, "ddim", "dpm"))
    figures = {
        "LSD-HF to unprocessed": recipe[RESTORED]["lsd_hf"] / recipe[UNPROCESSED]["lsd_hf"],
        "SI-SDR of the low band, least": _least(evaluations[RECIPE]),
        "LSD of 15 steps of DPM-Solver++ to 100 of DDIM": fast[RESTORED]["lsd"] / slow[RESTORED]["lsd"],
    }
    for kind in KINDS:
        values = _means(row for row in evaluations[RECIPE] if row["name"].startswith(kind))
        restored, linear = values[RESTORED], values[LINEAR]
        figures |= {
            f"{kind}: LSD-HF to shaped noise": restored["lsd_hf"] / values[NOISE]["lsd_hf"],
            f"{kind}: LSD to linear interpolation, worst band": max(restored[band] / linear[band] for band in BANDS),
            f"{kind}: LSD-HF": restored["lsd_hf"],
            f"{kind}: LSD-HF of the ceiling": values[CEILING]["lsd_hf"],
        }
    return figures


def _means(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Means by system and measure, where they are defined."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["status"] == "done":
            for measure in MEASURES:
                value = row.get(measure.name, math.nan)
                if math.isfinite(value):
                    values.setdefault(row["system"], {}).setdefault(measure.name, []).append(value)
    return {system: {name: fmean(each) for name, each in measures.items()} for system, measures in values.items()}


def _least(rows: Iterable[Mapping[str, Any]]) -> float:
    return min(float(row["si_sdr_low"]) for row in rows if row["status"] == "done" and row["system"] == RESTORED)


if __name__ == "__main__":
    print(lay_out(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/audiosr/mixed")))
