"""Compares trees of audio: clean, degraded and restored files, matched by their relative paths without suffix."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

import zoo
from zoo.audio.corpora.selection import unique_stems, without_suffix
from zoo.audio.evaluation.judges import (
    ASR,
    DNSMOS,
    FLAG_QUANTILE,
    NISQA,
    InputDisagreement,
    Judge,
    MOSPredictor,
    SpeakerSimilarity,
)
from zoo.audio.evaluation.measures import METRICS, Pair, check_names, compare, installed
from zoo.audio.io import files
from zoo.audio.io.resample import resample_array
from zoo.common.locks import writes_into
from zoo.common.reading.text_files import read_lines
from zoo.common.report import Row, box_plots, failure_lines, summary_table, write_report
from zoo.common.statistics import LEVEL, Measure, summarise
from zoo.common.work import Table, cause, spread

log = logging.getLogger(__name__)

CLEAN, DEGRADED = "clean", "degraded"
PER_FILE = "per_file.csv"
LONGEST_DIFFERENCE_SECONDS = 0.1  # a larger one means another recording, or a restoration that lost its tail
_TEXTS = ("name", "system", "status", "reason")
_FACTS = ("seconds", "length_difference_seconds", "level_db")
_SHOWN = 5  # names in a message


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        metrics: names of `zoo.audio.evaluation.measures.METRICS`.
        sample_rate: in Hz, of the metrics without a rate of their own: si_sdr, mcd, lsd, m_stft. Not above that of the
            clean files, or an empty band would be compared.
        match_level: bring every signal to the level of the clean one before lsd and m_stft, which follow the level.
        judges: models that judge besides.
    """

    metrics: tuple[str, ...]
    sample_rate: int = 22050
    match_level: bool = False
    judges: tuple[Judge, ...] = ()

    @property
    def measures(self) -> list[Measure]:
        """All columns with values."""
        columns = [measure for name in self.metrics for measure in METRICS[name].measures]
        return columns + [measure for judge in self.judges for measure in judge.measures]

    @property
    def rates(self) -> dict[str, int]:
        """At which rate in Hz each column is taken."""
        own = {
            measure.name: METRICS[name].sample_rate or self.sample_rate
            for name in self.metrics
            for measure in METRICS[name].measures
        }
        return own | {measure.name: judge.sample_rate for judge in self.judges for measure in judge.measures}

    @property
    def flagging(self) -> InputDisagreement | None:
        """The judge whose segments are flagged, if there is one."""
        return next((judge for judge in self.judges if isinstance(judge, InputDisagreement)), None)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of the per-file table that hold text."""
        return (*_TEXTS, "segments") if self.flagging else _TEXTS

    @property
    def numbers(self) -> list[str]:
        """The numeric columns of the per-file table."""
        weights = dict.fromkeys(measure.weight for measure in self.measures if measure.weight)
        return [*_FACTS, *(measure.name for measure in self.measures), *weights]


class Job(NamedTuple):
    """One file of one system; a path is None where the tree lacks the file."""

    name: str
    system: str
    clean: Path | None
    found: Path | None
    text: str | None
    key: str
    degraded: Path | None = None


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        rows: per file and system, as in per_file.csv.
        summary: per system and measure, as in summary.csv; see `zoo.common.statistics.summarise`.
        unpaired: number of clean files that nothing was compared with.
        flagged: segments that are far from what the degraded file holds, as in flagged.csv.
        flags: how many they are; see `flag`.
    """

    rows: list[Row]
    summary: list[Row]
    unpaired: int
    flagged: list[Row] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> list[Row]:
        """The rows without measurements."""
        return [row for row in self.rows if row["status"] == "failed"]


