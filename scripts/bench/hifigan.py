"""Benchmarks of vocoders: python -m scripts.bench.hifigan overhead|order|inference|all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scripts.bench.hifigan_baselines import OriginalStep, PlainStep, Step
from scripts.bench.tools import (
    ENDLESS,
    Cost,
    Finding,
    Fit,
    Settings,
    command,
    cpu_ms,
    in_folders,
    interleave,
    interleave_with_trainer,
    median,
    onnx_session,
    ratios,
    times_as_fast,
)
from zoo.common.build import build
from zoo.common.configs import load_recipe
from zoo.common.systems import recipe_root
from zoo.hifigan.data import VocoderData
from zoo.hifigan.inference import Vocoder
from zoo.hifigan.nets.generator import Generator
from zoo.runs.onnx_export import write_onnx

SAMPLE_RATE = 22050
HOP_SAMPLES = 256
VARIANTS = {"V1": "base", "V2": "v2", "V3": "v3"}  # the paper's generators and the recipes that hold them


def overhead(settings: Settings) -> list[Finding]:
    """The Trainer with the command line's callbacks against a plain loop with equal nets and order of passes."""
    costs = _against_trainer(settings, "v3", PlainStep, rounds=settings.few(6, 2), steps=1, extra=_FULL_SIZE)
    ratio = ratios(costs["trainer"], costs["other"])
    findings = [
        Finding(
            "framework overhead, V3, batch 2",
            100 * (ratio.cpu - 1),
            "%",
            at_most=5.0,
            details={
                "by wall time, %": 100 * (ratio.wall - 1),
                **cpu_ms(costs),
                "rounds": len(costs["other"]),
            },
        )
    ]
    steps, rounds = settings.few(20, 10), settings.few(9, 3)
    costs = _against_trainer(settings, "smoke", PlainStep, rounds, steps, warmup=10)
    added = median([zoo_result - plain for zoo_result, plain in zip(costs["trainer"], costs["other"], strict=True)])
    details = {"by wall time, ms": 1000 * added.wall, **cpu_ms(costs), "steps": rounds * steps}
    return [*findings, Finding("added processor time a step, smoke", 1000 * added.cpu, "ms", details=details)]


def order(settings: Settings) -> list[Finding]:
    """Our default step under the Trainer against the original's order of passes as a plain loop."""
    rounds = settings.few(6, 2)
    costs = _against_trainer(settings, "v3", OriginalStep, rounds, steps=1, extra=_FULL_SIZE)
    return [times_as_fast("default step, V3, batch 2: times as fast", costs, at_least=1.4)]


def inference(settings: Settings) -> list[Finding]:
    """Seconds of computation for a second of audio: V1, V2, V3 in torch (folded weights) and onnxruntime."""
    findings = []
    for name, recipe in VARIANTS.items():
        rounds = settings.few(2 if name == "V1" else 7, 1)
        frames = settings.few(10, 2) * SAMPLE_RATE // HOP_SAMPLES
        seconds = frames * HOP_SAMPLES / SAMPLE_RATE
        costs = interleave(_runners(_generator(recipe), settings.folder / f"{name}.onnx", frames), rounds)
        for runner, each in costs.items():
            cost = median(each) / seconds
            details = {"by processor time": cost.cpu, "times real time": 1 / cost.wall, "rounds": rounds}
            findings.append(Finding(f"real-time factor, {name}, {runner}", cost.wall, "", details=details))
    return findings


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {
    each.__name__: each for each in (overhead, order, inference)
}

# every step is logged, which no recipe of full size asks for: the overhead is an upper bound
_FULL_SIZE = ("--data.init_args.batch_size=2", "--trainer.log_every_n_steps=1")


def _against_trainer(
    settings: Settings,
    recipe: str,
    step: type[Step],
    rounds: int,
    steps: int,
    warmup: int = 1,
    extra: tuple[str, ...] = (),
) -> dict[str, list[Cost]]:
    """Costs of a step of a recipe's `trainer` and of a plain loop, `other`."""
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
            *extra,
        ]
    )
    other = step(fit.model, _endless(fit.datamodule))
    return interleave_with_trainer(fit, other, rounds, steps, warmup)


def _endless(data: VocoderData) -> Iterator[dict[str, Tensor]]:
    batches = data.train_dataloader()
    epoch = 0
    while True:
        batches.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
        yield from batches
        epoch += 1


def _generator(recipe: str, **options: Any) -> Any:
    """The generator of a recipe with fresh weights, folded; `options` are set otherwise."""
    config = load_recipe(recipe_root() / "hifigan" / f"{recipe}.yaml")
    torch.manual_seed(0)
    spec = config["model"]["init_args"]["generator"]
    return build({**spec, "init_args": spec["init_args"] | options}).eval().remove_weight_norm_()


def _runners(
    generator: Generator, path: Path, frames: int, threads: Sequence[int] = (1, 2)
) -> dict[str, Callable[[], object]]:
    """Torch and onnxruntime on each number of threads, on the same random mel."""
    write_onnx(Vocoder(generator, None, 22050).onnx_graph(), path)
    mel = torch.randn(1, generator.in_channels, frames)
    threads_before = torch.get_num_threads()

    def in_torch(threads: int) -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            generator(mel)
        torch.set_num_threads(threads_before)

    def session(threads: int) -> Callable[[], object]:
        opened = onnx_session(path, threads)
        return lambda: opened.run(["audio"], {"frames": mel.numpy()})

    runners: dict[str, Callable[[], object]] = {}
    for count in threads:
        runners[f"torch, {count} thread(s)"] = partial(in_torch, count)
        runners[f"onnxruntime, {count} thread(s)"] = session(count)
    return runners


def build_fit(args: list[str]) -> Fit:
    """What `zoo fit` builds; imported here so that the fresh processes of the memory benchmark stay small."""
    from zoo.cli.trainer import ZooCLI

    return ZooCLI("fit", args)


if __name__ == "__main__":
    command("hifigan", in_folders(BENCHMARKS, partial(Settings, build_fit)))
