"""What three Miipher-2 runs have learned: figures of one seed's runs; see `run.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from scripts.evidence.curves import read_curve
from zoo.audio.evaluation.evaluate import CLEAN, Evaluation, Settings, evaluate
from zoo.audio.evaluation.metrics import mel_cepstra
from zoo.audio.evaluation.models import MetricModel
from zoo.audio.evaluation.summary import MetricColumn
from zoo.audio.io import files
from zoo.common.atomic_files import replace_atomically
from zoo.common.build import build
from zoo.common.configs import load_yaml
from zoo.miipher.data.clips import Pairs
from zoo.miipher.data.datamodule import VocoderSegments
from zoo.miipher.inference.restorer import Restorer
from zoo.miipher.nets.families import SAMPLE_RATE
from zoo.runs.load import load
from zoo.runs.metrics_csv import read_metrics
from zoo.runs.run_folder import find_config
from zoo.training.resume import item_seed

FOLDER = "evidence"
METRICS = ("lsd", "m_stft", "pesq", "stoi", "estoi")
RESTORED, CEILING = "restored", "clean_features"
SPEECH_DB = 40.0  # frames of the clean recording further below its loudest are pauses


@dataclass(frozen=True)
class Timbre(MetricModel):
    """Cosine of the long-term cepstra of a recording and its clean counterpart, a small stand-in for a speaker encoder.

    Mean and deviation of 13 mel cepstra over the frames in which the clean recording speaks: of the vocal tract, as the
    first systems of speaker verification had it (Furui, 1981), but of noise, room and band as well. It shows whether a
    restoration has the recording's average colour. It knows no identities: whether listeners, or an encoder trained on
    thousands of speakers, take both for one person it cannot say.
    """

    measures: ClassVar[tuple[MetricColumn, ...]] = (MetricColumn("timbre", True),)

    def load(self) -> None:
        """It has no model."""

    def __call__(self, restored: np.ndarray, reference: np.ndarray | None, text: str | None) -> dict[str, float]:
        """See `MetricModel.__call__`; undefined without a clean recording."""
        if reference is None:
            return {}
        cepstra = [
            mel_cepstra(torch.from_numpy(x)[None], self.sample_rate)[0] for x in (restored, reference)
        ]  # (13, F)
        frames = min(each.shape[1] for each in cepstra)
        power = torch.from_numpy(reference)[: len(reference) // frames * frames].reshape(frames, -1).square().mean(1)
        is_speech = power >= power.max() * 10 ** (-SPEECH_DB / 10)
        prediction, target = (
            torch.cat([x.mean(1), x.std(1)]) for x in (each[:, :frames][:, is_speech] for each in cepstra)
        )
        return {"timbre": float(torch.cosine_similarity(prediction, target, 0))}


def measure(adapter: Path, pretrain: Path, finetune: Path, draws: int = 4, quick: bool = False) -> dict[str, float]:
    """Collect what three runs show, and restore held-out clips into `<finetune>/evidence`.

    Args:
        adapter: run of stage 1 (demo_adapter).
        pretrain: run of stage 2 (demo_pretrain).
        finetune: run of stage 3 (demo_finetune); its data gives the held-out clips, its noise those unseen segments.
        draws: degradations of each clip.
        quick: one degradation of one clip.

    Returns:
        Validation loss of the adapted net to the identity's, fall of val/mel_l1 in both trainings of the vocoder, and
        means per system and measure: LSD and M-STFT at 16 kHz, levels matched, PESQ, STOI, `Timbre`.
        `clean_features` is the pre-trained vocoder on features of the clean clips, the ceiling of any cleaner with it.

    Raises:
        ValueError: when a run logged too little or is of another stage.
    """
    folder = finetune / FOLDER
    with replace_atomically(folder / "trees") as trees:
        write_trees(finetune, pretrain, trees, 1 if quick else draws, quick)
    trees = folder / "trees"
    evaluation: Evaluation = evaluate(
        trees / "clean", {name: trees / name for name in (RESTORED, CEILING)}, folder, trees / "degraded",
        Settings(METRICS, SAMPLE_RATE, match_level=True, models=(Timbre(),)),
    )  # fmt: skip
    rows = read_metrics(adapter)
    identity, adapted = (read_curve(rows, f"val/{key}").last for key in ("identity_loss", "loss"))
    figures = {"adapter: validation loss to that without adapters": adapted / identity}
    for name, run in (("pretrain", pretrain), ("finetune", finetune)):
        figures[f"{name}: val/mel_l1 less than at first"] = 100 * read_curve(read_metrics(run), "val/mel_l1").fall
    rows = [row for row in evaluation.summary if row["system"] != CLEAN]  # which is compared with nothing
    return figures | {f"{row['system']}, {row['measure']}": float(row["mean"]) for row in rows}


def write_trees(finetune: Path, pretrain: Path, folder: Path, draws: int, quick: bool = False) -> None:
    """Write held-out clips as trees of clean, degraded, restored and clean-feature audio.

    Raises:
        ValueError: when a run holds no restorer.
    """
    restorer, ceiling = _restorer(finetune), _restorer(pretrain)
    data: VocoderSegments = build(load_yaml(find_config(finetune).read_text(encoding="utf-8"))["data"])
    data.prepare_data()
    data.setup("fit")
    pairs = data.val_set
    assert isinstance(pairs, Pairs)
    clips = pairs.clips
    for item in range(1 if quick else len(pairs)):
        index = int(clips.indices[item])
        clean = clips[item]["clean"].numpy()
        name = Path(clips.corpus.names[index]).stem
        clean_features = ceiling(clean, SAMPLE_RATE)
        for draw in range(draws):
            rng = np.random.default_rng(item_seed(data.seed, -2 - draw, item))
            degraded = clips.degradation.degraded_input(clean, index, 0, rng)
            target = f"{name}_{draw}.wav"
            files.write(folder / "clean" / target, clean, SAMPLE_RATE)
            files.write(folder / "degraded" / target, degraded, SAMPLE_RATE)
            files.write(folder / RESTORED / target, restorer(degraded, SAMPLE_RATE), restorer.output_sample_rate)
            files.write(folder / CEILING / target, clean_features, ceiling.output_sample_rate)


def _restorer(run: Path) -> Restorer:
    model = load(run)
    if not isinstance(model, Restorer):
        raise ValueError(f"{run} holds a {type(model).__name__}, expected a run of stage 2 or 3")
    return model
