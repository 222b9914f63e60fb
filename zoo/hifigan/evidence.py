"""The evidence that a run learned: its curve, and one unseen clip vocoded by it, by an untrained net, by Griffin-Lim."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from rich.console import Console
from rich.table import Table
from torch import Tensor

from zoo.atomic import write_atomic
from zoo.audio import files
from zoo.audio.griffin_lim import griffin_lim
from zoo.audio.mel import LogMel
from zoo.audio.spectral import multi_resolution_stft
from zoo.hifigan.data import PEAK, VocoderData
from zoo.hifigan.task import mel_l1
from zoo.hifigan.vocoder import Vocoder
from zoo.load import inference_class, load, read_parts
from zoo.training.build import build
from zoo.training.csv_log import Row, read_metrics
from zoo.training.run import find_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "val/mel_l1"
TRAINED, UNTRAINED, GRIFFIN_LIM = "trained", "untrained", "griffin-lim"


@dataclass(frozen=True)
class Curve:
    """How a metric went over a run; a step counts batches trained before the logged one.

    Args:
        steps: of the values.
        values: of the metric, the first before training.
    """

    steps: list[int]
    values: list[float]

    @property
    def first(self) -> float:
        """Before training."""
        return self.values[0]

    @property
    def last(self) -> float:
        """At the end."""
        return self.values[-1]

    @property
    def best(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def fall(self) -> float:
        """Share of the first value that the last one has lost."""
        return 1 - self.last / self.first


@dataclass(frozen=True)
class Score:
    """Distance of a signal from the original.

    Args:
        mel_l1: mean absolute difference of log-mels, the model's own front end.
        m_stft: multi-resolution STFT distance.
    """

    mel_l1: float
    m_stft: float


def curve_of(rows: list[Row], key: str = METRIC) -> Curve:
    """Read a curve from the rows of metrics.csv.

    Raises:
        ValueError: when the metric was logged less than twice.
    """
    points = [(int(row["step"]), float(row[key])) for row in rows if row.get(key)]
    if len(points) < 2:
        raise ValueError(f"metrics.csv holds {len(points)} values of {key}: evidence needs one before and one after")
    return Curve([step for step, _ in points], [value for _, value in points])


def check_unseen(run: Path, clip: Path) -> None:
    """Make sure that a run did not train on a clip.

    Args:
        run: folder with config.yaml.
        clip: audio file; clips are told apart by their names without suffix.

    Raises:
        ValueError: when the run's training set holds a clip of this name.
    """
    config = yaml.safe_load(find_config(run).read_text(encoding="utf-8"))
    data: VocoderData = build(config["data"])
    data.prepare_data()
    data.setup("fit")
    trained_on = {Path(data.train_set.corpus.names[index]).stem for index in data.train_set.indices}
    if clip.stem in trained_on:
        held_out = sorted(data.val_set.corpus.names[index] for index in data.val_set.indices)
        raise ValueError(f"{clip} was trained on; held out are {', '.join(held_out[:5])}, or use a clip of elsewhere")


def synthesise(run: Path, audio: np.ndarray, seed: int = 0) -> tuple[dict[str, np.ndarray], Vocoder]:
    """Copy synthesis by the trained net, by the same net with fresh weights, and by Griffin-Lim.

    Args:
        run: run folder or checkpoint.
        audio: (T,) float32 at the model's rate.
        seed: of the fresh weights and of Griffin-Lim's phases.

    Returns:
        Audio (T,) by name of the method, and the trained model.

    Raises:
        ValueError: when the run holds no vocoder of audio.
    """
    trained = load(run)
    if not isinstance(trained, Vocoder):
        raise ValueError(f"{run} holds a {type(trained).__name__}, expected a Vocoder")
    specs, _, _ = read_parts(run)
    torch.manual_seed(seed)
    parts = {name: build(spec) for name, spec in specs["parts"].items()}
    untrained = inference_class(specs["inference"])(**parts).eval()
    mel = trained.front_end(torch.from_numpy(audio)[None])
    with torch.inference_mode():
        rebuilt = griffin_lim(mel, trained.front_end, seed=seed)[0].numpy()
    return {
        TRAINED: trained(audio, trained.sample_rate),
        UNTRAINED: untrained(audio, trained.sample_rate),
        GRIFFIN_LIM: rebuilt,
    }, trained


def score(found: np.ndarray, wanted: np.ndarray, mel: LogMel) -> Score:
    """Compare two signals (T,)."""
    one, other = (torch.from_numpy(np.ascontiguousarray(signal))[None, None] for signal in (found, wanted))
    return Score(float(mel_l1(mel, one, other)), float(multi_resolution_stft(one, other)))


def gather(run: Path, clip: Path, seconds: float = 10.0) -> dict[str, Any]:
    """Collect the evidence of a run and write it into its folder.

    Args:
        run: run folder.
        clip: audio file that the run did not train on.
        seconds: longest excerpt from its beginning.

    Returns:
        What evidence.json holds: the curve, the scores by method, and whether the trained net is ahead of the others
        on both. Beside it lie evidence.png (mels and curve) and the sounds, evidence/<method>.wav.

    Raises:
        FileNotFoundError: when run or clip is missing.
        ValueError: when the clip was trained on or the run is not one of a vocoder.
    """
    check_unseen(run, clip)
    rows = read_metrics(run)
    curve = curve_of(rows)
    specs, _, _ = read_parts(run)
    rate = build(specs["parts"]["mel"]).sample_rate
    audio = files.read_mono(clip, rate)[: int(seconds * rate)]
    audio = audio * (PEAK / max(float(np.abs(audio).max()), 1e-9))
    signals, vocoder = synthesise(run, audio)
    mel = vocoder.front_end
    whole = len(audio) // mel.hop_length * mel.hop_length  # Griffin-Lim makes whole frames only
    signals = {name: signal[:whole] for name, signal in {"original": audio, **signals}.items()}
    scores = {name: score(signals[name], signals["original"], mel) for name in (TRAINED, UNTRAINED, GRIFFIN_LIM)}
    ahead = {
        name: scores[TRAINED].mel_l1 < scores[name].mel_l1 and scores[TRAINED].m_stft < scores[name].m_stft
        for name in (UNTRAINED, GRIFFIN_LIM)
    }
    evidence = {
        "clip": clip.name,
        "seconds": whole / rate,
        "curve": {**asdict(curve), "first": curve.first, "last": curve.last, "best": curve.best, "fall": curve.fall},
        "scores": {name: asdict(each) for name, each in scores.items()},
        "ahead_of": ahead,
    }
    for name, signal in signals.items():
        files.write(run / "evidence" / f"{name}.wav", signal, rate)
    mels = {name: mel(torch.from_numpy(signal)[None])[0] for name, signal in signals.items()}
    drawn = figure(mels, curve, curve_of(rows, "train/g/mel"))
    write_atomic(run / "evidence.png", lambda file: drawn.savefig(file, format="png"))
    write_atomic(run / "evidence.json", lambda file: file.write(json.dumps(evidence, indent=2).encode()))
    return evidence


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
    lowest.set(xlabel="batch", ylabel="mean |difference| of log-mels", yscale="log")
    lowest.legend()
    return drawn


def show(evidence: Mapping[str, Any]) -> None:
    """Print curve and scores as tables."""
    curve = evidence["curve"]
    console = Console()
    console.print(
        f"{METRIC}: {curve['first']:.3f} before training, {curve['last']:.3f} at the end ({curve['fall']:.0%} less), "
        f"best {curve['best']:.3f}"
    )
    table = Table(title=f"copy synthesis of {evidence['clip']}, {evidence['seconds']:.1f} s, against the original")
    for column in ("method", "mel L1", "M-STFT", "trained net ahead on both"):
        table.add_column(column)
    for name, values in evidence["scores"].items():
        ahead = {True: "yes", False: "no"}.get(evidence["ahead_of"].get(name), "")
        table.add_row(name, f"{values['mel_l1']:.3f}", f"{values['m_stft']:.3f}", ahead)
    console.print(table)
