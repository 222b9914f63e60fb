"""Benchmarks of AudioSR: python -m scripts.bench.audiosr step|restore|all.

Nets are the original's, with random weights: those of the recipes `base`, `vae_base` and `vocoder_base`. Steps are of
half their widths, since two trainings of 1.1 billion weights with averages and moments need more than 24 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from omegaconf import OmegaConf

from scripts.bench.audiosr_others import OriginalStep
from scripts.bench.tools import (
    ENDLESS,
    Finding,
    Settings,
    command,
    cost_of,
    in_folders,
    interleave_with_trainer,
    times_as_fast,
)
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audiosr.inference.restore import Restorer
from zoo.audiosr.options import RestoreOptions
from zoo.audiosr.samplers import DPMSolver
from zoo.cli.trainer import ZooCLI
from zoo.common.build import build
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root

PARTS = ("net", "autoencoder", "vocoder", "features", "diffusion")
HALF = {
    "net": {"init_args": {"unet": {"init_args": {"channels": 64}}}},
    "autoencoder": {"init_args": {"config": {"block_out_channels": [64, 128, 256, 512]}}},
    "vocoder": {"init_args": {"config": {"initial_channels": 768}}},
}
CROP = {"segment_samples": 122_880, "batch_size": 1, "num_workers": 0}  # 2.56 s at 48 kHz: 256 frames


def step(settings: Settings) -> list[Finding]:
    """A step of `zoo fit`, from its items on, against the original's order of work."""
    findings = []
    for name, checkpointing in {"both with checkpointing": True, "each by its default": False}.items():
        fit = settings.build_fit(_arguments(settings, checkpointing, f"run-{checkpointing}"))
        fit.datamodule.setup("fit")
        original = OriginalStep(fit.model, fit.datamodule, float(fit.trainer.gradient_clip_val or 0), True)
        costs = interleave_with_trainer(fit, original, settings.few(3, 1), warmup=1)
        million = sum(weight.numel() for weight in fit.model.net.parameters()) / 1e6
        findings.append(times_as_fast(f"training step, {name}: times as fast", costs, million=million))
    return findings


def restore(settings: Settings) -> list[Finding]:
    """Seconds of computation for a second of restored audio."""
    seconds = settings.few(3, 1)
    audio = SyntheticSpeech(16000, seconds=(seconds, seconds)).utterance(0)
    parts = _parts(settings)
    sizes = {name: sum(weight.numel() for weight in parts[name].parameters()) / 1e6 for name in PARTS[:3]}
    findings = [Finding(f"parameters, {name}", size, "million") for name, size in sizes.items()]
    for scale in (3.5, 1.0):
        restorer = Restorer(**parts, restore=RestoreOptions(DPMSolver(settings.few(15, 1)), guidance_scale=scale))
        cost = cost_of(partial(restorer, audio, 16000))
        details = {"by wall time": cost.wall / seconds, "seconds": seconds}
        name = f"real-time factor, DPM-Solver++ 15, guidance {scale:g}"
        findings.append(Finding(name, cost.cpu / seconds, "", details=details))
    return findings


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {each.__name__: each for each in (step, restore)}


def _recipe(name: str) -> Any:
    config = OmegaConf.create(load_recipe(recipe_root() / "audiosr" / f"{name}.yaml"))
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return plain["model"]["init_args"]


def _nets() -> dict[str, Any]:
    """The frozen nets of `base` with random weights, in place of runs."""
    made = {"autoencoder": _recipe("vae_base")["autoencoder"], "vocoder": _recipe("vocoder_base")["generator"]}
    return {name: {"init_args": {"source": None, "config": each["init_args"]}} for name, each in made.items()}


def _parts(settings: Settings) -> dict[str, Any]:
    """Parts of inference, random weights."""
    torch.manual_seed(0)
    specs: Any = (
        _recipe("smoke") if settings.quick else OmegaConf.to_container(OmegaConf.merge(_recipe("base"), _nets()))
    )
    return {name: build(specs[name]) for name in PARTS}


def _arguments(settings: Settings, checkpointing: bool, name: str) -> list[str]:
    """Of a training on the corpus made in code, whose items get the original's one filter, with resampling."""
    simulation = {"filter_types": ["butter"], "order": [8, 8], "resampling": 1.0}
    data = {"root": None, **CROP, "simulation": {"class_path": "zoo.audiosr.Simulation", "init_args": simulation}}
    trainer = {"accelerator": "cpu", "precision": "32-true"}
    nets = OmegaConf.merge(_nets(), HALF)
    changes = {"trainer": trainer, "model": {"init_args": nets}, "data": {"init_args": data}}
    path = settings.folder / "changes.yaml"
    OmegaConf.save(OmegaConf.create({} if settings.quick else changes), path)
    switch = "--model.init_args.net.init_args.unet.init_args.checkpointing"
    losses = [f"--model.init_args.losses.{loss}.init_args.weight=0" for loss in ("mel", "stft")]
    return [
        f"--config={recipe_root() / 'audiosr' / ('smoke' if settings.quick else 'base')}.yaml",
        f"--config={path}",
        f"--trainer.default_root_dir={settings.folder / name}",
        *ENDLESS,
        *(losses if settings.quick else []),
        f"{switch}={str(checkpointing).lower()}",
    ]


if __name__ == "__main__":
    command("audiosr", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
