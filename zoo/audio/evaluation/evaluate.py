"""Compare folders of audio: clean, degraded and restored files, matched by their relative paths without suffix."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import track

import zoo
from zoo.audio.corpora.corpus import MAX_EXAMPLES, unique_stems
from zoo.audio.corpora.layouts import read_texts
from zoo.audio.evaluation.asr import ASR
from zoo.audio.evaluation.dnsmos import DNSMOS
from zoo.audio.evaluation.measures import METRICS, AudioPair, available_metrics, check_names, compute_metrics
from zoo.audio.evaluation.models import MetricModel, MOSPredictor
from zoo.audio.evaluation.similarity import SpeakerSimilarity
from zoo.audio.evaluation.summary import MetricColumn, failed_rows, summarize, summary_table, write_tables
from zoo.audio.io import files
from zoo.audio.io.resample import resample_array
from zoo.audio.parallel import map_in_processes
from zoo.common.foreign_files import read_lines
from zoo.common.journal import Journal, format_error
from zoo.common.locks import writes_into
from zoo.common.reports import Row
from zoo.common.statistics import LEVEL

log = logging.getLogger(__name__)

CLEAN, DEGRADED = "clean", "degraded"
PER_FILE = "per_file.csv"
JOURNAL_NAME = "per_file.jsonl"
MAX_LENGTH_DIFFERENCE_SECONDS = 0.1  # a larger one means another recording, or a restoration that lost its tail
_FACTS = ("seconds", "length_difference_seconds", "level_db")


@dataclass(frozen=True)
class EvaluationModels:
    """Models that score recordings besides the metrics.

    Args:
        asr_model: hub id or folder of a transformers recogniser, for word and character error rates.
        asr_language: for a recogniser of several languages, such as en.
        speaker_model: hub id or folder of a transformers x-vector model, for speaker similarity.
        dnsmos: folder with Microsoft's sig_bak_ovr.onnx.
        mos_model: ONNX file from waveform to predicted opinion score (UTMOS and the like).
        device: torch device of the transformers models.
    """

    asr_model: str | None = None
    asr_language: str | None = None
    speaker_model: str | None = None
    dnsmos: Path | None = None
    mos_model: Path | None = None
    device: str = "cpu"

    def build(self) -> tuple[MetricModel, ...]:
        """Make the models that are named; each loads at its first use."""
        models: list[MetricModel] = []
        if self.speaker_model:
            models.append(SpeakerSimilarity(self.speaker_model, device=self.device))
        if self.dnsmos:
            models.append(DNSMOS(self.dnsmos))
        if self.mos_model:
            models.append(MOSPredictor(self.mos_model))
        if self.asr_model:
            models.append(ASR(self.asr_model, self.asr_language, self.device))
        return tuple(models)


_NO_MODELS = EvaluationModels()


@dataclass(frozen=True)
class Settings:
    """What is measured; see `evaluate_folders`."""

    metrics: tuple[str, ...]  # of `zoo.audio.evaluation.measures.METRICS`
    sample_rate: int = 22050  # above that of the clean files an empty band would be compared
    match_level: bool = False
    models: tuple[MetricModel, ...] = ()

    @property
    def columns(self) -> dict[MetricColumn, int]:
        """All columns with values, and their sample rates in Hz."""
        metrics = [METRICS[name] for name in self.metrics]
        rates = {column: each.sample_rate or self.sample_rate for each in metrics for column in each.measures}
        return rates | {column: model.sample_rate for model in self.models for column in model.measures}


class EvaluationItem(NamedTuple):
    """One file of one system; a path is None where the folder lacks the file."""

    name: str
    system: str
    clean: Path | None
    restored: Path | None
    text: str | None
    key: str


@dataclass(frozen=True)
class Evaluation:
    """Rows per file and system (per_file.csv), summary per system and measure, clean files compared with nothing."""

    rows: list[Row]
    summary: list[Row]
    unpaired: int


def evaluate(
    clean: Path,
    restored: Mapping[str, Path],
    output: Path,
    degraded: Path | None = None,
    settings: Settings | None = None,
    texts: Mapping[str, str] | None = None,
    workers: int = 0,
) -> Evaluation:
    """Measure folders, `restored` by the names of their systems, as `evaluate_folders` does.

    A later call computes only what is missing, has failed, or has changed (files or settings). A bad file is a row with
    status "failed" and the reason. `texts` go by relative path without suffix, or by name alone where it is unique.
    """
    settings = settings or Settings(available_metrics())
    check_names(settings.metrics)
    if not restored or {CLEAN, DEGRADED} & restored.keys():
        raise ValueError(f"restored: expected named folders, none called {CLEAN} or {DEGRADED}, got {list(restored)}")
    systems = {**({DEGRADED: degraded} if degraded is not None else {}), **restored}
    items, unpaired = _list_items(clean, systems, settings, texts or {})
    rows = _measure_missing(items, output, settings, workers)
    names = [*([CLEAN] if settings.models else []), *systems]
    done = [row for row in rows if row["status"] == "done"]
    summary = summarize(done, names, list(settings.columns), DEGRADED if degraded else None)
    evaluation = Evaluation(rows, summary, unpaired)
    _write_report(output, evaluation, settings)
    return evaluation


def _write_report(output: Path, evaluation: Evaluation, settings: Settings) -> None:
    """Write the tables, with a report of means and gains, and the rates of the metrics."""
    lines = ["# Evaluation", "", f"Means with {LEVEL:.0%} bootstrap intervals over files.", ""]
    lines += [summary_table(evaluation.summary), ""]
    if any(math.isfinite(row["gain"]) for row in evaluation.summary):
        lines += ["Gains over the degraded files, paired, positive is better:", ""]
        lines += [summary_table(evaluation.summary, "gain"), ""]
    rates = ", ".join(f"{column.name} {rate} Hz" for column, rate in settings.columns.items())
    lines += [f"Taken at: {rates}.{' Levels matched for lsd and m_stft.' if settings.match_level else ''}"]
    weights = dict.fromkeys(column.weight for column in settings.columns if column.weight)
    numbers = [*_FACTS, *(column.name for column in settings.columns), *weights]
    facts = {
        "sample_rates": {column.name: rate for column, rate in settings.columns.items()},
        "match_level": settings.match_level,
        "models": [str(model) for model in settings.models],
        "clean_files_left_out": evaluation.unpaired,
    }
    write_tables(output, PER_FILE, numbers, evaluation.rows, evaluation.summary, lines, facts)


def _measure_missing(items: Sequence[EvaluationItem], output: Path, settings: Settings, workers: int) -> list[Row]:
    """Compute the rows that the journal lacks; returns all of them."""
    journal = Journal(output / JOURNAL_NAME)
    done = journal.open({item.key for item in items})
    missing = [item for item in items if item.key not in done]
    log.info("%d of %d rows are computed already", len(done), len(items))
    rows = map_in_processes(partial(measure, settings=settings), missing, workers)
    for row in track(rows, "evaluate", len(missing)):
        journal.add(row)
    return journal.close(item.key for item in items)


def read_transcripts(path: Path) -> dict[str, str]:
    """Read reference texts: lines `name<TAB>text` or `name|text`, of which the last field is the text."""
    return read_texts(path, "\t" if "\t" in next(iter(read_lines(path)), "") else "|")


def _find_files(folder: Path) -> dict[str, Path]:
    """Find the audio files of a folder by their relative paths without suffix."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    paths: dict[str, Path] = {}
    for path in files.find_audio_files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in paths:
            raise ValueError(f"{paths[name]} and {path} have one name; remove one of them")
        paths[name] = path
    if not paths:
        raise ValueError(f"{folder}: no file ends in {', '.join(files.AUDIO_SUFFIXES)}")
    return paths


