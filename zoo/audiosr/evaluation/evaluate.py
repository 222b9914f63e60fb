"""How well a run restores: distances to the full-band target over cut-offs, beside baselines and the ceiling."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

import zoo
from zoo.audio.evaluation import measures, metrics
from zoo.audio.evaluation.summary import MetricColumn, failure_lines, summarize, summary_table
from zoo.audio.io import files
from zoo.audio.io.files import AudioFileError
from zoo.audiosr.data.datamodule import SuperResolutionData, default_cutoffs, read_data
from zoo.audiosr.data.items import Crops, Grid, Silence
from zoo.audiosr.data.simulate import Simulation, top
from zoo.audiosr.data.sources import FileCorpus, Recordings
from zoo.audiosr.evaluation.baselines import linear, mean_envelope, shaped_noise
from zoo.audiosr.inference.report import Spectrogram, write_picture
from zoo.audiosr.inference.restore import Restorer, band_distances
from zoo.common.journal import Journal, format_error
from zoo.common.locks import writes_into
from zoo.common.reports import Row, new_figure, write_report
from zoo.common.statistics import LEVEL
from zoo.runs.checkpoints import find_checkpoint
from zoo.runs.components import WEIGHTS_NAME, is_export
from zoo.runs.load import load
from zoo.runs.run_folder import find_config, has_config_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


log = logging.getLogger(__name__)

UNPROCESSED, LINEAR, NOISE, CEILING, RESTORED = SYSTEMS = (
    "unprocessed", "linear", "shaped_noise", "ceiling", "restored",
)  # fmt: skip
HF_BANDS = ("lsd_hf_1", "lsd_hf_2", "lsd_hf_3", "lsd_hf_4")  # equal bands above the cut-off, from the lowest
MEASURES = (
    MetricColumn("lsd", False),
    MetricColumn("lsd_hf", False),
    *(MetricColumn(name, False) for name in HF_BANDS),
    MetricColumn("lsd_lf", False),
    MetricColumn("si_sdr_low", True, "dB"),
    MetricColumn("mel_l1", False),
    MetricColumn("pesq_wb", True),
    MetricColumn("real_time_factor", False),
)
PER_ITEM = "per_item.csv"
JOURNAL_NAME = "per_item.jsonl"

_TEXTS = ("name", "system", "status", "reason")
_NUMBERS = ("cutoff_hz", "seconds", *(measure.name for measure in MEASURES))
_LOWEST_SHARE = 0.1  # of the bins, whose level is matched: AudioSR's note
_FADE_SECONDS = 0.05  # at both ends, or a cut through the upper band would be heard in the low one
ALL = "all"
_DRAWN = ("lsd", "lsd_hf")
_SHOWN = 20  # failures in the report; the table of items has all
_ENVELOPE_CLIPS = 200  # of the training set, evenly chosen
_MAX_BAD_SHARE = 0.1  # of a folder's files


@dataclass(frozen=True)
class Evaluation:
    """What was found."""

    rows: list[Row]
    systems: Sequence[str]

    @property
    def failed(self) -> list[Row]:
        """The rows without measurements."""
        return [row for row in self.rows if row["status"] == "failed"]

    @cached_property
    def parts(self) -> dict[str, list[Row]]:
        """Sound rows: all of them, and those of each cut-off."""
        good = [row for row in self.rows if row["status"] == "done"]
        parts = {ALL: good}
        for cutoff_hz in sorted({float(row["cutoff_hz"]) for row in good}):
            parts[f"{cutoff_hz:g} Hz"] = [row for row in good if row["cutoff_hz"] == cutoff_hz]
        return parts if 2 < len(parts) <= _SHOWN else {ALL: good}

    @cached_property
    def summaries(self) -> dict[str, list[Row]]:
        """Per part what `zoo.audio.evaluation.summary.summarize` says, gains over the input as it is."""
        return {part: summarize(rows, self.systems, MEASURES, UNPROCESSED) for part, rows in self.parts.items()}

    @cached_property
    def margins(self) -> list[Row]:
        """By how much `restored` beats each other system, per measure, paired; `share` is of their mean."""
        margins = []
        means = {(row["system"], row["measure"]): row["mean"] for row in self.summaries[ALL]}
        for other in (system for system in self.systems if system != RESTORED):
            for row in summarize(self.parts[ALL], [other, RESTORED], MEASURES, other):
                if math.isfinite(row["gain"]) and row["better"] == "lower":
                    mean = means[other, row["measure"]]
                    gain = {key: row[key] for key in ("gain", "gain_low", "gain_high")}
                    share = row["gain"] / mean if mean else math.nan
                    margins.append({"over": other, "measure": row["measure"], "share": share, **gain})
        return margins


def write_evaluation(output: Path, evaluation: Evaluation, facts: Mapping[str, Any]) -> None:
    """Write per_item.csv, summary.csv, summary.json (with these facts), report.md and cutoffs.png."""
    rows = [{"cutoff": part, **row} for part, summary in evaluation.summaries.items() for row in summary]
    content = {
        "version": zoo.__version__,
        "confidence": LEVEL,
        **facts,
        "failed": [{key: row[key] for key in ("system", "name", "reason")} for row in evaluation.failed],
        "margins": evaluation.margins,
        "summary": rows,
    }
    items = [dict.fromkeys(_NUMBERS, math.nan) | row for row in evaluation.rows]
    files = {
        PER_ITEM: ([*_TEXTS, *_NUMBERS], items),
        "summary.csv": (list(rows[0]), rows),
        "summary.json": content,
        "report.md": markdown(evaluation),
        "cutoffs.png": _chart(evaluation),
    }
    write_report(output, files, indent=2)


def markdown(evaluation: Evaluation) -> str:
    """The report: tables of means, margins, the first failures."""
    lines = ["# Super-resolution", "", f"Means with {LEVEL:.0%} bootstrap intervals over items.", ""]
    for part, summary in evaluation.summaries.items():
        lines += [f"## {'All cut-offs' if part == ALL else part}", "", summary_table(summary), ""]
    if evaluation.margins:
        lines += [f"## By how much {RESTORED} is better", ""]
        lines += ["| measure | over | margin | share |", "|---" * 4 + "|"]
        for row in evaluation.margins:
            interval = f"[{row['gain_low']:.3g}, {row['gain_high']:.3g}]" if math.isfinite(row["gain_low"]) else ""
            lines += [f"| {row['measure']} | {row['over']} | {row['gain']:.4g} {interval} | {row['share']:+.1%} |"]
        lines += [""]
    lines += [
        "lsd_hf and lsd_lf lie above and below the cut-off; si_sdr_low compares the low band with the input's; the "
        "ceiling is the target through autoencoder and vocoder, with the input's low band.",
        "",
    ]
    lines += failure_lines(evaluation.failed, len(evaluation.rows), _SHOWN)
    return "\n".join(lines).rstrip() + "\n"


def _chart(evaluation: Evaluation) -> Figure:
    """Distances over the cut-offs, a line for each system."""
    figure = new_figure(10.0, 4.0)
    parts = [part for part in evaluation.summaries if part != ALL] or [ALL]
    for axes, measure in zip(figure.subplots(1, len(_DRAWN)), _DRAWN, strict=True):
        for system in evaluation.systems:
            found = [
                next(row for row in evaluation.summaries[part] if (row["system"], row["measure"]) == (system, measure))
                for part in parts
            ]
            reach = [
                [max(row["mean"] - row["low"], 0.0) for row in found],
                [max(row["high"] - row["mean"], 0.0) for row in found],
            ]
            axes.errorbar(parts, [row["mean"] for row in found], yerr=reach, marker="o", capsize=3, label=system)
        axes.set(title=f"{measure} (lower is better)", xlabel="cut-off")
        axes.grid(alpha=0.3)
    axes.legend()
    return figure


@dataclass(frozen=True)
class Settings:
    """What is evaluated; see `evaluate_run`."""

    data: Path | None = None  # None for the validation clips of the run's recipe
    train: Path | None = None  # None for the training clips of the run's recipe
    cutoffs_hz: tuple[float, ...] | None = None  # None for those of the recipe, or of `SuperResolutionData`
    max_items: int | None = None
    seconds: float = 5.0
    match_level: bool = False
    keep: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)  # of the restorer; objects as class_path and init_args


class Job(NamedTuple):
    """One clip at one cut-off."""

    number: int
    clip: int
    name: str
    turn: int  # what the filter type follows from
    samples: int


def recipe_data(run: Path, settings: Settings) -> SuperResolutionData | None:
    """Set up the data of the run's recipe; None where it is not needed, or only for the envelope and there is none.

    Raises:
        FileNotFoundError: the evaluation needs it, and the run names none.
        ValueError: it is another system's.
    """
    named = not is_export(run) and has_config_file(run)
    if settings.data is not None and (settings.train is not None or not named):
        return None
    if not named:
        raise FileNotFoundError(f"{run} holds no config.yaml, which would name its data: give a folder with --data")
    try:
        data = read_data(find_config(run), from_run=True)
        data.prepare_data()
        data.setup("fit")
    except FileNotFoundError as error:
        if settings.data is not None:
            return None
        raise FileNotFoundError(f"the data of {run} is missing: give a folder with --data ({error})") from error
    return data


def make_grid(recipe: SuperResolutionData | None, settings: Settings, sample_rate: int) -> Grid:
    """All clips at all cut-offs, an excerpt each: those of the recipe, or of the folder that the settings name.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: nothing to restore in it, or cut-offs that leave nothing to restore.
    """
    if settings.data is None:
        assert recipe is not None  # recipe_data has looked
        grid = recipe.val_set
        if settings.cutoffs_hz is not None and grid.recordings.low is None:
            grid.cutoffs_hz = list(settings.cutoffs_hz)
    else:
        recordings = Recordings(
            FileCorpus(files.find_audio_files(settings.data), sample_rate, _MAX_BAD_SHARE, option=None)
        )
        grid = Grid(
            recordings, recordings.usable, sample_rate, max(round(settings.seconds * sample_rate), 1),
            Silence(1.0, sample_rate, 0.0), Simulation(), settings.cutoffs_hz or default_cutoffs(sample_rate),
        )  # fmt: skip
    grid.indices = grid.indices[: settings.max_items]
    wrong = [hz for hz in grid.cutoffs_hz if grid.recordings.low is None and not 0 < hz < top(sample_rate)]
    if not len(grid) or wrong:
        raise ValueError(
            f"nothing to restore: {len(grid.indices)} clips, cut-offs {grid.cutoffs_hz} Hz; those lie above 0 and "
            f"below {top(sample_rate):g} Hz"
        )
    return grid


def find_jobs(grid: Grid) -> Iterator[Job]:
    """The grid's items, clip after clip."""
    for number in range(len(grid)):
        clip, column = divmod(number, len(grid.cutoffs_hz))
        index = int(grid.indices[clip])
        name = f"{grid.recordings.high.names[index]}@{grid.cutoffs_hz[column]:g}"
        yield Job(number, clip, name, clip + column, grid.recordings.length(index))


