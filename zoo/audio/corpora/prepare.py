"""Preparation of corpora: unpack, check every file, write a manifest; for LJSpeech also file lists and the cache."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from zoo.audio.corpora.cache import build_cache
from zoo.audio.corpora.corpus import CACHES, MAX_EXAMPLES, cache_dir, split_last_items
from zoo.audio.corpora.layouts import CorpusKind, Utterance, find_corpus_root, list_utterances
from zoo.audio.io import files
from zoo.common.atomic_files import write_atomic
from zoo.common.foreign_files import extract_archive

MANIFEST_NAME = "manifest.jsonl"
LJSPEECH_VALIDATION = 150  # of the split that HiFi-GAN's authors ship; they train on the other 12,950
_LOG = logging.getLogger(__name__)


def prepare(
    kind: CorpusKind,
    sources: Sequence[Path],
    output: Path | None = None,
    cache: Path = Path(CACHES),
    sample_rate: int = 22050,
    strict: bool = False,
) -> dict[str, Any]:
    """Unpack a corpus if need be, check its files, and write `manifest.jsonl`.

    A row of the manifest has id, path (relative to the corpus folder), speaker, language, text, samples (per channel)
    and sample_rate (Hz). Of LJSpeech also `train.txt` and `val.txt` are written (lines `id|text`; the last 150 ids, or
    the last tenth of a set smaller than 1,500, are for validation), and the cache for training.

    Args:
        sources: the folder of the corpus, or its archives, see `extract_archive`.
        output: folder that archives are unpacked into, and of what is written; the corpus folder when None.
        sample_rate: of LJSpeech's cache in Hz.
        strict: raise a ValueError for damaged files instead of leaving them out with a warning.

    Returns:
        Facts: corpus (its folder), utterances, speakers, languages, hours, without_text, bad.
    """
    source = _extract_sources(sources, output)
    root = find_corpus_root(source, kind) or source
    if kind == "fleurs_r":
        for archive in sorted(root.glob("data/*/audio/*.tar.gz")):
            extract_archive(archive, archive.with_name(archive.name.removesuffix(".tar.gz")))
    utterances = list_utterances(root, kind)
    rows = _check_files(utterances, root, strict)
    output = source if output is None else output
    if kind == "ljspeech":
        rows = _build_cache_and_lists(rows, root, output, cache_dir(cache, root, sample_rate), sample_rate)
    _write_lines(output / MANIFEST_NAME, (json.dumps(row, ensure_ascii=False) for row in rows))
    return {
        "corpus": str(root),
        "utterances": len(rows),
        "speakers": len({row["speaker"] for row in rows if row["speaker"]}),
        "languages": len({row["language"] for row in rows if row["language"]}),
        "hours": round(sum(row["samples"] / row["sample_rate"] for row in rows) / 3600, 3),
        "without_text": sum(not row["text"] for row in rows),
        "bad": len(utterances) - len(rows),
    }


def _build_cache_and_lists(
    rows: list[dict[str, Any]], root: Path, output: Path, folder: Path, sample_rate: int
) -> list[dict[str, Any]]:
    """Build the cache and write the lists of a corpus; returns the rows that can be decoded."""
    cache = build_cache(files.find_audio_files(root), folder, sample_rate, root=root)
    rows = [row for row in rows if row["path"] not in cache.unreadable]
    lines = [f"{row['id']}|{row['text']}" for row in sorted(rows, key=lambda row: row["id"]) if row["text"]]
    training, validation = split_last_items(len(lines), min(LJSPEECH_VALIDATION, max(1, len(lines) // 10)))
    for name, part in (("train", training), ("val", validation)):
        _write_lines(output / f"{name}.txt", (lines[number] for number in part))
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


def _check_files(utterances: Sequence[Utterance], root: Path, strict: bool) -> list[dict[str, Any]]:
    """Make the rows of the manifest; damaged files are left out with a warning, or raise a ValueError."""
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    for utterance in track(utterances, description="checking"):
        try:
            info = files.info(utterance.path)
        except files.AudioFileError as error:
            faults.append(str(error))
            continue
        path = utterance.path.relative_to(root).as_posix()
        facts = {"speaker": utterance.speaker, "language": utterance.language, "text": utterance.text}
        audio = {"samples": info.samples, "sample_rate": info.sample_rate}
        rows.append({"id": utterance.name, "path": path, **facts, **audio})
    if faults:
        message = f"{root}: {len(faults)} of {len(utterances)} files are damaged: {'; '.join(faults[:MAX_EXAMPLES])}"
        if strict or not rows:
            raise ValueError(message)
        _LOG.warning("%s", message)
    return rows


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_atomic(path, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))


def main(kind: CorpusKind, description: str, archives: str = "", arguments: Sequence[str] | None = None) -> None:
    """Command line of the scripts; exits with 1 and one line on a faulty corpus."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("sources", nargs="+", type=Path, help=f"the corpus folder, or its archives ({archives})")
    parser.add_argument("--output", type=Path, help="folder for what is written (default: the corpus folder)")
    parser.add_argument("--strict", action="store_true", help="fail on what is otherwise a warning")
    if kind == "ljspeech":
        parser.add_argument("--cache", type=Path, default=Path(CACHES), help=f"of the caches (default: {CACHES})")
        parser.add_argument("--sample-rate", type=int, default=22050, help="rate of the cache in Hz (default: 22050)")
    options = vars(parser.parse_args(arguments))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    try:
        facts = prepare(kind, **options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(*(f"{key}: {value}" for key, value in facts.items()), sep="\n")