def evaluate(
    clean: Path,
    restored: Mapping[str, Path],
    output: Path,
    degraded: Path | None = None,
    settings: Settings | None = None,
    texts: Mapping[str, str] | None = None,
    workers: int = 0,
    progress: bool = True,
) -> Evaluation:
    """Measure restored (and degraded) files against clean ones and write tables and plots.

    Files belong together when their paths below the trees agree up to the suffix. What is compared is every file of the
    degraded and restored trees; clean files beyond those are left out. Rows are appended to per_file.csv as they are
    computed; a later call computes only what is missing, has failed, or has changed (files or settings).

    Args:
        clean: as for `evaluate_folders`, likewise `output`, `degraded` and `workers`.
        restored: folders by the names of their systems.
        settings: what to measure; all installed metrics when None.
        texts: reference texts by relative path without suffix, or by name alone where it is unique; for judges.

    Returns:
        All rows and the summary. A bad file is a row with status "failed" and the reason.

    Raises:
        FileNotFoundError: a folder is missing.
        ValueError: a tree has no audio, or two files with one name; a name of a system is reserved; unknown metrics.
        ImportError: a metric's or judge's package is missing.
        ChildProcessError: a worker died.
    """
    settings = settings or Settings(installed())
    check_names(settings.metrics)
    if not restored or {CLEAN, DEGRADED} & restored.keys():
        raise ValueError(f"restored: expected named folders, none called {CLEAN} or {DEGRADED}, got {list(restored)}")
    systems = {**({DEGRADED: degraded} if degraded is not None else {}), **restored}
    if settings.flagging and degraded is None:
        raise ValueError("--ssl_model compares with what was restored: name that folder with --degraded")
    jobs, unpaired = _plan(clean, systems, settings, texts or {})
    table = Table(output / PER_FILE, settings.texts, settings.numbers)
    done = table.begin({job.key for job in jobs})
    missing = [job for job in jobs if job.key not in done]
    log.info("%d of %d rows are computed already", len(done), len(jobs))
    found = spread(partial(measure, settings=settings), missing, workers)
    for row in track(found, "evaluate", len(missing), disable=not progress):
        table.add(row)
    rows = table.finish(job.key for job in jobs)
    names = [*([CLEAN] if settings.judges else []), *systems]
    summary = summarise(
        [row for row in rows if row["status"] == "done"], names, settings.measures, DEGRADED if degraded else None
    )
    flagged = flag(rows, settings.flagging) if settings.flagging else ([], {})
    evaluation = Evaluation(rows, summary, unpaired, *flagged)
    _write(output, evaluation, settings)
    return evaluation


def flag(rows: Sequence[Row], judge: InputDisagreement) -> tuple[list[Row], dict[str, Any]]:
    """Find segments whose features are further from the degraded input's than they may be.

    Returns:
        A row for each: `system`, `name`, `start_seconds`, `disagreement`; and `threshold`, `quantile` (None for a
        given threshold), and `segments` and `flagged` by system.
    """
    found = [(row, np.array([float(value) for value in str(row.get("segments") or "").split()])) for row in rows]
    found = [(row, values) for row, values in found if len(values)]
    clean = np.concatenate([np.zeros(0), *(values for row, values in found if row["system"] == CLEAN)])
    threshold, quantile = judge.flag_above, None
    if threshold is None:
        threshold, quantile = float(np.quantile(clean, FLAG_QUANTILE)) if len(clean) else math.inf, FLAG_QUANTILE
    flagged: list[Row] = []
    counts: dict[str, dict[str, int]] = {"segments": {}, "flagged": {}}
    for row, values in found:
        system, over = row["system"], np.flatnonzero(values > threshold)
        counts["segments"][system] = counts["segments"].get(system, 0) + len(values)
        counts["flagged"][system] = counts["flagged"].get(system, 0) + len(over)
        flagged += [
            {
                "system": system,
                "name": row["name"],
                "start_seconds": int(index) * judge.segment_seconds,
                "disagreement": float(values[index]),
            }
            for index in over
        ]
    flagged.sort(key=lambda row: -row["disagreement"])
    return flagged, {"threshold": threshold, "quantile": quantile, **counts}