def training_clips(recipe: SuperResolutionData | None, settings: Settings, sample_rate: int) -> Iterator[np.ndarray]:
    """Clips for the envelope, evenly chosen from the folder that the settings name, or else from the recipe's."""

    def evenly(count: int) -> list[int]:
        return np.unique(np.linspace(0, count - 1, min(count, _ENVELOPE_CLIPS)).astype(int)).tolist()

    if settings.train is not None:
        paths = files.find_audio_files(settings.train)
        yield from (files.read_mono(paths[number], sample_rate) for number in evenly(len(paths)))
    elif recipe is not None:
        crops: Crops = recipe.train_set
        for index in (int(crops.indices[number]) for number in evenly(len(crops.indices))):
            yield crops.recordings.read(index, 0, crops.recordings.length(index))[0]


def evaluate(run: Path, output: Path, settings: Settings, device: str = "cpu") -> Evaluation:
    """Restore band-limited clips and write tables and pictures; see `evaluate_run`.

    Rows are appended as they are computed; the same call again computes what is missing, failed, or changed.

    Raises:
        FileNotFoundError: a folder is missing, or an export is evaluated without `data`.
        ValueError: the run restores nothing, or there is nothing to restore.
    """
    restorer = load(run, device, **settings.options)
    if not isinstance(restorer, Restorer):
        raise ValueError(f"{run} is a {type(restorer).__name__}: name a run of the diffusion stage")
    recipe = recipe_data(run, settings)
    grid = make_grid(recipe, settings, restorer.sample_rate)
    jobs = list(find_jobs(grid))
    systems = [system for system in SYSTEMS if system != NOISE or recipe is not None or settings.train is not None]
    if NOISE not in systems:
        log.warning("no training audio is known, so there is no row %s: name a folder with --train", NOISE)
    keys = {(job, system): _key(run, settings, job, system) for job in jobs for system in systems}
    journal = Journal(output / JOURNAL_NAME)
    done = journal.open(set(keys.values()))
    missing = [job for job in jobs if any(keys[job, system] not in done for system in systems)]
    bench = _Bench(restorer, grid, settings, output, systems)
    if missing and NOISE in systems:
        bench.envelope = mean_envelope(training_clips(recipe, settings, restorer.sample_rate))
    for job in track(missing, "evaluate"):
        for row in bench.rows(job):
            row["key"] = keys[job, row["system"]]
            if row["key"] not in done:
                journal.add(row)
    evaluation = Evaluation(journal.close(keys.values()), systems)
    write_evaluation(
        output, evaluation, {"run": str(run), "device": device, **json.loads(json.dumps(asdict(settings), default=str))}
    )
    return evaluation


