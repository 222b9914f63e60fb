"""Vocoders from scratch at equal processor time on real speech: four of zoo, the package vocos, and Griffin-Lim.

All take the same mel of Asterisk's English prompts and learn from the same crops by the mel loss alone: minutes do not
pay for discriminators, and the package's cannot be made slim, so that none has any. The package's nets and loss are
trained as its `training_step` does before `pretrain_mel_steps`, on the same crops, for as long as zoo's Vocos. Held
out are prompts in other languages and LJSpeech, at 16 kHz.

Needs `pip install --no-deps vocos==0.1.0 encodec==0.1.1`; their dependencies would bring an old Lightning.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from scripts.bench.hifigan_baselines import endless_batches
from scripts.evidence.demo import EACH, Claim, Demo, EvidenceStep, Figures, data_folder, fit_step
from scripts.evidence.gallery import save_sounds
from zoo.audio.analysis.griffin_lim import griffin_lim
from zoo.audio.analysis.mel import LogMel
from zoo.audio.corpora.corpus import PEAK
from zoo.audio.evaluation.measures import AudioPair, compute_metrics
from zoo.audio.io import files
from zoo.common.build import build
from zoo.common.configs import load_recipe, load_yaml
from zoo.common.statistics import bootstrap_mean
from zoo.common.systems import recipe_root
from zoo.common.tensors import seeded_rng
from zoo.hifigan.data import VocoderData
from zoo.hifigan.inference import Vocoder
from zoo.hifigan.task import vocoder_metrics
from zoo.runs.load import load
from zoo.runs.run_folder import find_config

NAME, RECIPE = "hifigan/vocoders", "hifigan/prompts"
V2, V3, VOCOS, BIGVGAN, PACKAGE, GRIFFIN_LIM = "hifigan_v2 hifigan_v3 vocos bigvgan_small package griffin_lim".split()
STEPS = {V2: 420, V3: 470, VOCOS: 860, BIGVGAN: 280}  # of about equal processor time
MEASURES = ("pesq_wb", "m_stft", "mcd", "periodicity")
SAMPLE_RATE, SECONDS = 16000, 4.0  # of a held-out clip at most
PROMPTS, CLIPS = 3, 4  # held-out prompts of each language, and clips of LJSpeech
SHOWN = (V2, VOCOS, GRIFFIN_LIM)  # in the gallery
BETAS, MEL_WEIGHT = (0.8, 0.9), 45.0  # the package's momenta and weight

Synthesis = Callable[[np.ndarray], np.ndarray]


def generators() -> dict[str, dict[str, Any]]:
    """Describe the nets of published sizes by name; BigVGAN has the layout of V3 at a quarter of its width."""
    recipes = (load_recipe(recipe_root() / "hifigan" / f"{name}.yaml") for name in ("v2", "v3", "vocos_24k"))
    v2, v3, vocos = (recipe["model"]["init_args"]["generator"] for recipe in recipes)
    for each in (v2, v3):
        each["init_args"]["in_channels"] = vocos["init_args"]["in_channels"]
    vocos["init_args"]["padding"] = "same"
    small = {"class_path": "zoo.hifigan.BigVGAN", "init_args": v3["init_args"] | {"initial_channels": 64}}
    return {V2: v2, V3: v3, VOCOS: vocos, BIGVGAN: small}


def plan(root: Path, seed: int, quick: bool) -> Iterable[EvidenceStep]:
    """Train each net."""
    for name, generator in generators().items():
        changes = {"model__init_args__generator": json.dumps(generator), "trainer__max_steps": STEPS[name]}
        yield fit_step(root, name, RECIPE, seed, data__init_args__seed=seed, **changes)


def train_package(run: Path, seed: int, seconds: float) -> tuple[Synthesis, int]:
    """Train the package's net of a run's size on the run's crops for `seconds` of processor time.

    Returns:
        Its copy synthesis of audio (T,), and the number of its steps.
    """
    try:
        from vocos.feature_extractors import MelSpectrogramFeatures
        from vocos.heads import ISTFTHead
        from vocos.loss import MelSpecReconstructionLoss
        from vocos.models import VocosBackbone
    except ImportError as error:
        raise ValueError(f"{NAME} needs vocos ({error}): pip install --no-deps vocos==0.1.0 encodec==0.1.1") from error
    config = load_yaml(find_config(run).read_text(encoding="utf-8"))
    form, optimizer_form = (config["model"]["init_args"][name]["init_args"] for name in ("generator", "optimizer_g"))
    rate = optimizer_form["lr"]
    data, began, steps = cast(VocoderData, build(config["data"])), time.process_time(), 0
    data.prepare_data()
    data.setup("fit")
    crops = endless_batches(data)
    with seeded_rng(seed):
        features = MelSpectrogramFeatures(SAMPLE_RATE, n_mels=form["in_channels"], padding=form["padding"])
        backbone = VocosBackbone(form["in_channels"], form["dim"], form["intermediate_dim"], form["layers"])
        head = ISTFTHead(form["dim"], form["n_fft"], form["hop_length"], form["padding"])
        net = torch.nn.Sequential(features, backbone, head)
        loss, optimizer = MelSpecReconstructionLoss(SAMPLE_RATE), torch.optim.AdamW(net.parameters(), rate, BETAS)
        while (share := (time.process_time() - began) / seconds) < 1:
            optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * share))
            audio, steps = next(crops)["audio"], steps + 1
            optimizer.zero_grad()
            (MEL_WEIGHT * loss(net(audio), audio)).backward()
            optimizer.step()
    return lambda audio: net.eval()(torch.from_numpy(audio)[None])[0].detach().numpy(), steps


def held_out() -> list[np.ndarray]:
    """Read clips (T,) that no training hears, scaled as the training's."""
    data = data_folder()
    prompts: dict[str, list[Path]] = {}
    for path in sorted((data / "asterisk" / "valid" / "high").iterdir()):
        prompts.setdefault(path.name[:2], []).append(path)
    paths = [path for each in prompts.values() for path in each[:PROMPTS]]
    paths += sorted((data / "ljspeech" / "wavs").iterdir())[:CLIPS]
    clips = [files.read_mono(path, SAMPLE_RATE)[: int(SECONDS * SAMPLE_RATE)] for path in paths]
    return [clip * np.float32(PEAK / np.abs(clip).max()) for clip in clips]


