"""What a HiFi-GAN run has learned: python -m scripts.evidence.hifigan RUN --clip FILE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from scripts.bench.tools import Finding, evidence, save
from scripts.evidence.curves import Curve, read_curve
from zoo.audio.analysis.griffin_lim import griffin_lim
from zoo.audio.analysis.mel import LogMel
from zoo.audio.analysis.spectral import multi_resolution_stft
from zoo.audio.corpora.corpus import PEAK
from zoo.audio.io import files
from zoo.common.atomic_files import write_atomic
from zoo.common.build import build
from zoo.common.configs import load_yaml
from zoo.hifigan.data import Clips, Crops, VocoderData
from zoo.hifigan.inference import Vocoder
from zoo.hifigan.task import mel_l1
from zoo.runs.components import read_components
from zoo.runs.load import load
from zoo.runs.metrics_csv import read_metrics
from zoo.runs.run_folder import find_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure


METRIC = "val/mel_l1"
ORIGINAL, TRAINED, UNTRAINED, GRIFFIN_LIM = "original", "trained", "untrained", "griffin-lim"
MEASURES = ("mel_l1", "m_stft")


def check_unseen(run: Path, clip: Path) -> None:
    """Make sure that a run did not train on a clip.

    Args:
        run: folder with config.yaml.
        clip: audio file; clips are told apart by their names without suffix.

    Raises:
        ValueError: when the run's training set holds a clip of this name.
    """
    config = load_yaml(find_config(run).read_text(encoding="utf-8"))
    data: VocoderData = build(config["data"])
    data.prepare_data()
    data.setup("fit")
    train, held_out = cast(Crops, data.train_set), cast(Clips, data.val_set)
    if clip.stem in {Path(train.corpus.names[index]).stem for index in train.indices}:
        names = [held_out.corpus.names[index] for index in held_out.indices[:5]]
        raise ValueError(f"{clip} was trained on; held out are {', '.join(names)}, or use a clip of elsewhere")


def load_pair(run: Path, seed: int = 0) -> tuple[Vocoder, Vocoder]:
    """Load a trained model, and build the same one with fresh weights.

    Args:
        run: run folder or checkpoint.
        seed: of the fresh weights.

    Raises:
        ValueError: when the run holds no vocoder of audio.
    """
    trained = load(run)
    if not isinstance(trained, Vocoder) or trained.mel is None:
        raise ValueError(f"{run} holds a {type(trained).__name__}, expected a Vocoder with a mel front end")
    specs, _, _ = read_components(run)
    torch.manual_seed(seed)
    untrained = Vocoder(**{name: build(spec) for name, spec in specs["components"].items()}).eval()
    return trained, untrained


def synthesize(trained: Vocoder, untrained: Vocoder, audio: np.ndarray) -> dict[str, np.ndarray]:
    """Copy synthesis by both nets and by Griffin-Lim from the same mel.

    Args:
        trained: the trained model.
        untrained: the same with fresh weights.
        audio: (T,) float32 at the model's rate.

    Returns:
        Audio by name of the method, trimmed to whole frames, the original first.
    """
    mel = trained.front_end
    audio = audio[: len(audio) // mel.hop_length * mel.hop_length]
    with torch.inference_mode():
        rebuilt = griffin_lim(mel(torch.from_numpy(audio)[None]), mel)[0].numpy()
    return {
        ORIGINAL: audio,
        TRAINED: trained(audio, trained.sample_rate),
        UNTRAINED: untrained(audio, trained.sample_rate),
        GRIFFIN_LIM: rebuilt,
    }


def score(found: np.ndarray, wanted: np.ndarray, mel: LogMel) -> dict[str, float]:
    """Distances of two signals (T,): mean absolute difference of log-mels, multi-resolution STFT distance."""
    one, other = (torch.from_numpy(np.ascontiguousarray(signal))[None, None] for signal in (found, wanted))
    values = (mel_l1(mel, one, other), multi_resolution_stft(one, other))
    return dict(zip(MEASURES, map(float, values), strict=True))


def gather(run: Path, *, clip: Path, seconds: float = 10.0, quick: bool = False) -> list[Finding]:
    """Fall of `val/mel_l1` over a run, and copy synthesis of a clip, written into the run's folder.

    Args:
        run: run folder.
        clip: audio file that the run did not train on.
        seconds: longest excerpt from its beginning.
        quick: an excerpt of a second.

    Returns:
        Also in evidence.json, with the curve. Beside it lie evidence.png (mels and curve) and the sounds,
        evidence/<method>.wav.

    Raises:
        FileNotFoundError: when run or clip is missing.
        ValueError: when the clip was trained on or the run is not one of a vocoder.
    """
    check_unseen(run, clip)
    rows = read_metrics(run)
    curve = read_curve(rows, METRIC)
    trained, untrained = load_pair(run)
    mel, rate = trained.front_end, trained.sample_rate
    audio = files.read_mono(clip, rate)[: int((1 if quick else seconds) * rate)]
    signals = synthesize(trained, untrained, audio * (PEAK / max(float(np.abs(audio).max()), 1e-9)))
    scores = {name: score(signals[name], signals[ORIGINAL], mel) for name in (TRAINED, UNTRAINED, GRIFFIN_LIM)}
    falls = {"before training": curve.first, "at the end": curve.last, "best": curve.best}
    findings = [Finding(f"{METRIC}: less than before training", 100 * curve.fall, "%", details=falls)]
    for measure in MEASURES:
        for name, found in scores.items():
            ratio = {"trained net to it, x": scores[TRAINED][measure] / found[measure]} if name != TRAINED else {}
            findings.append(Finding(f"{measure}, {name}", found[measure], "", details=ratio))
    for name, signal in signals.items():
        files.write(run / "evidence" / f"{name}.wav", signal, rate)
    mels = {name: mel(torch.from_numpy(signal)[None])[0] for name, signal in signals.items()}
    drawn = figure(mels, curve, read_curve(rows, "train/g/mel"))
    write_atomic(run / "evidence.png", lambda file: drawn.savefig(file, format="png"))
    excerpt = {"clip": clip.name, "seconds": len(signals[ORIGINAL]) / rate}
    save(run / "evidence.json", findings, evidence="copy synthesis", **excerpt, curve=asdict(curve), scores=scores)
    return findings


def figure(mels: Mapping[str, Tensor], validation: Curve, training: Curve) -> Figure:
    """Draw mels (n_mels, F) below one another, all on the first one's scale, and the curves beneath."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8, 2.2 * (len(mels) + 1)), dpi=100, layout="constrained")
    *upper, lowest = drawn.subplots(len(mels) + 1, 1)
    scale = next(iter(mels.values()))
    for axes, (name, mel) in zip(upper, mels.items(), strict=True):
        axes.imshow(
            mel.numpy(), origin="lower", aspect="auto", cmap="magma", vmin=float(scale.min()), vmax=float(scale.max())
        )
        axes.set(title=name, ylabel="mel band")
    lowest.plot(training.steps, training.values, alpha=0.5, label="train/g/mel")
    lowest.plot(validation.steps, validation.values, marker="o", label=METRIC)
    lowest.set(xlabel="batch", ylabel="log-mel L1", yscale="log")
    lowest.legend()
    return drawn


if __name__ == "__main__":
    evidence({"copy synthesis": gather})
