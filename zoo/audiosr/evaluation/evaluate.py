"""Evaluation of a run: distances to the full-band target over cut-offs, with baselines and the ceiling."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

import zoo
from zoo.audio.corpora.cache import relative_names
from zoo.audio.corpora.corpus import PEAK, MemoryCorpus
from zoo.audio.evaluation import measures, metrics
from zoo.audio.io import files
from zoo.audio.io.files import AudioFileError
from zoo.audiosr.data.crops import SilenceFilter, ValidationGrid
from zoo.audiosr.data.datamodule import SuperResolutionData, default_cutoffs
from zoo.audiosr.data.simulate import Simulation, max_cutoff_hz
from zoo.audiosr.data.sources import Recordings
from zoo.audiosr.evaluation import report
from zoo.audiosr.evaluation.baselines import linear, mean_envelope, shaped_noise
from zoo.audiosr.evaluation.recipe_data import read_data
from zoo.audiosr.inference.restore import Restorer, band_distances
from zoo.audiosr.inference.spectrogram import Spectrogram, write_picture
from zoo.common.checks import check_unreadable_share
from zoo.common.journal import Journal, format_error
from zoo.common.locks import writes_into
from zoo.common.reports import Row
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.components import WEIGHTS_NAME, is_export
from zoo.runs.load import load
from zoo.runs.run_folder import find_config, has_config_file

log = logging.getLogger(__name__)

JOURNAL_NAME = "per_item.jsonl"
_FADE_SECONDS = 0.05  # at both ends, or a cut through the upper band would leak into the low one
_ENVELOPE_CLIPS = 200  # of the training set, evenly chosen
_MAX_BAD_SHARE = 0.1  # of a folder's files


@dataclass(frozen=True)
class EvaluationOptions:
    """What is evaluated; see `evaluate_run`."""

    data: Path | None = None  # None for the validation clips of the run's recipe
    train: Path | None = None  # None for the training clips of the run's recipe
    cutoffs_hz: tuple[float, ...] | None = None  # None for those of the recipe, or of `SuperResolutionData`
    max_items: int | None = None
    seconds: float = 5.0
    keep: int = 2
    restore: Mapping[str, Any] = field(default_factory=dict)  # of `RestoreOptions`; objects by class_path and init_args


class EvaluationItem(NamedTuple):
    """One clip at one cut-off."""

    number: int
    clip: int
    name: str
    turn: int  # the filter type follows from it
    samples: int


def load_recipe_data(run: Path, options: EvaluationOptions) -> SuperResolutionData | None:
    """Set up the data of the run's recipe; None where it is not needed, or only for the envelope and missing.

    FileNotFoundError where the evaluation needs it and the run names none, ValueError where it is another system's.
    """
    has_recipe = not is_export(run) and has_config_file(run)
    if options.data is not None and (options.train is not None or not has_recipe):
        return None
    if not has_recipe:
        raise FileNotFoundError(f"{run} holds no config.yaml, which would name its data: give a folder with --data")
    try:
        data = read_data(find_config(run), from_run=True)
        data.prepare_data()
        data.setup("fit")
    except FileNotFoundError as error:
        if options.data is not None:
            return None
        raise FileNotFoundError(f"the data of {run} is missing: give a folder with --data ({error})") from error
    return data


def read_excerpts(folder: Path, sample_rate: int, seconds: float, max_items: int | None) -> Recordings:
    """Read the beginnings of a folder's files into memory, the peak of each file at 0.95.

    Unreadable files are named and left out; ValueError where they are more than a tenth.
    """
    paths = files.find_audio_files(folder)[:max_items]
    excerpts, errors = {}, []
    for name, path in zip(relative_names(paths, folder), paths, strict=True):
        try:
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
        if options.cutoffs_hz is not None and grid.recordings.low is None:
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


def list_items(grid: ValidationGrid) -> Iterator[EvaluationItem]:
    """List the grid's items, clip after clip."""
    for number in range(len(grid)):
        clip, column = divmod(number, len(grid.cutoffs_hz))
        index = int(grid.indices[clip])
        name = f"{grid.recordings.high.names[index]}@{grid.cutoffs_hz[column]:g}"
        yield EvaluationItem(number, clip, name, clip + column, grid.recordings.length(index))


def read_training_clips(
    recipe: SuperResolutionData | None, options: EvaluationOptions, sample_rate: int
) -> Iterator[np.ndarray]:
    """Read clips for the envelope, evenly chosen from the folder that the options name, or else from the recipe's."""

    def choose(count: int) -> list[int]:
        return np.unique(np.linspace(0, count - 1, min(count, _ENVELOPE_CLIPS)).astype(int)).tolist()

    if options.train is not None:
        paths = files.find_audio_files(options.train)
        yield from (files.read_mono(paths[number], sample_rate) for number in choose(len(paths)))
    elif recipe is not None:
        crops = recipe.train_set
        for index in (int(crops.indices[number]) for number in choose(len(crops.indices))):
            yield crops.recordings.read(index, 0, crops.recordings.length(index))[0]