def _list_items(
    clean: Path, systems: Mapping[str, Path], settings: Settings, texts: Mapping[str, str]
) -> tuple[list[EvaluationItem], int]:
    """List all items in order, and count the clean files that nothing is compared with."""
    originals = _find_files(clean)
    folders = {system: _find_files(folder) for system, folder in systems.items()}
    names = sorted(set().union(*folders.values()))
    paired = [name for name in names if name in originals]
    if not paired:
        examples = ", ".join(names[:MAX_EXAMPLES])
        raise ValueError(f"no file has a clean counterpart of its relative path below {clean}: {examples}, ...")
    if settings.models:  # the ceiling of what needs no reference
        folders = {CLEAN: {name: originals[name] for name in paired}, **folders}
    items, unique, models = [], unique_stems(originals), [_file_facts(model) for model in settings.models]
    for system, paths_by_name in folders.items():
        for name in paired if system == CLEAN else names:
            text = texts.get(name, texts.get(Path(name).name) if Path(name).name in unique else None)
            paths = originals.get(name), paths_by_name.get(name)
            facts = [_file_fact(path) for path in paths if path is not None]
            described = (zoo.__version__, name, system, facts, text, settings, models)
            key = hashlib.sha256(repr(described).encode()).hexdigest()
            items.append(EvaluationItem(name, system, *paths, text, key[:16]))
    if texts and (lacking := [item.name for item in items if item.text is None]):
        message = f"{len(lacking)} of {len(items)} files have no line in --texts: {', '.join(lacking[:MAX_EXAMPLES])}"
        if len(lacking) == len(items):
            raise ValueError(message)
        log.warning("%s", message)
    if len(paired) < len(originals):
        log.warning("%d files of %s have no counterpart and are left out", len(originals) - len(paired), clean)
    return items, len(originals) - len(paired)