def score(made: np.ndarray, clip: np.ndarray) -> dict[str, float]:
    """Compare copy synthesis with a clip (T,)."""
    pair = AudioPair(made, SAMPLE_RATE, clip, SAMPLE_RATE)
    made, clip = pair.at(SAMPLE_RATE)
    values = compute_metrics(pair, ("pesq",), SAMPLE_RATE)
    return values | vocoder_metrics(torch.from_numpy(made), torch.from_numpy(clip), SAMPLE_RATE)


def summarize(scores: Mapping[str, Sequence[Mapping[str, float]]]) -> Figures:
    """Take means over clips, with 95 % intervals of a bootstrap over them."""
    figures: Figures = {}
    for name, rows in scores.items():
        for measure in MEASURES:
            interval = bootstrap_mean(np.array([row[measure] for row in rows]))
            figures |= {f"{name}: {measure}{end}": value
                        for end, value in zip(("", ": low", ": high"), interval, strict=True)}  # fmt: skip
    return figures


def measure(root: Path, quick: bool = False) -> Figures:
    """Train the package's net, and compare all copy syntheses of the held-out clips."""
    steps = json.loads((root / "steps.json").read_text(encoding="utf-8"))
    seconds = {name: steps[name]["cpu_seconds"] for name in STEPS}
    vocoders = {name: cast(Vocoder, load(root / name)) for name in STEPS}
    package, package_steps = train_package(root / VOCOS, int(root.name), 1 if quick else seconds[VOCOS])
    mel = cast(LogMel, vocoders[V2].front_end)
    syntheses: dict[str, Synthesis] = {name: partial(net, sample_rate=SAMPLE_RATE) for name, net in vocoders.items()}
    syntheses[PACKAGE] = package
    syntheses[GRIFFIN_LIM] = lambda audio: griffin_lim(mel(torch.from_numpy(audio)[None]), mel)[0].numpy()
    clips = held_out()[:: 8 if quick else 1]
    made = {name: [synthesis(clip) for clip in clips] for name, synthesis in syntheses.items()}
    scores = {name: list(map(score, each, clips)) for name, each in made.items()}
    save_sounds(root, "prompt", {"original": clips[0], **{name: made[name][0] for name in SHOWN}}, SAMPLE_RATE, dpi=45)
    figures = summarize(scores) | {f"{name}: CPU seconds": value for name, value in seconds.items()}
    return figures | {f"{PACKAGE}: steps": package_steps, "clips": len(clips)}


DEMO = Demo(NAME, plan, measure, data=("asterisk", "ljspeech"))
CLAIMS = (
    Claim(NAME, "PESQ, Vocos to the package vocos", f"{VOCOS}: pesq_wb", EACH, at_least=1.0, to=f"{PACKAGE}: pesq_wb"),
    Claim(NAME, "M-STFT, Vocos to the package vocos", f"{VOCOS}: m_stft", EACH, 1.0, to=f"{PACKAGE}: m_stft"),
    Claim(NAME, "MCD, Vocos to the package vocos", f"{VOCOS}: mcd", EACH, 1.0, to=f"{PACKAGE}: mcd"),
    Claim(NAME, "M-STFT, Vocos to HiFi-GAN V2", f"{VOCOS}: m_stft", EACH, 0.9, to=f"{V2}: m_stft"),
    Claim(NAME, "PESQ, Vocos to Griffin-Lim", f"{VOCOS}: pesq_wb", EACH, at_least=0.45, to=f"{GRIFFIN_LIM}: pesq_wb"),
    Claim(NAME, "MCD of HiFi-GAN V2, dB", f"{V2}: mcd", EACH, 4.5),
    Claim(NAME, "MCD of HiFi-GAN V3, dB", f"{V3}: mcd", EACH, 4.5),
    Claim(NAME, "MCD of BigVGAN-small, dB", f"{BIGVGAN}: mcd", EACH, 5.5),
)
