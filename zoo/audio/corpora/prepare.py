"""Preparation of corpora: unpack, check every file, write a manifest; for LJSpeech also file lists and the cache."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from zoo.audio.corpora.cache import build_cache
from zoo.audio.corpora.corpus import CACHES, cache_dir, read_file_list
from zoo.audio.corpora.layouts import CorpusKind, Utterance, find_corpus_root, list_utterances
from zoo.audio.io import files
from zoo.common.atomic_files import extract_archive, write_atomic

MANIFEST_NAME = "manifest.jsonl"
LJSPEECH_COUNT = 13_100  # utterances of LJSpeech 1.1
LJSPEECH_VALIDATION = 150  # of the split that HiFi-GAN's authors ship; they train on the other 12,950
_LOG = logging.getLogger(__name__)
_MAX_EXAMPLES = 5  # names in a message


def prepare(
    kind: CorpusKind,
    sources: Sequence[Path],
    output: Path | None = None,
    strict: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Unpack a corpus if need be, check its files, and write `manifest.jsonl`.

    A row of the manifest has id, path (relative to the corpus folder), speaker, language, text, samples (per channel)
    and sample_rate (Hz). Archives that lie in FLEURS-R's `data/<locale>/audio/` are unpacked beside themselves.

    Args:
        kind: layout, see `zoo.audio.corpora.layouts.list_utterances`.
        sources: the folder of the corpus, or its archives (`.tar`, `.tar.gz`, `.tgz`, `.zip`).
        output: folder that archives are unpacked into, and of the manifest; the corpus folder when None.
        strict: raise for damaged files instead of leaving them out with a warning.

    Returns:
        Facts: corpus (its folder), utterances, speakers, languages, hours, without_text, bad.

    Raises:
        FileNotFoundError: a source is missing or has not the layout.
        ValueError: archives without `output`, several folders, a cut archive, or no valid audio.
    """
    source = _extract_sources(sources, output)
    root = find_corpus_root(source, kind) or source
    if kind == "fleurs_r":
        for archive in sorted(root.glob("data/*/audio/*.tar.gz")):
            extract_archive(archive, archive.with_name(archive.name.removesuffix(".tar.gz")))
    utterances = list_utterances(root, kind)
    rows = _check_files(utterances, root, strict, progress)
    _write_lines(source if output is None else output, MANIFEST_NAME, map(_to_json, rows))
    return {
        "corpus": str(root),
        "utterances": len(rows),
        "speakers": len({row["speaker"] for row in rows if row["speaker"]}),
        "languages": len({row["language"] for row in rows if row["language"]}),
        "hours": round(sum(row["samples"] / row["sample_rate"] for row in rows) / 3600, 3),
        "without_text": sum(not row["text"] for row in rows),
        "bad": len(utterances) - len(rows),
    }


def prepare_ljspeech(
    folder: Path,
    output: Path | None = None,
    cache: Path = Path(CACHES),
    sample_rate: int = 22050,
    lists: Path | None = None,
    strict: bool = False,
    expected: int = LJSPEECH_COUNT,
    progress: bool = True,
) -> dict[str, Any]:
    """Check LJSpeech, or a corpus in its layout; write manifest, `train.txt`, `val.txt` and the cache for training.

    Recordings without a transcript are in the cache alone.

    Args:
        folder: of the corpus.
        output: folder for manifest and lists (lines `id|text`), made if missing; the corpus folder when None.
        cache: folder of all corpus caches.
        sample_rate: of the cache in Hz; files of another rate are resampled into it.
        lists: folder with the original's `training.txt` and `validation.txt` (lines `id|anything`). None holds out the
            last 150 ids, or the last tenth of a set smaller than 1,500.
        strict: raise where a complaint would otherwise be a warning.
        expected: number of utterances of the full set.

    Returns:
        Facts: utterances, train, val, hours, sample_rate, bad.

    Raises:
        FileNotFoundError: the folder has not the layout, or a list is missing.
        ValueError: a malformed or repeated line, no valid audio, a list without known ids, or under `strict` any
            complaint.
    """
    utterances = [each for each in list_utterances(folder, "ljspeech") if each.text]
    rows = _check_files(utterances, folder, strict, progress)
    built = build_cache(
        files.find_audio_files(folder), cache_dir(cache, folder, sample_rate), sample_rate, progress, root=folder
    )
    rows = [row for row in rows if row["path"] not in built.unreadable]
    if len(rows) != expected:
        _report(f"{folder}: expected {expected} utterances, found {len(rows)}", strict)
    output = folder if output is None else output
    _write_lines(output, MANIFEST_NAME, map(_to_json, rows))
    train, val = split_rows(rows, lists)
    for name, part in (("train", train), ("val", val)):
        _write_lines(output, f"{name}.txt", (f"{row['id']}|{row['text']}" for row in part))
    return {
        "utterances": len(rows),
        "train": len(train),
        "val": len(val),
        "hours": round(float(built.lengths.sum()) / sample_rate / 3600, 3),
        "sample_rate": sample_rate,
        "bad": len(utterances) - len(rows),
    }