def _flag_lines(evaluation: Evaluation) -> list[str]:
    """How many segments of each system are flagged, and the furthest ones."""
    flags = evaluation.flags
    origin = f"the {flags['quantile']} quantile of the clean files'" if flags["quantile"] else "as given"
    lines = [f"Segments further from the degraded file's features than {flags['threshold']:.4f} ({origin}), "]
    lines[0] += "possible hallucinations:"
    lines += ["", "| system | segments | flagged | share |", "|---|---|---|---|"]
    for system, count in flags["segments"].items():
        lines.append(f"| {system} | {count} | {flags['flagged'][system]} | {flags['flagged'][system] / count:.1%} |")
    shown = [row for row in evaluation.flagged if row["system"] != CLEAN][:_SHOWN]
    worst = [f"- {r['system']} {r['name']} at {r['start_seconds']:g} s: {r['disagreement']:.4f}" for r in shown]
    return [*lines, "", *worst, *([""] if worst else [])]


def _write(output: Path, evaluation: Evaluation, settings: Settings) -> None:
    """Write summary.csv, summary.json, report.md and boxplots.png."""
    summary = evaluation.summary
    good = [row for row in evaluation.rows if row["status"] == "done"]
    systems = list(dict.fromkeys(row["system"] for row in summary))
    written = {
        "summary.csv": (list(summary[0]), summary),
        "summary.json": {
            "version": zoo.__version__,
            "sample_rates": settings.rates,
            "match_level": settings.match_level,
            "judges": [str(judge) for judge in settings.judges],
            "confidence": LEVEL,
            "clean_files_left_out": evaluation.unpaired,
            "failed": [{key: row[key] for key in ("system", "name", "reason")} for row in evaluation.failed],
            "summary": summary,
            **({"flags": evaluation.flags} if evaluation.flags else {}),
        },
        "report.md": _markdown(evaluation, settings),
        "boxplots.png": box_plots(good, systems, settings.measures),
    }
    if evaluation.flags:
        columns = ["system", "name", "start_seconds", "disagreement"]
        written["flagged.csv"] = (columns, evaluation.flagged)
    write_report(output, written, indent=2)


def _markdown(evaluation: Evaluation, settings: Settings) -> str:
    """Tables of means and gains, the rates of the metrics, and the first failures."""
    lines = ["# Evaluation", "", f"Means with {LEVEL:.0%} bootstrap intervals over files.", ""]
    lines += [summary_table(evaluation.summary), ""]
    if any(math.isfinite(row["gain"]) for row in evaluation.summary):
        lines += ["Gains over the degraded files, paired, positive is better:", ""]
        lines += [summary_table(evaluation.summary, "gain"), ""]
    if evaluation.flags:
        lines += _flag_lines(evaluation)
    rates = ", ".join(f"{name} {rate} Hz" for name, rate in settings.rates.items())
    lines += [f"Taken at: {rates}.{' Levels matched for lsd and m_stft.' if settings.match_level else ''}", ""]
    lines += failure_lines(evaluation.failed, len(evaluation.rows), rest=PER_FILE)
    return "\n".join(lines).rstrip() + "\n"


def read_texts(path: Path) -> dict[str, str]:
    """Read reference texts: lines `name<TAB>text` or `name|text`, of which the last field is the text.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line without a separator.
    """
    texts = {}
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t" if "\t" in line else "|")
        if len(fields) < 2 and line.strip():
            raise ValueError(f"{path}:{number}: expected `name<TAB>text` or `name|text`, found {line[:60]!r}")
        if line.strip():
            texts[without_suffix(fields[0].strip())] = fields[-1].strip()
    return texts


