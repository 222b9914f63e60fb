"""Evaluation of a run: distances to the full-band target over cut-offs, with baselines and the ceiling."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from zoo.audio.corpora.cache import relative_names
from zoo.audio.corpora.corpus import PEAK, MemoryCorpus
from zoo.audio.evaluation import metrics
from zoo.audio.evaluation.measures import is_silent
from zoo.audio.evaluation.summary import MetricColumn, failed_rows, summarize, summary_table, write_tables
from zoo.audio.io import files
from zoo.audio.io.files import AudioFileError
from zoo.audiosr.data.crops import SilenceFilter, ValidationGrid
from zoo.audiosr.data.datamodule import SuperResolutionData, default_cutoffs
from zoo.audiosr.data.simulate import Simulation, max_cutoff_hz
from zoo.audiosr.data.sources import Recordings
from zoo.audiosr.evaluation.baselines import linear, mean_envelope, shaped_noise
from zoo.audiosr.inference.restore import Restorer, band_distances
from zoo.common.build import build
from zoo.common.checks import check_at_least, check_unreadable_share
from zoo.common.configs import load_run_config
from zoo.common.journal import format_error
from zoo.common.locks import writes_into
from zoo.common.reports import Row
from zoo.common.statistics import LEVEL
from zoo.runs.components import is_export
from zoo.runs.load import load
from zoo.runs.run_folder import find_config, has_config_file

log = logging.getLogger(__name__)

UNPROCESSED, LINEAR, NOISE, CEILING, RESTORED = SYSTEMS = (
    "unprocessed", "linear", "shaped_noise", "ceiling", "restored",
)  # fmt: skip
HF_BANDS = ("lsd_hf_1", "lsd_hf_2", "lsd_hf_3", "lsd_hf_4")  # equal bands above the cut-off, from the lowest
MEASURES = (
    *(MetricColumn(name, False) for name in ("lsd", "lsd_hf", *HF_BANDS, "lsd_lf")),
    MetricColumn("si_sdr_low", True, "dB"),
    MetricColumn("real_time_factor", False),
)
ALL = "all"
_NUMBERS = ("cutoff_hz", "seconds", *(measure.name for measure in MEASURES))
_MAX_CUTOFFS = 20  # with tables of their own in the report
_FADE_SECONDS = 0.05  # at both ends, or a cut through the upper band would leak into the low one
_ENVELOPE_CLIPS = 200  # of the training set, evenly chosen
_MAX_BAD_SHARE = 0.1  # of a folder's files


@dataclass(frozen=True)
class EvaluationOptions:
    """What is evaluated; see `evaluate_run`."""

    data: Path | None = None  # None for the validation clips of the run's recipe
    cutoffs_hz: tuple[float, ...] | None = None  # None for those of the recipe, or of `SuperResolutionData`
    max_items: int | None = None
    seconds: float = 5.0
    restore: Mapping[str, Any] = field(default_factory=dict)  # of `RestoreOptions`; objects by class_path and init_args


def read_data(config: Path, from_run: bool = False) -> SuperResolutionData:
    """Build the datamodule of a recipe alone, its corpus decoded; see `load_run_config` for `from_run`."""
    spec = load_run_config(config, from_run=from_run).get("data")
    data = None if spec is None else build(spec, L.LightningDataModule)
    if not isinstance(data, SuperResolutionData):
        raise ValueError(f"{config}: expected data of {SuperResolutionData.__name__}, found {type(data).__name__}")
    data.prepare_data()
    data.setup("fit")
    return data


def cache(config: Path) -> None:
    """Decode a recipe's corpus into its memory-mapped cache before training; a killed call is resumed.

    Args:
        config: a recipe whose data is AudioSR's.
    """
    data = read_data(config)
    print(f"{config}: ready, {len(data.train_set)} clips for training, {len(data.val_set)} items for validation")


def load_recipe_data(run: Path, options: EvaluationOptions) -> SuperResolutionData | None:
    """Set up the data of the run's recipe; None where another folder is named and the recipe's data is missing.

    FileNotFoundError where the evaluation needs it and the run names none, ValueError where it is another system's.
    """
    if is_export(run) or not has_config_file(run):
        if options.data is None:
            raise FileNotFoundError(f"{run} holds no config.yaml, which would name its data: give a folder with --data")
        return None
    try:
        return read_data(find_config(run), from_run=True)
    except FileNotFoundError as error:
        if options.data is not None:
            return None
        raise FileNotFoundError(f"the data of {run} is missing: give a folder with --data ({error})") from error


def read_excerpts(folder: Path, sample_rate: int, seconds: float, max_items: int | None) -> Recordings:
    """Read the beginnings of a folder's files into memory, the peak of each file at 0.95.

    Unreadable files are named and left out; ValueError where they are more than a tenth.
    """
    paths = files.find_audio_files(folder)[:max_items]
    excerpts, errors = {}, []
    for name, path in zip(relative_names(paths, folder), paths, strict=True):
        try:
            files.check_band(path, sample_rate)
            audio = files.read_mono(path, sample_rate)
        except AudioFileError as error:
            log.warning("left out: %s", error)
            errors.append(str(error))
            continue
        peak = float(np.abs(audio).max())
        excerpts[name] = audio[: max(round(seconds * sample_rate), 1)] * np.float32(PEAK / peak if peak > 0 else 1.0)
    check_unreadable_share(errors, len(paths), _MAX_BAD_SHARE, option=None)
    return Recordings(MemoryCorpus(list(excerpts), list(excerpts.values())), normalize=False)


def make_grid(recipe: SuperResolutionData | None, options: EvaluationOptions, sample_rate: int) -> ValidationGrid:
    """Make the grid of the recipe's clips, or the folder's, and cut-offs; ValueError where nothing is to restore."""
    if options.data is None:
        assert recipe is not None  # load_recipe_data has checked
        grid = recipe.val_set
        if options.cutoffs_hz is not None:
            if grid.recordings.low is not None:
                raise ValueError("--cutoffs: the run's data is pairs, whose cut-offs are found in them")
            grid.cutoffs_hz = list(options.cutoffs_hz)
    else:
        recordings = read_excerpts(options.data, sample_rate, options.seconds, options.max_items)
        grid = ValidationGrid(
            recordings, recordings.usable_clips, sample_rate, max(round(options.seconds * sample_rate), 1),
            SilenceFilter(max_share=1.0), Simulation(), options.cutoffs_hz or default_cutoffs(sample_rate),
        )  # fmt: skip
    grid.indices = grid.indices[: options.max_items]
    highest = max_cutoff_hz(sample_rate)
    if not len(grid) or (grid.recordings.low is None and not all(0 < hz < highest for hz in grid.cutoffs_hz)):
        raise ValueError(
            f"nothing to restore: {len(grid.indices)} clips, cut-offs {grid.cutoffs_hz} Hz; expected cut-offs above 0 "
            f"and below {highest:g} Hz"
        )
    return grid


def read_training_clips(recipe: SuperResolutionData) -> Iterator[np.ndarray]:
    """Read evenly chosen clips of the training set, for the envelope."""
    crops = recipe.train_set
    count = len(crops.indices)
    for number in np.unique(np.linspace(0, count - 1, min(count, _ENVELOPE_CLIPS)).astype(int)):
        index = int(crops.indices[number])
        yield crops.recordings.read(index, 0, crops.recordings.length(index))[0]


def evaluate(run: Path, output: Path, options: EvaluationOptions, device: str = "cpu") -> list[Row]:
    """Restore band-limited clips and write tables, see `evaluate_run`; returns a row for each item and system."""
    restorer = load(run, device, restore=options.restore)
    if not isinstance(restorer, Restorer):
        raise ValueError(f"{run} is a {type(restorer).__name__}: name a run of the diffusion stage")
    recipe = load_recipe_data(run, options)
    grid = make_grid(recipe, options, restorer.sample_rate)
    envelope = None if recipe is None else mean_envelope(read_training_clips(recipe))
    systems = [system for system in SYSTEMS if system != NOISE or envelope is not None]
    if envelope is None:
        log.warning("the training audio of %s is not there, so there is no row %s", run, NOISE)
    rows: list[Row] = []
    for number in track(range(len(grid)), "evaluate"):
        clip, column = divmod(number, len(grid.cutoffs_hz))
        name = f"{grid.recordings.high.names[int(grid.indices[clip])]}@{grid.cutoffs_hz[column]:g}"
        row: Row = {"name": name, "status": "done", "reason": ""}
        try:
            measured = _measure_item(restorer, grid[number], envelope)
            rows += [row | each for each in measured]
        except (AudioFileError, ValueError) as error:
            log.warning("%s failed: %s", name, error)
            failed = {"status": "failed", "reason": format_error(error)}
            rows += [row | {"system": system, **failed} for system in systems]
    facts = {"run": str(run), "device": device, **json.loads(json.dumps(asdict(options), default=str))}
    _write_report(output, rows, systems, facts)
    return rows


def _write_report(output: Path, rows: list[Row], systems: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Summarise all rows and those of each cut-off, with gains over the input, see `summarize`."""
    done = [row for row in rows if row["status"] == "done"]
    groups = {ALL: done}
    for cutoff_hz in sorted({float(row["cutoff_hz"]) for row in done}):
        groups[f"{cutoff_hz:g} Hz"] = [row for row in done if row["cutoff_hz"] == cutoff_hz]
    groups = groups if 2 < len(groups) <= _MAX_CUTOFFS else {ALL: done}
    summaries = {group: summarize(each, systems, MEASURES, UNPROCESSED) for group, each in groups.items()}
    lines = ["# Super-resolution", "", f"Means with {LEVEL:.0%} bootstrap intervals over items.", ""]
    for group, summary in summaries.items():
        lines += [f"## {'All cut-offs' if group == ALL else group}", "", summary_table(summary), ""]
    lines += [
        "lsd_hf and lsd_lf lie above and below the cut-off; si_sdr_low compares the low band with the input's; the "
        "ceiling is the target through autoencoder and vocoder, with the input's low band.",
    ]
    table = [{"cutoff": group, **row} for group, summary in summaries.items() for row in summary]
    write_tables(output, "per_item.csv", _NUMBERS, rows, table, lines, facts)


