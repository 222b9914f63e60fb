"""Benchmarks of vocoders: python -m scripts.bench.hifigan overhead|order|vocos|inference|all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts.bench.hifigan_baselines import OriginalStep, PlainStep, Step, VocosStep, endless_batches
from scripts.bench.tools import (
    ENDLESS,
    Cost,
    Finding,
    Settings,
    command,
    in_folders,
    interleave,
    interleave_with_trainer,
    median,
    onnx_session,
    times_as_fast,
)
from zoo.cli.trainer import ZooCLI
from zoo.common.build import build
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root
from zoo.hifigan.inference import Vocoder
from zoo.hifigan.nets.generator import Generator
from zoo.runs.onnx_export import write_onnx

SAMPLE_RATE = 22050
HOP_SAMPLES = 256
VARIANTS = {"V1": "base", "V2": "v2", "V3": "v3"}  # the paper's generators and the recipes that hold them


def overhead(settings: Settings) -> list[Finding]:
    """The Trainer with the command line's callbacks against a plain loop with equal nets and order of passes."""
    costs = _against_trainer(settings, "v3", PlainStep)
    return [times_as_fast("step, V3, batch 2, to a plain loop: times as fast", costs, at_least=0.952)]


def order(settings: Settings) -> list[Finding]:
    """Our default step under the Trainer against the original's order of passes as a plain loop."""
    costs = _against_trainer(settings, "v3", OriginalStep)
    return [times_as_fast("default step, V3, batch 2: times as fast", costs, at_least=1.4)]


def vocos(settings: Settings) -> list[Finding]:
    """Our step of Vocos at 24 kHz with its discriminators under the Trainer against the package's nets and losses."""
    costs = _against_trainer(settings, "vocos_24k", VocosStep)
    return [times_as_fast("step of Vocos, batch 2, to the package vocos: times as fast", costs)]


def inference(settings: Settings) -> list[Finding]:
    """Seconds of computation for a second of audio, by processor time: in torch (folded weights) and onnxruntime."""
    findings = []
    for name, recipe in VARIANTS.items():
        frames = settings.few(10, 2) * SAMPLE_RATE // HOP_SAMPLES
        seconds = frames * HOP_SAMPLES / SAMPLE_RATE
        generator = _generator(recipe)
        million = sum(weight.numel() for weight in generator.parameters()) / 1e6
        costs = interleave(_runners(generator, settings.folder / f"{name}.onnx", frames), settings.few(3, 1))
        for runner, each in costs.items():
            cost = median(each) / seconds
            details = {"by wall time": cost.wall, "million": million, "rounds": len(each)}
            findings.append(Finding(f"real-time factor, {name}, {runner}", cost.cpu, "", details=details))
    return findings


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {
    each.__name__: each for each in (overhead, order, vocos, inference)
}


def _against_trainer(settings: Settings, recipe: str, step: type[Step | VocosStep]) -> dict[str, list[Cost]]:
    """Costs of a step of a recipe's `trainer`, which logs it, and of a plain loop, `other`."""
    fit = settings.build_fit(
        [
            f"--config={recipe_root() / 'hifigan' / recipe}.yaml",
            f"--trainer.default_root_dir={settings.folder / f'{recipe}-{step.__name__}'}",
            "--trainer.accelerator=cpu",
            "--trainer.devices=1",
            *ENDLESS,
            "--data.init_args.root=null",
            "--data.init_args.corpus.embedded_utterances=12",
            "--data.init_args.split.items=2",
            "--data.init_args.num_workers=0",
            "--data.init_args.batch_size=2",
            "--trainer.log_every_n_steps=1",
        ]
    )
    other = step(fit.model, endless_batches(fit.datamodule))
    return interleave_with_trainer(fit, other, settings.few(5, 1))


def _generator(recipe: str) -> Any:
    """The generator of a recipe with fresh weights, folded."""
    config = load_recipe(recipe_root() / "hifigan" / f"{recipe}.yaml")
    torch.manual_seed(0)
    return build(config["model"]["init_args"]["generator"]).eval().remove_weight_norm_()


def _runners(generator: Generator, path: Path, frames: int) -> dict[str, Callable[[], object]]:
    """Torch and onnxruntime on the same random mel."""
    write_onnx(Vocoder(generator, None, SAMPLE_RATE).onnx_graph(), path)
    mel = torch.randn(1, generator.in_channels, frames)
    session, inputs = onnx_session(path), {"frames": mel.numpy()}
    in_torch = torch.inference_mode()(partial(generator, mel))
    return {"torch": in_torch, "onnxruntime": partial(session.run, ["audio"], inputs)}


if __name__ == "__main__":
    command("hifigan", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