def _file_fact(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return os.path.abspath(path), stat.st_size, stat.st_mtime_ns


def _file_facts(model: MetricModel) -> list[tuple[str, int, int]]:
    """Path, size and time of the files that a model's fields name."""
    values = [getattr(model, field.name) for field in fields(model)]
    paths = [Path(value) for value in values if isinstance(value, str | Path) and Path(value).exists()]
    return [_file_fact(file) for path in paths for file in sorted([path, *path.rglob("*")]) if file.is_file()]


def measure(item: EvaluationItem, settings: Settings) -> Row:
    """Compute one row; that of a bad file has status "failed", the reason, and no values."""
    for model in settings.models:
        model.load()
    row: Row = {"name": item.name, "system": item.system, "status": "done", "reason": "", "key": item.key}
    try:
        return row | _compute_values(item, settings)
    except (ValueError, OSError, RuntimeError) as error:
        log.warning("%s of %s failed: %s", item.name, item.system, error)
        return row | {"status": "failed", "reason": format_error(error)}


def _compute_values(item: EvaluationItem, settings: Settings) -> Row:
    if item.clean is None or item.restored is None:
        raise FileNotFoundError(f"no {CLEAN if item.clean is None else item.system} file of this name")
    (clean, clean_rate), (restored, rate) = _read_mono(item.clean), _read_mono(item.restored)
    row: Row = {"seconds": len(restored) / rate}
    if item.system != CLEAN:
        if clean_rate < settings.sample_rate:
            raise ValueError(
                f"the clean file is at {clean_rate} Hz, below sample_rate {settings.sample_rate}; lower that"
            )
        pair = AudioPair(restored, rate, clean, clean_rate)
        difference = pair.length_difference_seconds
        row |= {"length_difference_seconds": difference, "level_db": pair.level_db}
        if abs(difference) > MAX_LENGTH_DIFFERENCE_SECONDS:
            raise ValueError(
                f"{difference:+.3f} s longer than the clean file, expected at most {MAX_LENGTH_DIFFERENCE_SECONDS} s"
            )
        row |= compute_metrics(pair, settings.metrics, settings.sample_rate, settings.match_level)
    for model in settings.models:
        reference = None if item.system == CLEAN else resample_array(clean, clean_rate, model.sample_rate)
        row |= model(resample_array(restored, rate, model.sample_rate), reference, item.text)
    return row


def _read_mono(path: Path) -> tuple[np.ndarray, int]:
    audio, rate = files.read(path)
    return audio.mean(axis=0, dtype=np.float32), rate


@writes_into("output", positional=False)
def evaluate_folders(
    clean: Path,
    restored: Path | dict[str, Path],
    output: Path,
    degraded: Path | None = None,
    metrics: list[str] | None = None,
    sample_rate: int = 22050,
    match_level: bool = False,
    texts: Path | None = None,
    models: EvaluationModels = _NO_MODELS,
    workers: int = 0,
) -> int:
    """Measure restored (and degraded) files against clean ones: CSV and a summary with intervals.

    Files are matched by their paths below the folders, without suffix. A second call computes only what is missing. The
    exit code is 1 when a file could not be measured; per_file.csv says why.

    Args:
        clean: folder of clean files.
        restored: folder of restored files; of several systems with --restored.NAME FOLDER.
        output: folder for per_file.csv, summary.csv, summary.json and report.md.
        degraded: folder of the files that were restored, to report the gain.
        metrics: of pesq, stoi, estoi, si_sdr, mcd, pitch, lsd, m_stft; all that are available when not given.
        sample_rate: at which si_sdr, mcd, lsd and m_stft are taken, in Hz; not above that of the clean files.
        match_level: bring signals to the level of the clean ones for lsd and m_stft.
        texts: file with what is said, lines `name|text`; for the recogniser.
        models: models that score besides.
        workers: processes; 0 computes in this one.

    Raises:
        FileNotFoundError: a folder or model file is missing.
        ValueError: the folders do not match, a name is unknown, or a recogniser is given without texts.
    """
    if (models.asr_model is None) != (texts is None):
        raise ValueError("--models.asr_model and --texts belong together: error rates need a recogniser and texts")
    named = restored if isinstance(restored, dict) else {"restored": restored}
    names = tuple(available_metrics() if metrics is None else metrics)
    settings = Settings(names, sample_rate, match_level, models.build())
    transcripts = None if texts is None else read_transcripts(texts)
    result = evaluate(clean, named, output, degraded, settings, transcripts, workers)
    print((output / "report.md").read_text(encoding="utf-8"))
    print(f"wrote {output}")
    return 1 if failed_rows(result.rows) else 0