def _measure_item(
    restorer: Restorer, item: Mapping[str, Tensor], envelope: np.ndarray | None
) -> Iterator[dict[str, Any]]:
    """Run and measure all systems on an item without its zeros: rows without its name; NaN of a silent target."""
    high, low = (item[key][0, : item["samples"]].numpy() for key in ("high", "low"))
    cutoff_hz, rate = float(item["cutoff_hz"]), restorer.sample_rate
    started = time.perf_counter()
    restored = restorer(low, rate, cutoff_hz=cutoff_hz)
    seconds = len(high) / rate
    factor = (time.perf_counter() - started) / seconds
    signals = {UNPROCESSED: low, LINEAR: linear(low, rate, cutoff_hz)}
    if envelope is not None:
        signals[NOISE] = shaped_noise(low, rate, cutoff_hz, envelope)
    signals |= {CEILING: restorer(low, rate, cutoff_hz, high), RESTORED: restored}
    for system, audio in signals.items():
        prediction, target = torch.from_numpy(np.asarray(audio, np.float32)), torch.from_numpy(high)
        values = {
            **band_distances(prediction, target, rate, cutoff_hz),
            **upper_bands(prediction, target, rate, cutoff_hz),
            "si_sdr_low": low_band_si_sdr(audio, low, rate, cutoff_hz),
        }
        values = dict.fromkeys(values, math.nan) if is_silent(high) else values
        row = {"system": system, "cutoff_hz": cutoff_hz, "seconds": seconds, **values}
        yield row | {"real_time_factor": factor} if system == RESTORED else row