def evaluate(run: Path, output: Path, options: EvaluationOptions, device: str = "cpu") -> report.Evaluation:
    """Restore band-limited clips and write tables and pictures; see `evaluate_run`.

    Rows are appended as they are computed; the same call again computes what is missing, failed, or changed.
    """
    restorer = load(run, device, restore=options.restore)
    if not isinstance(restorer, Restorer):
        raise ValueError(f"{run} is a {type(restorer).__name__}: name a run of the diffusion stage")
    recipe = load_recipe_data(run, options)
    grid = make_grid(recipe, options, restorer.sample_rate)
    items = list(list_items(grid))
    systems = [
        system for system in report.SYSTEMS if system != report.NOISE or recipe is not None or options.train is not None
    ]
    if report.NOISE not in systems:
        log.warning("the run names no training audio, so there is no row %s: name a folder with --train", report.NOISE)
    keys = {(item, system): _journal_key(run, options, item, system) for item in items for system in systems}
    journal = Journal(output / JOURNAL_NAME)
    done = journal.open(set(keys.values()))
    missing = [item for item in items if any(keys[item, system] not in done for system in systems)]
    evaluation_run = EvaluationRun(restorer, grid, options, output, systems)
    if missing and report.NOISE in systems:
        clips = read_training_clips(recipe, options, restorer.sample_rate)
        evaluation_run.envelope = mean_envelope(clips)
    for item in track(missing, "evaluate"):
        for row in evaluation_run.rows(item):
            row["key"] = keys[item, row["system"]]
            if row["key"] not in done:
                journal.add(row)
    evaluation = report.Evaluation(journal.close(keys.values()), systems)
    facts = {"run": str(run), "device": device, **json.loads(json.dumps(asdict(options), default=str))}
    report.write_evaluation(output, evaluation, facts)
    return evaluation


@dataclass
class EvaluationRun:
    """Runs all systems on one item."""

    restorer: Restorer
    grid: ValidationGrid
    options: EvaluationOptions
    output: Path
    systems: Sequence[str]
    envelope: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def rows(self, item: EvaluationItem) -> list[Row]:
        """Return one row for each system, without its key."""
        row: Row = {"name": item.name, "status": "done", "reason": ""}
        try:
            batch = self.grid[item.number]
            high, low = batch["high"][0].numpy(), batch["low"][0].numpy()
            cutoff_hz = float(batch["cutoff_hz"])
            results, factor = self._run_systems(low, high, cutoff_hz)
        except (AudioFileError, ValueError) as error:
            log.warning("%s failed: %s", item.name, error)
            failed = {"status": "failed", "reason": format_error(error)}
            return [{**row, "system": system, **failed} for system in self.systems]
        if item.clip < self.options.keep:
            self._keep(item.name, results, cutoff_hz, high)
        row |= {"cutoff_hz": cutoff_hz, "seconds": len(high) / self.restorer.sample_rate}
        rows = [
            {**row, "system": system, **self._measure(audio, low, high, cutoff_hz)} for system, audio in results.items()
        ]
        rows[-1]["real_time_factor"] = factor
        return rows

    def _run_systems(self, low: np.ndarray, high: np.ndarray, cutoff_hz: float) -> tuple[dict[str, np.ndarray], float]:
        """Return the signal of each system, and the real-time factor of restoring."""
        rate = self.restorer.sample_rate
        started = time.perf_counter()
        restored = self.restorer(low, rate, cutoff_hz=cutoff_hz)
        factor = (time.perf_counter() - started) / (len(high) / rate)
        results = {
            report.UNPROCESSED: low,
            report.LINEAR: linear(low, rate, cutoff_hz),
            report.CEILING: self.restorer.ceiling(low, high, rate, cutoff_hz),
            report.RESTORED: restored,
        }
        if report.NOISE in self.systems:
            results[report.NOISE] = shaped_noise(low, rate, cutoff_hz, self.envelope)
        return {system: results[system] for system in self.systems}, factor

    @torch.inference_mode()
    def _measure(self, audio: np.ndarray, low: np.ndarray, high: np.ndarray, cutoff_hz: float) -> dict[str, float]:
        rate = self.restorer.sample_rate
        prediction, target = torch.from_numpy(np.asarray(audio, np.float32)), torch.from_numpy(high)
        mels = [self.restorer.features(each[None, None].to(self.restorer.device)) for each in (prediction, target)]
        return {
            **band_distances(prediction, target, rate, cutoff_hz),
            **upper_bands(prediction, target, rate, cutoff_hz),
            "si_sdr_low": low_band_si_sdr(audio, low, rate, cutoff_hz),
            "mel_l1": float((mels[0] - mels[1]).abs().mean()),
            "pesq_wb": wide_band_pesq(audio, high, rate, cutoff_hz),
        }

    def _keep(self, name: str, results: Mapping[str, np.ndarray], cutoff_hz: float, high: np.ndarray) -> None:
        rate, folder = self.restorer.sample_rate, self.output / "samples"
        stem = name.replace("/", "_")
        for system, audio in {"target": high, **results}.items():
            files.write(folder / f"{stem}_{system}.wav", audio, rate)
        before, after = Spectrogram(len(high)), Spectrogram(len(high))
        for spectrogram, system in ((before, report.UNPROCESSED), (after, report.RESTORED)):
            list(spectrogram.observe([results[system][None]]))
        write_picture(folder / f"{stem}.png", before, after, rate, len(high) / rate, cutoff_hz, name)


