"""Tools of AudioSR alone; each imports what it needs when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from zoo.common.locks import writes_into


@writes_into("out_high", "out_low")
def preprocess(
    in_dir: Path,
    out_high: Path,
    out_low: Path,
    sample_rate: int = 48000,
    low_sample_rate: int = 12000,
    mp3_lpf_hz: float = -1.0,
    workers: int = 0,
) -> int:
    """Write pairs of full-band and band-limited wavs of a folder, for `mode: paired`.

    The band of the second ends at 5/6 of half its low rate. The same call again goes on after a kill.

    Args:
        in_dir: folder tree of wav, flac, ogg, opus or mp3.
        out_high: folder for the full-band files, such as data/train/high.
        out_low: folder for their twins, such as data/train/low.
        sample_rate: of both, in Hz.
        low_sample_rate: rate that the twins go down to and back from, in Hz.
        mp3_lpf_hz: first limits both at this frequency, in Hz, against what MP3 leaves above it; -1 is off. (The
            original's 16000 also takes from the target what a model should learn.)
        workers: processes; 0 works in this one.

    Returns:
        1 when a file failed, else 0.
    """
    from zoo.audiosr.data import preparing

    return _report(
        out_high, preparing.preprocess(in_dir, out_high, out_low, sample_rate, low_sample_rate, mp3_lpf_hz, workers)
    )


def splice(folder: Path, output: Path, each: bool = False, overwrite: bool = False, workers: int = 0) -> int:
    """Join the wav and flac files of a folder into one wav, of any length, in the order of their names.

    Args:
        folder: with the files, or with --each true the folders of files.
        output: the wav; with --each true a folder, in which A/B becomes A/B.wav.
        each: join the files of each folder below FOLDER.
        overwrite: write also what is there already.
        workers: processes, with --each true; 0 works in this one.

    Returns:
        1 when a folder failed, else 0.
    """
    from zoo.audiosr.data import preparing

    return _report(output, preparing.splice(folder, output, each, overwrite, workers))


def cache(config: Path) -> None:
    """Decode a recipe's corpus into its memory-mapped cache before training; a killed call is taken up again.

    Args:
        config: a recipe whose data is AudioSR's.
    """
    from zoo.audiosr.data.datamodule import read_data

    data = read_data(config)
    data.prepare_data()
    print(f"{config}: ready, {data.counts()}")


@writes_into("output")
def evaluate(
    run: Path,
    output: Path,
    data: Path | None = None,
    train: Path | None = None,
    cutoffs: list[float] | None = None,
    max_items: int | None = None,
    seconds: float = 5.0,
    match_level: bool = False,
    keep: int = 2,
    sampler: Literal["ddim", "dpm"] | None = None,
    steps: int | None = None,
    guidance_scale: float | None = None,
    guidance_rescale: float | None = None,
    seed: int | None = None,
    batch_size: int | None = None,
    device: str = "cpu",
) -> int:
    """Measure how well a run restores clips at a grid of cut-offs, beside baselines and the ceiling of its parts.

    Prints a report and writes per_item.csv, summary.csv, summary.json, report.md, cutoffs.png, and sound and pictures
    of the first clips. A second call computes only what is missing.

    Args:
        run: run folder, checkpoint or export of the diffusion stage.
        output: folder for the report.
        data: folder of full-band audio that was not trained on; the validation clips of the run when not given.
        train: folder of training audio, for noise in the shape of its spectrum; that of the run when not given.
        cutoffs: cut-offs in Hz; those of the run's validation, or 2, 4, 8, 12 and 16 kHz, when not given.
        max_items: most clips.
        seconds: length of an excerpt of the files in DATA.
        match_level: bring the lowest tenth of the bins to the target's level first, as a note of AudioSR does.
        keep: clips of which sound and pictures are kept.
        sampler: ddim or dpm (DPM-Solver++), in the place of the run's.
        steps: of that sampler; 100 and 15 when not given.
        guidance_scale: in the place of the run's.
        guidance_rescale: likewise.
        seed: of the noise, likewise.
        batch_size: chunks restored at once, likewise.
        device: torch device.

    Returns:
        0, or 1 when an item failed.

    Raises:
        FileNotFoundError: a folder is missing.
        ValueError: the run restores nothing, there is nothing to restore, or --steps comes without --sampler.
    """
    from zoo.audiosr.evaluation import evaluate as evaluating
    from zoo.audiosr.evaluation.evaluate import Settings

    if steps is not None and sampler is None:
        raise ValueError("--steps belongs to --sampler: name one of ddim and dpm")
    named = {"ddim": "zoo.audiosr.DDIM", "dpm": "zoo.audiosr.DPMSolver"}
    options = {
        "sampler": sampler and {"class_path": named[sampler], "init_args": {} if steps is None else {"steps": steps}},
        "guidance_scale": guidance_scale,
        "guidance_rescale": guidance_rescale,
        "seed": seed,
        "batch_size": batch_size,
    }
    settings = Settings(
        data=data,
        train=train,
        cutoffs_hz=None if cutoffs is None else tuple(cutoffs),
        max_items=max_items,
        seconds=seconds,
        match_level=match_level,
        keep=keep,
        options={name: value for name, value in options.items() if value is not None},
    )
    result = evaluating.evaluate(run, output, settings, device)
    print((output / "report.md").read_text(encoding="utf-8"))
    print(f"wrote {output}")
    return int(bool(result.failed))


def compare(
    first: Path,
    second: Path,
    tolerance: float = 0.0,
    depth: int = 2,
    most: int = 5,
    ema: bool = False,
    output: Path | None = None,
) -> None:
    """Tell which tensors of two checkpoints differ, component by component, and by how much.

    Args:
        first: run folder, checkpoint or export, safetensors, or an original's file.
        second: likewise.
        tolerance: absolute difference that still counts as equal.
        depth: parts of a tensor's name that make its component.
        most: different tensors to name for each component.
        ema: compare averaged weights, where they are there.
        output: JSON file for all findings.
    """
    from zoo.audiosr.evaluation import compare as comparing

    found = comparing.compare(first, second, tolerance, depth, ema)
    print(comparing.summary(found, most))
    if output is not None:
        import json

        from zoo.common.atomic import write_atomic

        text = json.dumps(comparing.plain(found), indent=1)
        write_atomic(output, lambda file: file.write(text.encode()))
        print(f"wrote {output}")


def _report(output: Path, counts: dict[str, int]) -> int:
    print(f"{output}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    return int(counts["failed"] > 0)