def upper_bands(prediction: Tensor, target: Tensor, sample_rate: int, cutoff_hz: float) -> dict[str, float]:
    """Log-spectral distances of signals (T,) in equal bands above a cut-off, from the lowest: `lsd_hf_1` and so on."""
    edges = np.linspace(cutoff_hz, sample_rate / 2, len(HF_BANDS) + 1).tolist()
    return dict(zip(HF_BANDS, map(float, metrics.lsd_bands(prediction, target, sample_rate, edges)), strict=True))


def low_band_si_sdr(audio: np.ndarray, low: np.ndarray, sample_rate: int, cutoff_hz: float) -> float:
    """SI-SDR in dB of the band below the cut-off, against the input's: how well that band is preserved."""
    fade = min(round(_FADE_SECONDS * sample_rate), len(low) // 2)
    ramp = np.sin((np.arange(fade) + 0.5) / max(fade, 1) * np.pi / 2) ** 2
    window = np.concatenate([ramp, np.ones(len(low) - 2 * fade), ramp[::-1]])
    first = int(cutoff_hz / sample_rate * len(low))
    signals = []
    for each in (audio, low):
        spectrum = np.fft.rfft(each * window)
        spectrum[first:] = 0
        signals.append(np.fft.irfft(spectrum, len(low)))
    scale = max(float(np.sqrt(np.mean(signals[1] ** 2))), 1e-12)  # the metric's floor is an absolute one
    prediction, target = (torch.from_numpy(signal / scale).float() for signal in signals)
    return float(metrics.si_sdr(prediction, target))


@writes_into("output")
def evaluate_run(
    run: Path,
    output: Path,
    data: Path | None = None,
    cutoffs: list[float] | None = None,
    max_items: int | None = None,
    seconds: float = 5.0,
    sampler: Literal["ddim", "dpm"] | None = None,
    steps: int | None = None,
    guidance_scale: float | None = None,
    seed: int | None = None,
    device: str = "cpu",
) -> int:
    """Measure how well a run restores clips at cut-offs, with baselines and the ceiling of its components.

    Prints a report and writes per_item.csv, summary.csv, summary.json and report.md. Returns 0, or 1 when an item
    failed.

    Args:
        run: run folder, checkpoint or export of the diffusion stage.
        output: folder for the report.
        data: folder of full-band audio that was not trained on; the validation clips of the run when not given.
        cutoffs: cut-offs in Hz; those of the run's validation, or 2, 4, 8, 12 and 16 kHz, when not given.
        max_items: most clips.
        seconds: length of an excerpt of the files in DATA; of a shorter file all is taken.
        sampler: ddim or dpm (DPM-Solver++); the run's when not given.
        steps: of that sampler; 100 and 15 when not given.
        guidance_scale: the run's when not given.
        seed: of the noise, likewise.
        device: torch device.
    """
    check_at_least(1, max_items=1 if max_items is None else max_items)
    if steps is not None and sampler is None:
        raise ValueError("--steps belongs to --sampler: name one of ddim and dpm")
    restore: dict[str, Any] = {"guidance_scale": guidance_scale, "seed": seed}
    if sampler is not None:
        name = {"ddim": "zoo.audiosr.DDIM", "dpm": "zoo.audiosr.DPMSolver"}[sampler]
        restore["sampler"] = {"class_path": name, "init_args": {} if steps is None else {"steps": steps}}
    restore = {name: value for name, value in restore.items() if value is not None}
    options = EvaluationOptions(data, None if cutoffs is None else tuple(cutoffs), max_items, seconds, restore)
    rows = evaluate(run, output, options, device)
    print((output / "report.md").read_text(encoding="utf-8"))
    print(f"wrote {output}")
    return int(bool(failed_rows(rows)))
