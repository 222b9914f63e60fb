"""How well a run restores: distances to the full-band target over cut-offs, beside baselines and the ceiling."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

import zoo
from zoo.audio import files, metrics
from zoo.audio.decoding import AudioFileError
from zoo.audio.measures import Measure
from zoo.audio.table import Row, Table
from zoo.audiosr.baselines import linear, mean_envelope, shaped_noise
from zoo.audiosr.evaluation_clips import Job, Settings, find_jobs, make_grid, recipe_data, training_clips
from zoo.audiosr.evaluation_report import Evaluation, write_report
from zoo.audiosr.items import Grid
from zoo.audiosr.report import Spectrogram, write_picture
from zoo.audiosr.restore import Restorer
from zoo.loading import load
from zoo.training.export import WEIGHTS_NAME, is_export
from zoo.training.run import find_checkpoint

log = logging.getLogger(__name__)

UNPROCESSED, LINEAR, NOISE, CEILING, RESTORED = SYSTEMS = (
    "unprocessed", "linear", "shaped_noise", "ceiling", "restored",
)  # fmt: skip
MEASURES = (
    Measure("lsd", False),
    Measure("lsd_hf", False),
    Measure("lsd_lf", False),
    Measure("si_sdr_low", True, "dB"),
    Measure("mel_l1", False),
    Measure("real_time_factor", False),
)
PER_ITEM = "per_item.csv"

_TEXTS = ("name", "system", "status", "reason")
_NUMBERS = ("cutoff_hz", "seconds", *(measure.name for measure in MEASURES))
_LOWEST_SHARE = 0.1  # of the bins, whose level is matched: AudioSR's note
_FADE_SECONDS = 0.05  # at both ends, or a cut through the upper band would be heard in the low one


def evaluate(run: Path, output: Path, settings: Settings, device: str = "cpu") -> Evaluation:
    """Restore band-limited clips and write tables and pictures.

    Rows are appended as they are computed; the same call again computes what is missing, failed, or changed.

    Args:
        run: run folder, checkpoint or export of the diffusion stage.
        output: folder for per_item.csv, summary.csv, summary.json, report.md, cutoffs.png and samples/.
        settings: what is evaluated.
        device: torch device.

    Returns:
        All rows, and the summary.

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
    table = Table(output / PER_ITEM, _TEXTS, _NUMBERS)
    done = table.begin(set(keys.values()))
    missing = [job for job in jobs if any(keys[job, system] not in done for system in systems)]
    bench = _Bench(restorer, grid, settings, output, systems)
    if missing and NOISE in systems:
        bench.envelope = mean_envelope(training_clips(recipe, settings, restorer.sample_rate))
    for job in track(missing, "evaluate"):
        for row in bench.rows(job):
            row["key"] = keys[job, row["system"]]
            if row["key"] not in done:
                table.append(row)
            done[row["key"]] = row
    rows = [done[key] for key in keys.values()]
    table.write(rows)
    evaluation = Evaluation(rows, systems, MEASURES, RESTORED, UNPROCESSED)
    write_report(
        output, evaluation, {"run": str(run), "device": device, **json.loads(json.dumps(asdict(settings), default=str))}
    )
    return evaluation