def split_rows(
    rows: Sequence[dict[str, Any]], lists: Path | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Divide rows of a manifest into training and validation; `lists` as for `prepare_ljspeech`."""
    if lists is not None:
        by_id = {row["id"]: row for row in rows}
        train, val = (_select_rows(lists / f"{name}.txt", by_id) for name in ("training", "validation"))
        shared = {row["id"] for row in train} & {row["id"] for row in val}
        if shared:
            raise ValueError(f"{lists}: training.txt and validation.txt share {len(shared)} ids, e.g. {min(shared)}")
        return train, val
    if len(rows) < 2:
        raise ValueError(f"expected at least two utterances to split, got {len(rows)}")
    held_out = min(LJSPEECH_VALIDATION, max(1, len(rows) // 10))
    ordered = sorted(rows, key=lambda row: row["id"])
    return ordered[:-held_out], ordered[-held_out:]


def _select_rows(path: Path, by_id: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the rows that a list names; unknown ids are a warning."""
    ids = read_file_list(path)
    rows = [by_id[name] for name in ids if name in by_id]
    if not rows:
        raise ValueError(f"{path}: none of its {len(ids)} ids is in the corpus")
    if len(rows) != len(ids):
        _LOG.warning("%s: %d of its %d ids are not in the corpus", path, len(ids) - len(rows), len(ids))
    return rows


def _extract_sources(sources: Sequence[Path], output: Path | None) -> Path:
    """Find the folder of the sources; archives are unpacked into `output`."""
    if len(sources) == 1 and sources[0].is_dir():
        return sources[0]
    if output is None or any(path.is_dir() for path in sources):
        raise ValueError(f"expected one corpus folder, or archives and --output, got {', '.join(map(str, sources))}")
    for path in sources:
        extract_archive(path, output)
    return output


def _check_files(utterances: Sequence[Utterance], root: Path, strict: bool, progress: bool) -> list[dict[str, Any]]:
    """Make the rows of the manifest; damaged files are left out with a warning, or raise a ValueError."""
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    for utterance in track(utterances, description="checking", disable=not progress):
        try:
            info = files.info(utterance.path)
        except files.AudioFileError as error:
            faults.append(str(error))
            continue
        rows.append(
            {
                "id": utterance.name,
                "path": utterance.path.relative_to(root).as_posix(),
                "speaker": utterance.speaker,
                "language": utterance.language,
                "text": utterance.text,
                "samples": info.samples,
                "sample_rate": info.sample_rate,
            }
        )
    if faults:
        message = f"{root}: {len(faults)} of {len(utterances)} files are damaged: {'; '.join(faults[:_MAX_EXAMPLES])}"
        _report(message, strict or not rows)
    return rows


def _report(message: str, is_error: bool) -> None:
    if is_error:
        raise ValueError(message)
    _LOG.warning("%s", message)


def _to_json(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False)


def _write_lines(folder: Path, name: str, lines: Any) -> None:
    write_atomic(folder / name, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))


def main(kind: CorpusKind, description: str, archives: str = "", arguments: Sequence[str] | None = None) -> None:
    """Command line of the scripts; exits with 1 and one line on a faulty corpus.

    Args:
        kind: of the corpus.
        description: for --help.
        archives: names of the archives, for --help.
        arguments: of the command line; those of the process when None.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, help="folder for what is written (default: the corpus folder)")
    parser.add_argument("--strict", action="store_true", help="fail on what is otherwise a warning")
    if kind == "ljspeech":
        parser.add_argument("folder", type=Path, help="unpacked LJSpeech-1.1 (metadata.csv, wavs/*.wav or *.flac)")
        parser.add_argument("--cache", type=Path, default=Path(CACHES), help=f"of the caches (default: {CACHES})")
        parser.add_argument("--sample-rate", type=int, default=22050, help="rate of the cache in Hz (default: 22050)")
        parser.add_argument("--lists", type=Path, help="folder with the original's training.txt and validation.txt")
        parser.add_argument("--expected", type=int, default=LJSPEECH_COUNT, help="utterances of the full set")
    else:
        parser.add_argument("sources", nargs="+", type=Path, help=f"the corpus folder, or its archives ({archives})")
    options = vars(parser.parse_args(arguments))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    try:
        facts = prepare_ljspeech(**options) if kind == "ljspeech" else prepare(kind, **options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(*(f"{key}: {value}" for key, value in facts.items()), sep="\n")