def upper_bands(prediction: Tensor, target: Tensor, sample_rate: int, cutoff_hz: float) -> dict[str, float]:
    """Log-spectral distances of signals (T,) in equal bands above a cut-off, from the lowest: `lsd_hf_1` and so on."""
    edges = np.linspace(cutoff_hz, sample_rate / 2, len(report.HF_BANDS) + 1).tolist()
    return dict(
        zip(report.HF_BANDS, map(float, metrics.lsd_bands(prediction, target, sample_rate, edges)), strict=True)
    )


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


def wide_band_pesq(audio: np.ndarray, high: np.ndarray, sample_rate: int, cutoff_hz: float) -> float:
    """PESQ of speech at 16 kHz (ITU-T P.862.2).

    NaN for cut-offs above its 8 kHz, lower sample rates, clips without speech, and without the package `pesq`.
    """
    rate = measures.METRICS["pesq"].sample_rate or sample_rate
    if sample_rate < rate or cutoff_hz >= rate / 2 or "pesq" not in measures.available_metrics():
        return math.nan
    pair = measures.AudioPair(np.asarray(audio, np.float32), sample_rate, high, sample_rate)
    return measures.compute_metrics(pair, ["pesq"], sample_rate)["pesq_wb"]


def _journal_key(run: Path, options: EvaluationOptions, item: EvaluationItem, system: str) -> str:
    """Hash all that a row depends on."""
    path = run / WEIGHTS_NAME if is_export(run) else find_checkpoint(run)
    stat = path.stat()
    relevant = asdict(replace(options, cutoffs_hz=None, max_items=None, keep=0))
    facts = (zoo.__version__, path.name, stat.st_size, stat.st_mtime_ns, relevant, item[2:], system)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@writes_into("output")
def evaluate_run(
    run: Path,
    output: Path,
    data: Path | None = None,
    train: Path | None = None,
    cutoffs: list[float] | None = None,
    max_items: int | None = None,
    seconds: float = 5.0,
    keep: int = 2,
    sampler: Literal["ddim", "dpm"] | None = None,
    steps: int | None = None,
    guidance_scale: float | None = None,
    seed: int | None = None,
    device: str = "cpu",
) -> int:
    """Measure how well a run restores clips at cut-offs, with baselines and the ceiling of its components.

    Prints a report and writes per_item.csv, summary.csv, summary.json, report.md, and sound and pictures
    of the first clips. A second call computes only what is missing. Returns 0, or 1 when an item failed.

    Args:
        run: run folder, checkpoint or export of the diffusion stage.
        output: folder for the report.
        data: folder of full-band audio that was not trained on; the validation clips of the run when not given.
        train: folder of training audio, for noise in the shape of its spectrum; that of the run when not given.
        cutoffs: cut-offs in Hz; those of the run's validation, or 2, 4, 8, 12 and 16 kHz, when not given.
        max_items: most clips.
        seconds: length of an excerpt of the files in DATA.
        keep: clips of which sound and pictures are kept.
        sampler: ddim or dpm (DPM-Solver++); the run's when not given.
        steps: of that sampler; 100 and 15 when not given.
        guidance_scale: the run's when not given.
        seed: of the noise, likewise.
        device: torch device.
    """
    if steps is not None and sampler is None:
        raise ValueError("--steps belongs to --sampler: name one of ddim and dpm")
    restore: dict[str, Any] = {"guidance_scale": guidance_scale, "seed": seed}
    if sampler is not None:
        name = {"ddim": "zoo.audiosr.DDIM", "dpm": "zoo.audiosr.DPMSolver"}[sampler]
        restore["sampler"] = {"class_path": name, "init_args": {} if steps is None else {"steps": steps}}
    options = EvaluationOptions(
        data, train, None if cutoffs is None else tuple(cutoffs), max_items, seconds, keep,
        {name: value for name, value in restore.items() if value is not None},
    )  # fmt: skip
    evaluation = evaluate(run, output, options, device)
    print((output / "report.md").read_text(encoding="utf-8"))
    print(f"wrote {output}")
    return int(bool(evaluation.failures))