def _tree(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    found: dict[str, Path] = {}
    for path in files.find_audio_files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise ValueError(f"{found[name]} and {path} have one name; remove one of them")
        found[name] = path
    if not found:
        raise ValueError(f"{folder}: no file ends in {', '.join(files.AUDIO_SUFFIXES)}")
    return found


def _plan(
    clean: Path, systems: Mapping[str, Path], settings: Settings, texts: Mapping[str, str]
) -> tuple[list[Job], int]:
    """All jobs in order, and how many clean files nothing is compared with."""
    originals = _tree(clean)
    trees = {system: _tree(folder) for system, folder in systems.items()}
    names = sorted(set().union(*trees.values()))
    used = [name for name in names if name in originals]
    if not used:
        shown = ", ".join(names[:_SHOWN])
        raise ValueError(f"no file has a clean counterpart below {clean}: {shown}, ...; the relative paths must agree")
    if settings.judges:  # the ceiling of what needs no reference
        trees = {CLEAN: {name: originals[name] for name in used}, **trees}
    jobs, own_stems = [], unique_stems(originals)
    for system, tree in trees.items():
        for name in used if system == CLEAN else names:
            text = texts.get(name, texts.get(Path(name).name) if Path(name).name in own_stems else None)
            pair = originals.get(name), tree.get(name)
            source = trees[DEGRADED].get(name) if settings.flagging else None
            paths = (*pair, source) if settings.flagging else pair
            jobs.append(Job(name, system, *pair, text, _key(name, system, paths, text, settings), source))
    if len(used) < len(originals):
        log.warning("%d files of %s have no counterpart and are left out", len(originals) - len(used), clean)
    return jobs, len(originals) - len(used)


def _key(name: str, system: str, paths: Sequence[Path | None], text: str | None, settings: Settings) -> str:
    """Changes with everything that a row depends on."""
    stats = [path.stat() for path in paths if path is not None]
    facts = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
    return hashlib.sha256(repr((zoo.__version__, name, system, facts, text, settings)).encode()).hexdigest()[:16]


def measure(job: Job, settings: Settings) -> Row:
    """Compute one row.

    Returns:
        The row; a bad file has status "failed", the reason, and no values.

    Raises:
        ImportError: a judge's package is missing.
        OSError: a judge's model cannot be loaded.
    """
    for judge in settings.judges:
        judge.load()
    row: Row = {"name": job.name, "system": job.system, "status": "done", "reason": "", "key": job.key}
    row |= dict.fromkeys(settings.texts[len(_TEXTS) :], "")
    try:
        return row | _values(job, settings)
    except (ValueError, OSError, RuntimeError) as error:
        log.warning("%s of %s failed: %s", job.name, job.system, error)
        return row | {"status": "failed", "reason": cause(error)}


def _values(job: Job, settings: Settings) -> Row:
    if job.clean is None or job.found is None:
        raise FileNotFoundError(f"no {CLEAN if job.clean is None else job.system} file of this name")
    (clean, clean_rate), (found, found_rate) = _mono(job.clean), _mono(job.found)
    row: Row = {"seconds": len(found) / found_rate}
    if job.system != CLEAN:
        if clean_rate < settings.sample_rate:
            raise ValueError(
                f"the clean file is at {clean_rate} Hz, below sample_rate {settings.sample_rate}; lower that"
            )
        pair = Pair(found, found_rate, clean, clean_rate)
        difference = pair.length_difference_seconds
        row |= {"length_difference_seconds": difference, "level_db": pair.level_db}
        if abs(difference) > LONGEST_DIFFERENCE_SECONDS:
            raise ValueError(
                f"{difference:+.3f} s longer than the clean file, at most {LONGEST_DIFFERENCE_SECONDS} s are expected"
            )
        row |= compare(pair, settings.metrics, settings.sample_rate, settings.match_level)
    for judge in settings.judges:
        resampled = resample_array(found, found_rate, judge.sample_rate)
        reference = None
        if judge.reference == DEGRADED and job.degraded is not None and job.system != DEGRADED:
            reference = resample_array(*_mono(job.degraded), judge.sample_rate)
        elif judge.reference == CLEAN and job.system != CLEAN:
            reference = resample_array(clean, clean_rate, judge.sample_rate)
        row |= judge(resampled, reference, job.text)
    return row


def _mono(path: Path) -> tuple[np.ndarray, int]:
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
    asr_model: str | None = None,
    asr_language: str | None = None,
    speaker_model: str | None = None,
    dnsmos: Path | None = None,
    mos_model: Path | None = None,
    nisqa: Path | None = None,
    ssl_model: str | None = None,
    ssl_layer: int | None = None,
    flag_above: float | None = None,
    device: str = "cpu",
    workers: int = 0,
) -> int:
    """Measure restored (and degraded) files against clean ones: CSV, summary with intervals, box plots.

    Files are matched by their paths below the folders, without suffix. A second call computes only what is missing. The
    exit code is 1 when a file could not be measured; per_file.csv says why.

    Args:
        clean: folder of clean files.
        restored: folder of restored files; of several systems with --restored.NAME FOLDER.
        output: folder for per_file.csv, summary.csv, summary.json, report.md and boxplots.png.
        degraded: folder of the files that were restored, to report the gain.
        metrics: of pesq, stoi, estoi, si_sdr, mcd, pitch, lsd, m_stft; all that are installed when not given.
        sample_rate: at which si_sdr, mcd, lsd and m_stft are taken, in Hz; not above that of the clean files.
        match_level: bring signals to the level of the clean ones for lsd and m_stft.
        texts: file with what is said, lines `name|text`; for the recogniser.
        asr_model: hub id or folder of a transformers recogniser, for word and character error rates.
        asr_language: for a recogniser of several languages, such as en.
        speaker_model: hub id or folder of a transformers x-vector model, or an ONNX file, for speaker similarity.
        dnsmos: folder with Microsoft's sig_bak_ovr.onnx and model_v8.onnx.
        mos_model: ONNX file from waveform to predicted opinion score (UTMOS and the like).
        nisqa: ONNX file from NISQA's mel segments to its five scores; the published weights are non-commercial.
        ssl_model: hub id or folder of a transformers speech encoder, which flags segments that are far from what the
            degraded file holds (flagged.csv): possible hallucinations.
        ssl_layer: its block, from 1; the one at two thirds of its depth when not given.
        flag_above: cosine distance, 0 to 2, above which a segment is flagged; the 0.99 quantile of the clean files'
            segments when not given.
        device: torch device of the transformers models.
        workers: processes; 0 computes in this one.

    Returns:
        0, or 1 when a file failed.

    Raises:
        FileNotFoundError: a folder or model file is missing.
        ValueError: the trees do not match, a name is unknown, or a recogniser is given without texts.
    """
    if (asr_model is None) != (texts is None):
        raise ValueError("--asr_model and --texts belong together: error rates need a recogniser and what was said")
    chosen = [
        SpeakerSimilarity(speaker_model, device=device) if speaker_model else None,
        DNSMOS(dnsmos) if dnsmos else None,
        MOSPredictor(mos_model) if mos_model else None,
        NISQA(nisqa) if nisqa else None,
        InputDisagreement(ssl_model, ssl_layer, flag_above, device=device) if ssl_model else None,
        ASR(asr_model, language=asr_language, device=device) if asr_model else None,
    ]
    settings = Settings(
        metrics=tuple(installed() if metrics is None else metrics),
        sample_rate=sample_rate,
        match_level=match_level,
        judges=tuple(judge for judge in chosen if judge is not None),
    )
    result = evaluate(
        clean,
        restored if isinstance(restored, dict) else {"restored": restored},
        output,
        degraded,
        settings,
        read_texts(texts) if texts is not None else None,
        workers,
    )
    print((output / "report.md").read_text(encoding="utf-8"))
    print(f"wrote {output}")
    return 1 if result.failed else 0
