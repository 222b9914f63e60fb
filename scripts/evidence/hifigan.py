"""What a vocoder's run has learned: figures of one seed's runs; see `run.py`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import torch

from scripts.evidence.curves import read_curve
from zoo.audio.analysis.griffin_lim import griffin_lim
from zoo.audio.analysis.mel import LogMel
from zoo.audio.analysis.spectral import multi_resolution_stft
from zoo.audio.corpora.corpus import PEAK
from zoo.common.build import build
from zoo.common.configs import load_yaml
from zoo.hifigan.data import Clips, VocoderData
from zoo.hifigan.inference import Vocoder
from zoo.hifigan.task import mel_l1
from zoo.runs.components import read_components
from zoo.runs.load import load
from zoo.runs.metrics_csv import read_metrics
from zoo.runs.run_folder import find_config

METRIC = "val/mel_l1"
ORIGINAL, TRAINED, UNTRAINED, GRIFFIN_LIM = "original", "trained", "untrained", "griffin-lim"
MEASURES = ("mel_l1", "m_stft")


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
    mel = _log_mel(trained)
    audio = audio[: len(audio) // mel.hop_length * mel.hop_length]
    with torch.inference_mode():
        rebuilt = griffin_lim(mel(torch.from_numpy(audio)[None]), mel)[0].numpy()
    return {
        ORIGINAL: audio,
        TRAINED: trained(audio, trained.sample_rate),
        UNTRAINED: untrained(audio, trained.sample_rate),
        GRIFFIN_LIM: rebuilt,
    }


def _log_mel(model: Vocoder) -> LogMel:
    if not isinstance(model.front_end, LogMel):
        raise ValueError(f"a vocoder of {type(model.front_end).__name__}, expected one of mel spectrograms")
    return model.front_end


def score(prediction: np.ndarray, target: np.ndarray, mel: LogMel) -> dict[str, float]:
    """Distances of two signals (T,): mean absolute difference of log-mels, multi-resolution STFT distance."""
    one, other = (torch.from_numpy(np.ascontiguousarray(signal))[None, None] for signal in (prediction, target))
    values = (mel_l1(mel, one, other), multi_resolution_stft(one, other))
    return dict(zip(MEASURES, map(float, values), strict=True))


def measure(run: Path, quick: bool = False) -> dict[str, float]:
    """Measure the fall of `val/mel_l1` over a run, and copy synthesis of the first held-out clip (10 s at most).

    Args:
        run: run folder.
        quick: an excerpt of a second.

    Raises:
        ValueError: when the run is not one of a vocoder.
    """
    curve, held_out = read_curve(read_metrics(run), METRIC), _held_out(run)
    trained, untrained = load_pair(run)
    audio = held_out.corpus.read(int(held_out.indices[0]))[: (1 if quick else 10) * trained.sample_rate]
    signals = synthesize(trained, untrained, audio * (PEAK / max(float(np.abs(audio).max()), 1e-9)))
    original = signals.pop(ORIGINAL)
    figures = {f"{METRIC}: less than before training": 100 * curve.fall, f"{METRIC}: at the end": curve.last}
    for name, signal in signals.items():
        values = score(signal, original, _log_mel(trained))
        figures |= {f"{measure}, {name}": value for measure, value in values.items()}
    return figures


def _held_out(run: Path) -> Clips:
    """The validation clips of a run."""
    data: VocoderData = build(load_yaml(find_config(run).read_text(encoding="utf-8"))["data"])
    data.prepare_data()
    data.setup("fit")
    return cast(Clips, data.val_set)