class _Bench:
    """Runs all systems on one item."""

    def __init__(
        self, restorer: Restorer, grid: Grid, settings: Settings, output: Path, systems: Sequence[str]
    ) -> None:
        self.restorer = restorer
        self.grid = grid
        self.settings = settings
        self.output = output
        self.systems = systems
        self.envelope = np.zeros(0)

    def rows(self, job: Job) -> list[Row]:
        """One row for each system, without its key."""
        row: Row = {"name": job.name, "status": "done", "reason": ""}
        try:
            item = self.grid[job.number]
            high, low = item["high"][0].numpy(), item["low"][0].numpy()
            cutoff_hz = float(item["cutoff_hz"])
            started = time.perf_counter()
            restored = self.restorer(low, self.restorer.sample_rate, cutoff_hz=cutoff_hz)
            seconds = len(high) / self.restorer.sample_rate
            factor = (time.perf_counter() - started) / seconds
            results = {system: self._result(system, low, high, cutoff_hz, restored) for system in self.systems}
        except (AudioFileError, ValueError) as error:
            log.warning("%s failed: %s", job.name, error)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return [{**row, "system": system, "status": "failed", "reason": reason} for system in self.systems]
        if job.clip < self.settings.keep:
            self._keep(job.name, results, cutoff_hz, high)
        row |= {"cutoff_hz": cutoff_hz, "seconds": seconds}
        rows = [
            {**row, "system": system, **self._measured(found, low, high, cutoff_hz)}
            for system, found in results.items()
        ]
        rows[-1]["real_time_factor"] = factor
        return rows

    def _result(
        self, system: str, low: np.ndarray, high: np.ndarray, cutoff_hz: float, restored: np.ndarray
    ) -> np.ndarray:
        rate = self.restorer.sample_rate
        if system == LINEAR:
            return linear(low, rate, cutoff_hz)
        if system == NOISE:
            return shaped_noise(low, rate, cutoff_hz, self.envelope)
        if system == CEILING:
            return self.restorer.ceiling(low, high, rate, cutoff_hz)
        return restored if system == RESTORED else low

    @torch.inference_mode()
    def _measured(self, found: np.ndarray, low: np.ndarray, high: np.ndarray, cutoff_hz: float) -> dict[str, float]:
        rate = self.restorer.sample_rate
        if self.settings.match_level:
            found = found * level_factor(found, high)
        ours, wanted = torch.from_numpy(np.asarray(found, np.float32)), torch.from_numpy(high)
        below, above = metrics.lsd_bands(ours, wanted, rate, cutoff_hz)
        mels = [self.restorer.features(audio[None, None].to(self.restorer.device)) for audio in (ours, wanted)]
        return {
            "lsd": float(metrics.lsd(ours, wanted)),
            "lsd_hf": float(above),
            "lsd_lf": float(below),
            "si_sdr_low": low_band_si_sdr(found, low, rate, cutoff_hz),
            "mel_l1": float((mels[0] - mels[1]).abs().mean()),
        }

    def _keep(self, name: str, results: Mapping[str, np.ndarray], cutoff_hz: float, high: np.ndarray) -> None:
        rate, folder = self.restorer.sample_rate, self.output / "samples"
        stem = name.replace("/", "_")
        for system, audio in {"target": high, **results}.items():
            files.write(folder / f"{stem}_{system}.wav", audio, rate)
        images = []
        for system in (UNPROCESSED, RESTORED):
            image = Spectrogram(len(high))
            list(image.listen([results[system][None]]))
            images.append(image)
        write_picture(folder / f"{stem}.png", images[0], images[1], rate, len(high), [(0.0, cutoff_hz)], name)


def low_band_si_sdr(found: np.ndarray, low: np.ndarray, sample_rate: int, cutoff_hz: float) -> float:
    """SI-SDR in dB of the band below the cut-off, against the input: how well that band was left alone.

    Args:
        found: the result (T,) float.
        low: the input (T,) float.
        sample_rate: Hz.
        cutoff_hz: Hz.
    """
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


def level_factor(found: np.ndarray, high: np.ndarray) -> np.float32:
    """The factor that brings the lowest tenth of the frequency bins to the level of the target (T,)."""
    last = max(int(_LOWEST_SHARE * (len(high) // 2 + 1)), 1)
    ours, wanted = (float(np.linalg.norm(np.fft.rfft(audio)[:last])) for audio in (found, high))
    return np.float32(wanted / ours if ours > 0 else 1.0)


def _key(run: Path, settings: Settings, job: Job, system: str) -> str:
    """Changes with all that a row depends on."""
    path = run / WEIGHTS_NAME if is_export(run) else find_checkpoint(run)
    facts = path.stat()
    told = asdict(replace(settings, cutoffs_hz=None, max_items=None, keep=0))
    known = (zoo.__version__, path.name, facts.st_size, facts.st_mtime_ns, told, job[2:], system)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]