@dataclass
class _Bench:
    """Runs all systems on one item."""

    restorer: Restorer
    grid: Grid
    settings: Settings
    output: Path
    systems: Sequence[str]
    envelope: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def rows(self, job: Job) -> list[Row]:
        """One row for each system, without its key."""
        row: Row = {"name": job.name, "status": "done", "reason": ""}
        try:
            item = self.grid[job.number]
            high, low = item["high"][0].numpy(), item["low"][0].numpy()
            cutoff_hz, rate = float(item["cutoff_hz"]), self.restorer.sample_rate
            started = time.perf_counter()
            restored = self.restorer(low, rate, cutoff_hz=cutoff_hz)
            seconds = len(high) / rate
            factor = (time.perf_counter() - started) / seconds
            ways = {
                UNPROCESSED: lambda: low,
                LINEAR: lambda: linear(low, rate, cutoff_hz),
                NOISE: lambda: shaped_noise(low, rate, cutoff_hz, self.envelope),
                CEILING: lambda: self.restorer.ceiling(low, high, rate, cutoff_hz),
                RESTORED: lambda: restored,
            }
            results = {system: ways[system]() for system in self.systems}
        except (AudioFileError, ValueError) as error:
            log.warning("%s failed: %s", job.name, error)
            failed = {"status": "failed", "reason": format_error(error)}
            return [{**row, "system": system, **failed} for system in self.systems]
        if job.clip < self.settings.keep:
            self._keep(job.name, results, cutoff_hz, high)
        row |= {"cutoff_hz": cutoff_hz, "seconds": seconds}
        rows = [
            {**row, "system": system, **self._measured(found, low, high, cutoff_hz)}
            for system, found in results.items()
        ]
        rows[-1]["real_time_factor"] = factor
        return rows

    @torch.inference_mode()
    def _measured(self, found: np.ndarray, low: np.ndarray, high: np.ndarray, cutoff_hz: float) -> dict[str, float]:
        rate = self.restorer.sample_rate
        if self.settings.match_level:
            found = found * level_factor(found, high)
        ours, wanted = torch.from_numpy(np.asarray(found, np.float32)), torch.from_numpy(high)
        mels = [self.restorer.features(audio[None, None].to(self.restorer.device)) for audio in (ours, wanted)]
        return {
            **band_distances(ours, wanted, rate, cutoff_hz),
            **upper_bands(ours, wanted, rate, cutoff_hz),
            "si_sdr_low": low_band_si_sdr(found, low, rate, cutoff_hz),
            "mel_l1": float((mels[0] - mels[1]).abs().mean()),
            "pesq_wb": wide_band_pesq(found, high, rate, cutoff_hz),
        }

    def _keep(self, name: str, results: Mapping[str, np.ndarray], cutoff_hz: float, high: np.ndarray) -> None:
        rate, folder = self.restorer.sample_rate, self.output / "samples"
        stem = name.replace("/", "_")
        for system, audio in {"target": high, **results}.items():
            files.write(folder / f"{stem}_{system}.wav", audio, rate)
        before, after = Spectrogram(len(high)), Spectrogram(len(high))
        for image, system in ((before, UNPROCESSED), (after, RESTORED)):
            list(image.observe([results[system][None]]))
        write_picture(folder / f"{stem}.png", before, after, rate, len(high), [(0.0, cutoff_hz)], name)


