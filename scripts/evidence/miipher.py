"""What three Miipher-2 runs have learned: python -m scripts.evidence.miipher ADAPTER_RUN PRETRAIN_RUN FINETUNE_RUN."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from zoo.audio.evaluation.run import Evaluation, Settings, evaluate
from zoo.audio.io import files
from zoo.common.atomic import replacing, write_atomic
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


def gather(adapter: Path, pretrain: Path, finetune: Path, draws: int = 4) -> dict[str, Any]:
    """Collect what three runs show, restore held-out clips, and keep everything in `<finetune>/evidence`.

    Args:
        adapter: run of stage 1.
        pretrain: run of stage 2.
        finetune: run of stage 3; its data gives the held-out clips, its noise those unseen segments.
        draws: degradations of each clip.

    Returns:
        `adapter` (identity and adapted validation loss and their ratio), `pretrain` and `finetune` (the curves of
        val/mel_l1), `summary` (per system and measure, at 16 kHz, levels matched; `clean_features` is the pre-trained
        vocoder on features of the clean clips, the ceiling of any cleaner with it).

    Raises:
        FileNotFoundError: when a run lacks its config or checkpoint.
        ValueError: when a run logged too little or is of another stage.
    """
    folder = finetune / FOLDER
    with replacing(folder / "trees") as trees:
        write_trees(finetune, pretrain, trees, draws)
    trees = folder / "trees"
    found: Evaluation = evaluate(
        trees / "clean", {name: trees / name for name in (RESTORED, CEILING)}, folder, trees / "degraded",
        Settings(METRICS, SAMPLE_RATE, match_level=True), progress=False,
    )  # fmt: skip
    rows = read_metrics(adapter)
    identity, adapted = (curve_of(rows, f"val/{key}").last for key in ("identity_loss", "loss"))
    result: dict[str, Any] = {
        "adapter": {"identity_loss": identity, "loss": adapted, "ratio": adapted / identity},
        **{
            name: {**asdict(curve), "fall": curve.fall}
            for name, run in (("pretrain", pretrain), ("finetune", finetune))
            for curve in [curve_of(read_metrics(run), "val/mel_l1")]
        },
        "summary": found.summary,
    }
    write_atomic(folder / "evidence.json", lambda file: file.write(json.dumps(result, indent=1).encode()))
    return result


def write_trees(finetune: Path, pretrain: Path, folder: Path, draws: int) -> None:
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
    for item in range(len(pairs)):
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


def show(result: dict[str, Any]) -> None:
    """Print what `gather` returned."""
    console = Console()
    adapter = result["adapter"]
    console.print(
        f"adapter: validation loss {adapter['loss']:.4f}, without adapters {adapter['identity_loss']:.4f}: "
        f"{adapter['ratio']:.0%} of it"
    )
    for stage in ("pretrain", "finetune"):
        values = result[stage]["values"]
        console.print(f"{stage}: val/mel_l1 {values[0]:.3f} to {values[-1]:.3f} ({result[stage]['fall']:.0%} less)")
    table = Table("system", "measure", "mean", "95 %", "files")
    for row in result["summary"]:
        interval = f"{row['low']:.3f} to {row['high']:.3f}"
        table.add_row(row["system"], row["measure"], f"{row['mean']:.3f}", interval, str(row["files"]))
    console.print(table)


def main() -> None:
    """Gather, print and keep the evidence; exits with 1 and one line when there is none to be had."""
    parser = argparse.ArgumentParser(
        description="Curves, and held-out clips restored, written into FINETUNE_RUN/evidence"
    )
    parser.add_argument("adapter", type=Path, help="run of stage 1 (demo_adapter)")
    parser.add_argument("pretrain", type=Path, help="run of stage 2 (demo_pretrain)")
    parser.add_argument("finetune", type=Path, help="run of stage 3 (demo_finetune)")
    parser.add_argument("--draws", type=int, default=4, help="degradations of each clip (default: 4)")
    options = parser.parse_args()
    try:
        show(gather(options.adapter, options.pretrain, options.finetune, options.draws))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
