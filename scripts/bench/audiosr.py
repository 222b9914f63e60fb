"""Benchmarks of AudioSR: python -m scripts.bench.audiosr step|samplers|restore|all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from scripts.bench.audiosr_others import ORIGINAL_DECAY, OriginalStep
from scripts.bench.tools import (
    ENDLESS,
    Finding,
    Settings,
    command,
    in_folders,
    interleave,
    interleave_with_trainer,
    median,
    times_as_fast,
)
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audiosr.diffusion import Sampler
from zoo.audiosr.inference.restore import Restorer
from zoo.audiosr.nets.denoiser import concat
from zoo.audiosr.options import RestoreOptions
from zoo.audiosr.samplers import DDIM, DPMSolver
from zoo.cli.trainer import ZooCLI
from zoo.common.build import build
from zoo.common.systems import recipe_root

PARTS = ("net", "autoencoder", "vocoder", "features", "diffusion")
CROP_SAMPLES = 122_880  # 2.56 s at 48 kHz: 256 frames
MIDDLE = OmegaConf.create(f"""
model:
  init_args:
    net: {{init_args: {{unet: {{init_args: {{
      in_channels: 32, out_channels: 16, channels: 32, multipliers: [1, 2, 3, 5], blocks: 2,
      attention_factors: [2, 4, 8], head_channels: 32, transformers_per_down_block: 2, norm_groups: 8,
      checkpointing: false
    }}}}}}}}
    autoencoder: {{init_args: {{config: {{
      in_channels: 1, out_channels: 1, block_out_channels: [32, 64, 128, 256], layers_per_block: 2,
      latent_channels: 16, norm_num_groups: 8
    }}}}}}
    vocoder: {{init_args: {{config: {{
      in_channels: 256, initial_channels: 384, upsample_rates: [6, 5, 4, 2, 2],
      upsample_kernel_sizes: [12, 11, 8, 4, 4], resblock: "1", resblock_kernel_sizes: [3, 7, 11, 15],
      resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5], [1, 3, 5]]
    }}}}}}
    features: {{init_args: {{n_fft: 2048, hop_length: 480, n_mels: 256}}}}
data:
  init_args:
    sample_rate: 48000
    segment_samples: {CROP_SAMPLES}
    batch_size: 2
    simulation:
      class_path: zoo.audiosr.Simulation
      init_args: {{filter_types: [butter], order: [8, 8], resampling: 1.0}}
""")
"""What the middle size changes in the recipe `smoke`; each item gets the original's one filter, with resampling."""


def step(settings: Settings) -> list[Finding]:
    """A step of `zoo fit`, from its items on, against the original's order of work; and its average alone."""
    findings = []
    for name, checkpointing in {"both with checkpointing": True, "each by its default": False}.items():
        fit = _fit(settings, checkpointing)
        fit.datamodule.setup("fit")
        original = OriginalStep(fit.model, fit.datamodule, float(fit.trainer.gradient_clip_val or 0), True)
        costs = interleave_with_trainer(fit, original, settings.few(7, 1), warmup=1)
        findings.append(times_as_fast(f"training step, {name}: times as fast", costs))
    kept = [weight.detach().clone() for weight in original.net.parameters()]
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(ORIGINAL_DECAY)
    runs: dict[str, Callable[[], object]] = {
        "what trains": torch.no_grad()(partial(average, kept, list(original.net.parameters()), None)),
        "everything": original.update_average,
    }
    costs = interleave(runs, settings.few(21, 1), warmup=2)
    weights = sum(map(Tensor.numel, original.weights))
    return [*findings, times_as_fast("average of everything to average of what trains", costs, weights=weights)]


def samplers(settings: Settings) -> list[Finding]:
    """Sampling the latents of a crop without guidance: DDIM at 100 steps against DPM-Solver++ at 15."""
    parts = middle_parts()
    net, diffusion, autoencoder, features = (parts[name] for name in ("net", "diffusion", "autoencoder", "features"))
    net.eval()
    frames = CROP_SAMPLES // features.hop_length // autoencoder.factor
    latents = (autoencoder.latent_channels, frames, features.n_mels // autoencoder.factor)
    noise, condition = torch.randn(2, 1, *latents, generator=torch.Generator().manual_seed(0)).unbind()
    ways: dict[str, Sampler] = {"DPM-Solver++": DPMSolver(settings.few(15, 1)), "DDIM": DDIM(settings.few(100, 4))}

    def predict(x: Tensor, t: Tensor) -> Tensor:
        return net(concat(x, condition), t)

    runs = {name: partial(each.sample, predict, noise, diffusion) for name, each in ways.items()}
    costs = interleave(runs, settings.few(3, 1), warmup=settings.few(1, 0))
    return [times_as_fast("sampling, DPM-Solver++ 15 to DDIM 100: times as fast", costs)]


def restore(settings: Settings) -> list[Finding]:
    """Seconds of computation for a second of restored audio, and memory of a long against a short file."""
    seconds = settings.few(5, 1)
    audio = SyntheticSpeech(16000, seconds=(seconds, seconds)).utterance(0)
    findings = []
    for scale in (3.5, 1.0):
        restorer = Restorer(
            **middle_parts(), restore=RestoreOptions(DPMSolver(settings.few(15, 1)), guidance_scale=scale)
        )
        cost = median(interleave({"restore": partial(restorer, audio, 16000)}, settings.few(2, 1), 0)["restore"])
        details = {"by wall time": cost.wall / seconds, "seconds": seconds}
        name = f"real-time factor, DPM-Solver++ 15, guidance {scale:g}"
        findings.append(Finding(name, cost.cpu / seconds, "", details=details))
    return findings


def middle_parts() -> dict[str, Any]:
    """Parts of inference at the middle size, random weights."""
    return _parts(OmegaConf.merge(_smoke(), MIDDLE))


BENCHMARKS: dict[str, Callable[[Settings], list[Finding]]] = {each.__name__: each for each in (step, samplers, restore)}


def _smoke() -> Any:
    return OmegaConf.load(recipe_root() / "audiosr" / "smoke.yaml")


def _parts(config: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return {name: build(plain["model"]["init_args"][name]) for name in PARTS}


def _fit(settings: Settings, checkpointing: bool) -> Any:
    """A training of the middle size, without spectral losses, as the command line builds it."""
    return settings.build_fit(_arguments(settings, checkpointing, f"run-{checkpointing}"))


def _arguments(settings: Settings, checkpointing: bool, name: str) -> list[str]:
    path = settings.folder / "middle.yaml"
    OmegaConf.save(OmegaConf.create({}) if settings.quick else MIDDLE, path)
    switch = "--model.init_args.net.init_args.unet.init_args.checkpointing"
    return [
        f"--config={recipe_root() / 'audiosr' / 'smoke.yaml'}",
        f"--config={path}",
        f"--trainer.default_root_dir={settings.folder / name}",
        *ENDLESS,
        "--model.init_args.losses.mel.init_args.weight=0",
        "--model.init_args.losses.stft.init_args.weight=0",
        f"{switch}={str(checkpointing).lower()}",
    ]


if __name__ == "__main__":
    command("audiosr", in_folders(BENCHMARKS, partial(Settings, partial(ZooCLI, "fit"))))