def upper_bands(found: Tensor, high: Tensor, sample_rate: int, cutoff_hz: float) -> dict[str, float]:
    """Log-spectral distances of signals (T,) in equal bands above a cut-off, from the lowest: `lsd_hf_1` and so on."""
    edges = np.linspace(cutoff_hz, sample_rate / 2, len(HF_BANDS) + 1).tolist()
    return dict(zip(HF_BANDS, map(float, metrics.lsd_bands(found, high, sample_rate, edges)), strict=True))


def low_band_si_sdr(found: np.ndarray, low: np.ndarray, sample_rate: int, cutoff_hz: float) -> float:
    """SI-SDR in dB of the band below the cut-off, against the input: how well that band was left alone."""
    fade = min(round(_FADE_SECONDS * sample_rate), len(low) // 2)
    ramp = np.sin((np.arange(fade) + 0.5) / max(fade, 1) * np.pi / 2) ** 2
    window = np.concatenate([ramp, np.ones(len(low) - 2 * fade), ramp[::-1]])
    first = int(cutoff_hz / sample_rate * len(low))
    signals = []
    for audio in (found, low):
        spectrum = np.fft.rfft(audio * window)
        spectrum[first:] = 0
        signals.append(np.fft.irfft(spectrum, len(low)))
    scale = max(float(np.sqrt(np.mean(signals[1] ** 2))), 1e-12)  # the metric's floor is an absolute one
    ours, wanted = (torch.from_numpy(signal / scale).float() for signal in signals)
    return float(metrics.si_sdr(ours, wanted))


def wide_band_pesq(found: np.ndarray, high: np.ndarray, sample_rate: int, cutoff_hz: float) -> float:
    """PESQ of speech at 16 kHz (ITU-T P.862.2).

    NaN where that says nothing: a band that begins above its 8 kHz, audio that does not reach them, clips without
    speech; and where the package `pesq` is not installed.
    """
    rate = measures.METRICS["pesq"].sample_rate or sample_rate
    if sample_rate < rate or cutoff_hz >= rate / 2 or "pesq" not in measures.available_metrics():
        return math.nan
    pair = measures.AudioPair(np.asarray(found, np.float32), sample_rate, high, sample_rate)
    return measures.compute_metrics(pair, ["pesq"], sample_rate)["pesq_wb"]


def level_factor(found: np.ndarray, high: np.ndarray) -> np.float32:
    """The factor that brings the lowest tenth of the frequency bins to the level of the target (T,)."""
    last = max(int(_LOWEST_SHARE * (len(high) // 2 + 1)), 1)
    ours, wanted = (float(np.linalg.norm(np.fft.rfft(audio)[:last])) for audio in (found, high))
    return np.float32(wanted / ours if ours > 0 else 1.0)


def _key(run: Path, settings: Settings, job: Job, system: str) -> str:
    """Changes with all that a row depends on."""
    path = run / WEIGHTS_NAME if is_export(run) else find_checkpoint(run)
    facts = path.stat()
    chosen = asdict(replace(settings, cutoffs_hz=None, max_items=None, keep=0))
    known = (zoo.__version__, path.name, facts.st_size, facts.st_mtime_ns, chosen, job[2:], system)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


@writes_into("output")
def evaluate_run(
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
    result = evaluate(run, output, settings, device)
    print((output / "report.md").read_text(encoding="utf-8"))
    print(f"wrote {output}")
    return int(bool(result.failed))
