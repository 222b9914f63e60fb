"""AudioSR on real telephone pairs: prompts at 8 kHz and as wideband, trained on English, judged on other languages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.evidence import audiosr
from scripts.evidence.demo import EACH, Claim, Demo, EvidenceStep, Figures, data_folder, fit_step
from scripts.evidence.gallery import save_sounds
from zoo.audio.io import files
from zoo.audiosr.evaluation.evaluate import CEILING, LINEAR, NOISE, RESTORED, EvaluationOptions, evaluate
from zoo.runs.load import load

NAME, DATA = "audiosr/prompts", "asterisk"  # ZOO_DATA/asterisk: scripts/prepare_asterisk.py
LANGUAGES = {"es": "Spanish", "fr": "French", "it": "Italian", "ru": "Russian"}
SAMPLE_RATE = 16000  # Hz
DRAWS = 1000  # of a bootstrap over prompts
SHOWN, SHOWN_SECONDS = ("es", "fr"), 3.0  # languages in the gallery


def plan(root: Path, seed: int, quick: bool) -> Iterable[EvidenceStep]:
    """Autoencoder and vocoder on the wideband prompts, the diffusion on the pairs."""
    data = data_folder() / DATA
    vocoder = {"data__init_args__root": data / "train" / "high", "data__init_args__split__val_list": "null"}
    stages: list[dict[str, Any]] = [{}, vocoder, {"data__init_args__mode": "paired"}]
    for stage, changes in zip(audiosr.STAGES, stages, strict=True):
        changed = {"data__init_args__root": data, "data__init_args__seed": seed, **changes}
        if stage == audiosr.STAGES[-1]:
            parts = zip(audiosr.PARTS, audiosr.STAGES, strict=False)
            changed |= {key.replace(".", "__"): root / part for key, part in parts}
        yield fit_step(root, stage, f"audiosr/{stage}", seed, **changed)


def measure(root: Path, quick: bool = False) -> Figures:
    """Log-spectral distances above the found edge of the band, of the prompts of each language, as ratios of means.

    The 95 % intervals are of a bootstrap over prompts. Two prompts go into the gallery.
    """
    run = root / audiosr.STAGES[-1]
    values: dict[str, dict[str, float]] = {}
    for row in evaluate(run, run / audiosr.FOLDER, EvaluationOptions()):
        if row["status"] == "done" and np.isfinite(row["lsd_hf"]):
            values.setdefault(row["system"], {})[row["name"]] = float(row["lsd_hf"])
    figures: Figures = {}
    rng = np.random.default_rng(0)
    for language in LANGUAGES:
        names = sorted(name for name in values[RESTORED] if Path(name).name.startswith(language))
        table = {system: np.array([values[system][name] for name in names])
                 for system in (RESTORED, NOISE, LINEAR, CEILING)}  # fmt: skip
        rows = rng.integers(len(names), size=(DRAWS, len(names)))
        for system in (NOISE, LINEAR, CEILING):
            ratios = table[RESTORED][rows].mean(1) / table[system][rows].mean(1)
            name = f"{language}: LSD-HF to {system}"
            figures[name] = float(table[RESTORED].mean() / table[system].mean())
            figures[f"{name}: low"], figures[f"{name}: high"] = map(float, np.quantile(ratios, (0.025, 0.975)))
        figures[f"{language}: LSD-HF"] = float(table[RESTORED].mean())
    _show(root, run)
    return figures


def _show(root: Path, run: Path) -> None:
    """Restore one prompt of two languages for the gallery."""
    restorer = load(run)
    valid = data_folder() / DATA / "valid"
    for language in SHOWN:
        path = sorted((valid / "low").glob(f"{language}_*"))[0]
        low, high = (files.read_mono(valid / part / path.name, SAMPLE_RATE) for part in ("low", "high"))
        size = int(SHOWN_SECONDS * SAMPLE_RATE)
        restored = restorer(low[:size], SAMPLE_RATE)
        save_sounds(root, language, {"input": low[:size], "restored": restored, "original": high[:size]}, SAMPLE_RATE)


DEMO = Demo(NAME, plan, measure, data=(DATA,))
CLAIMS = tuple(
    Claim(NAME, f"{title}, no language of the training: LSD above the band's edge, to {other}",
          f"{language}: LSD-HF to {system}", EACH, 1.0)
    for language, title in LANGUAGES.items()
    for system, other in ((NOISE, "shaped noise"), (LINEAR, "linear interpolation"))
)  # fmt: skip
