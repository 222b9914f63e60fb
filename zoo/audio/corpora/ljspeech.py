"""Preparation of LJSpeech, and of any corpus in its layout: check, manifest, split and corpus cache."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zoo.audio.corpora.cache import build
from zoo.audio.corpora.corpus import CACHES, cache_folder
from zoo.audio.corpora.selection import without_suffix
from zoo.audio.io import files
from zoo.common.atomic import write_atomic
from zoo.common.reading.text_files import read_lines

FULL_COUNT = 13_100  # utterances of LJSpeech 1.1
VALIDATION_COUNT = 150  # of the split that HiFi-GAN's authors ship; they train on the other 12,950
_LOG = logging.getLogger(__name__)
_SHOWN = 5  # names in a message


@dataclass(frozen=True)
class Entry:
    """One utterance of the manifest, its length and rate those of the file.

    Attributes:
        id: name of the recording without suffix.
        path: audio file relative to the corpus folder.
        text: normalised transcript.
    """

    id: str
    path: str
    samples: int
    sample_rate: int
    text: str


def check(folder: str | os.PathLike[str], strict: bool = False, expected: int = FULL_COUNT) -> list[Entry]:
    """Check a folder laid out like LJSpeech: `metadata.csv` (`id|text|normalised text`) and `wavs/<id>.wav` or `.flac`.

    Args:
        strict: raise where a complaint would otherwise be a warning.
        expected: number of utterances of the whole set.

    Returns:
        The sound utterances in the order of `metadata.csv`.

    Raises:
        FileNotFoundError: `metadata.csv` or `wavs` is missing.
        ValueError: a malformed or repeated line, no utterance at all, or under `strict` any complaint.
    """
    folder = Path(folder)
    if not (folder / "metadata.csv").is_file() or not (folder / "wavs").is_dir():
        raise FileNotFoundError(
            f"{folder}: expected metadata.csv and wavs/ of LJSpeech-1.1 here; unpack the archive and give its folder"
        )
    entries: list[Entry] = []
    faults: list[str] = []
    for name, text in _read_metadata(folder / "metadata.csv"):
        path = folder / "wavs" / f"{name}.wav"
        if not path.is_file():
            path = path.with_suffix(".flac")
        try:
            facts = files.info(path)
        except (FileNotFoundError, files.AudioFileError) as error:
            faults.append(str(error) if path.is_file() else f"wavs/{name}.wav or .flac is missing")
            continue
        relative = path.relative_to(folder).as_posix()
        entries.append(Entry(name, relative, facts.samples, facts.sample_rate, text))
    complaints = []
    if faults:
        complaints.append(f"{len(faults)} utterances have no sound audio: {'; '.join(faults[:_SHOWN])}")
    if len(entries) != expected:
        complaints.append(f"expected {expected} utterances, found {len(entries)}")
    for complaint in complaints:
        if strict or not entries:
            raise ValueError(f"{folder}: {complaint}")
        _LOG.warning("%s: %s", folder, complaint)
    return entries


def _read_metadata(path: Path) -> list[tuple[str, str]]:
    rows: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        fields = line.split("|")
        name = without_suffix(fields[0].strip())
        if len(fields) < 2 or not name or name != os.path.basename(name) or name in rows:
            raise ValueError(f"{path}:{number}: expected `id|text|normalised text` with a new id, found {line[:60]!r}")
        rows[name] = fields[-1]
    return list(rows.items())


def split(entries: Sequence[Entry], lists: str | os.PathLike[str] | None = None) -> tuple[list[Entry], list[Entry]]:
    """Divide utterances into training and validation.

    Args:
        lists: folder with the original's `training.txt` and `validation.txt` (lines `id|anything`). None holds out
            the last 150 ids, or the last tenth of a set smaller than 1,500.

    Raises:
        ValueError: a list names unknown ids only, the two share ids, or fewer than two utterances are given.
    """
    if lists is not None:
        by_name = {entry.id: entry for entry in entries}
        train, val = (_select(Path(lists) / f"{name}.txt", by_name) for name in ("training", "validation"))
        shared = {entry.id for entry in train} & {entry.id for entry in val}
        if shared:
            raise ValueError(f"{lists}: training.txt and validation.txt share {len(shared)} ids, e.g. {min(shared)}")
        return train, val
    if len(entries) < 2:
        raise ValueError(f"expected at least two utterances to split, got {len(entries)}")
    held_out = min(VALIDATION_COUNT, max(1, len(entries) // 10))
    ordered = sorted(entries, key=lambda entry: entry.id)
    return ordered[:-held_out], ordered[-held_out:]


def _select(path: Path, by_name: dict[str, Entry]) -> list[Entry]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file list; expected training.txt and validation.txt")
    names = [line.split("|")[0].strip() for line in read_lines(path) if line.strip()]
    found = [by_name[name] for name in names if name in by_name]
    if not found:
        raise ValueError(f"{path}: none of its {len(names)} ids is in the corpus")
    if len(found) != len(names):
        _LOG.warning("%s: %d of its %d ids are not in the corpus", path, len(names) - len(found), len(names))
    return found


def prepare(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] = CACHES,
    sample_rate: int = 22050,
    lists: str | os.PathLike[str] | None = None,
    strict: bool = False,
    expected: int = FULL_COUNT,
    progress: bool = True,
) -> dict[str, Any]:
    """Check a corpus; write `manifest.jsonl`, `train.txt`, `val.txt` (lines `id|text`) and the cache for training.

    Args:
        folder: as for `check`, likewise `strict` and `expected`.
        output: folder for manifest and lists, made if missing; the corpus folder when None.
        cache: folder of all corpus caches.
        sample_rate: rate of the cache in Hz; files of another rate are resampled into it.
        lists: see `split`.

    Returns:
        Facts: utterances, train, val, hours, sample_rate, bad.
    """
    folder = Path(folder)
    output = folder if output is None else Path(output)
    entries = check(folder, strict, expected)
    train, val = split(entries, lists)
    other = [entry.id for entry in entries if entry.sample_rate != sample_rate]
    if other:
        _LOG.warning("%s: %d files are not at %d Hz and get resampled", folder, len(other), sample_rate)
    built = build(
        files.find_audio_files(folder), cache_folder(cache, folder, sample_rate), sample_rate, progress, root=folder
    )
    bad = {Path(name).stem for name in built.bad}
    if bad and strict:
        raise ValueError(f"{folder}: {len(bad)} files cannot be decoded: {', '.join(sorted(bad)[:_SHOWN])}")
    kept = [[entry for entry in part if entry.id not in bad] for part in (entries, train, val)]
    _write_text(output / "manifest.jsonl", [json.dumps(asdict(entry), ensure_ascii=False) for entry in kept[0]])
    for name, part in zip(("train", "val"), kept[1:], strict=True):
        _write_text(output / f"{name}.txt", [f"{entry.id}|{entry.text}" for entry in part])
    hours = float(built.lengths.sum()) / sample_rate / 3600
    return {
        "utterances": len(kept[0]),
        "train": len(kept[1]),
        "val": len(kept[2]),
        "hours": round(hours, 3),
        "sample_rate": sample_rate,
        "bad": sorted(bad),
    }


def _write_text(path: Path, lines: list[str]) -> None:
    write_atomic(path, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))
