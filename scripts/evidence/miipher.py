"""What three Miipher-2 runs have learned: python -m scripts.evidence.miipher ADAPTER_RUN PRETRAIN_RUN FINETUNE_RUN."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from scripts.bench.tools import Finding, evidence, save
from zoo.audio.evaluation.run import Evaluation, Settings, evaluate
from zoo.audio.io import files
from zoo.common.atomic import replacing
from zoo.common.build import build
from zoo.common.reading.text import safe_load
from zoo.miipher.data.clips import Pairs
from zoo.miipher.data.datamodule import VocoderSegments
from zoo.miipher.inference.restore import Restorer
from zoo.miipher.nets.families import SAMPLE_RATE
from zoo.runs.csv_log import curve_of, read_metrics
from zoo.runs.folder import find_config
from zoo.runs.load import load
from zoo.training.data import item_seed

FOLDER = "evidence"
METRICS = ("lsd", "m_stft")
RESTORED, CEILING = "restored", "clean_features"


def gather(adapter: Path, pretrain: Path, finetune: Path, draws: int = 4, quick: bool = False) -> list[Finding]:
    """Collect what three runs show, restore held-out clips, and keep everything in `<finetune>/evidence`.

    Args:
        adapter: run of stage 1 (demo_adapter).
        pretrain: run of stage 2 (demo_pretrain).
        finetune: run of stage 3 (demo_finetune); its data gives the held-out clips, its noise those unseen segments.
        draws: degradations of each clip.
        quick: one degradation of one clip.

    Returns:
        Validation loss of the adapted net to the identity's, fall of val/mel_l1 in both trainings of the vocoder, and
        means with intervals per system and measure at 16 kHz, levels matched; `clean_features` is the pre-trained
        vocoder on features of the clean clips, the ceiling of any cleaner with it.

    Raises:
        FileNotFoundError: when a run lacks its config or checkpoint.
        ValueError: when a run logged too little or is of another stage.
    """
    folder = finetune / FOLDER
    with replacing(folder / "trees") as trees:
        write_trees(finetune, pretrain, trees, 1 if quick else draws, quick)
    trees = folder / "trees"
    found: Evaluation = evaluate(
        trees / "clean", {name: trees / name for name in (RESTORED, CEILING)}, folder, trees / "degraded",
        Settings(METRICS, SAMPLE_RATE, match_level=True), progress=False,
    )  # fmt: skip
    rows = read_metrics(adapter)
    identity, adapted = (curve_of(rows, f"val/{key}").last for key in ("identity_loss", "loss"))
    details = {"without adapters": identity, "adapted": adapted}
    findings = [Finding("adapter: validation loss to that without adapters", adapted / identity, "x", details=details)]
    curves = {
        name: curve_of(read_metrics(run), "val/mel_l1")
        for name, run in (("pretrain", pretrain), ("finetune", finetune))
    }
    for name, curve in curves.items():
        ends = {"first": curve.first, "last": curve.last}
        findings.append(Finding(f"{name}: val/mel_l1 less than at first", 100 * curve.fall, "%", details=ends))
    for row in found.summary:
        interval = {key: row[key] for key in ("low", "high", "files")}
        findings.append(Finding(f"{row['system']}, {row['measure']}", row["mean"], "", details=interval))
    kept = {name: asdict(curve) for name, curve in curves.items()}
    save(folder / "evidence.json", findings, evidence="demo", curves=kept, summary=found.summary)
    return findings


def write_trees(finetune: Path, pretrain: Path, folder: Path, draws: int, quick: bool = False) -> None:
    """Write held-out clips as trees of clean, degraded, restored and clean-feature audio.

    Raises:
        ValueError: when a run holds no restorer.
    """
    restorer, ceiling = _restorer(finetune), _restorer(pretrain)
    data: VocoderSegments = build(safe_load(find_config(finetune).read_text(encoding="utf-8"))["data"])
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
            degraded = clips.degradation.degraded(clean, index, 0, rng)
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


if __name__ == "__main__":
    evidence({"demo": gather})
