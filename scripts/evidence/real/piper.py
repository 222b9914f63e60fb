"""Fine-tuning from a real vocoder: HiFi-GAN V3 begun with a Piper voice's decoder, beside one with fresh weights.

The voice's decoder takes latents of VITS, so that its first convolution is new; LJSpeech's reader is another speaker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from scripts.evidence.curves import read_curve
from scripts.evidence.demo import EACH, Claim, Demo, EvidenceStep, Figures, data_folder, fit_step, lasting
from scripts.evidence.hifigan import METRIC
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root
from zoo.runs.metrics_csv import read_metrics

NAME, DATA = "hifigan/piper", "piper"  # ZOO_DATA/piper: scripts/prepare_piper.py
STEPS, RATES = {"tuned": 150, "fresh": 300}, {"tuned": 5e-4, "fresh": 2e-3}  # batches, learning rates
RATIO = f"{METRIC}: after {STEPS['tuned']} batches from the voice, to {STEPS['fresh']} from fresh weights"


def plan(root: Path, seed: int, quick: bool) -> Iterable[EvidenceStep]:
    """Train the same net twice; the mel loss alone."""
    generator = load_recipe(recipe_root() / "hifigan" / "v3.yaml")["model"]["init_args"]["generator"]
    generator["init_args"]["in_channels"] = 80
    begun = {"tuned": {"init_from": data_folder() / DATA / "g_00000000"}, "fresh": {}}
    for name, steps in STEPS.items():
        changes = {"data__init_args__seed": seed, "model__init_args__generator": json.dumps(generator)}
        changes["model__init_args__optimizer_g__init_args__lr"] = RATES[name]
        yield fit_step(root, name, "hifigan/demo", seed, **changes, **lasting(steps), **begun[name])


def measure(root: Path, quick: bool = False) -> Figures:
    """Compare the first validation of the fine-tuning with the last one of the fresh net."""
    curves = {name: read_curve(read_metrics(root / name), METRIC) for name in STEPS}
    figures = {f"{name}: {when}": value for name, curve in curves.items()
               for when, value in (("before training", curve.first), ("at the end", curve.last))}  # fmt: skip
    return {**figures, RATIO: curves["tuned"].last / curves["fresh"].last}


DEMO = Demo(NAME, plan, measure, data=("ljspeech", DATA))
CLAIMS = (Claim(NAME, RATIO, RATIO, EACH, 1.0),)
