"""Preparation of LibriTTS-R, JVS and FLEURS-R: unpack, check every file, write a manifest."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from zoo.audio.corpora.layouts import CorpusKind, corpus_home, read_corpus
from zoo.audio.io import files
from zoo.common.atomic import write_atomic
from zoo.common.reading.extract import extract_archive

MANIFEST_NAME = "manifest.jsonl"
_LOG = logging.getLogger(__name__)
_SHOWN = 5  # names in a message


def prepare(
    kind: CorpusKind,
    sources: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    strict: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Unpack a corpus if need be, check its files, and write `manifest.jsonl` (path, speaker, text, language, length).

    Archives that lie in FLEURS-R's `data/<locale>/audio/` are unpacked beside
    themselves.

    Args:
        kind: layout, see `zoo.audio.corpora.layouts.read_corpus`.
        sources: the folder of the corpus, or its archives (`.tar`, `.tar.gz`, `.tgz`, `.zip`).
        output: folder that archives are unpacked into, and of the manifest; the corpus folder when None.
        strict: raise for damaged files instead of leaving them out with a warning.

    Returns:
        Facts: corpus (its folder), utterances, speakers, languages, hours, without_text, bad.

    Raises:
        FileNotFoundError: a source is missing or has not the layout.
        ValueError: archives without `output`, several folders, a cut archive, or no sound audio.
    """
    paths = [Path(source) for source in sources]
    if len(paths) == 1 and paths[0].is_dir():
        root = paths[0]
    elif output is None or any(path.is_dir() for path in paths):
        raise ValueError(f"expected one corpus folder, or archives and --output, got {', '.join(map(str, paths))}")
    else:
        root = Path(output)
        for path in paths:
            extract_archive(path, root)
    if kind == "fleurs_r":
        for archive in sorted((corpus_home(root, kind) or root).glob("data/*/audio/*.tar.gz")):
            extract_archive(archive, archive.with_name(archive.name.removesuffix(".tar.gz")))
    utterances = read_corpus(root, kind)
    folder = root if output is None else Path(output)
    rows: list[dict[str, Any]] = []
    bad: list[str] = []
    for utterance in track(utterances, description="checking", disable=not progress):
        try:
            facts = files.info(utterance.path)
        except files.AudioFileError as error:
            bad.append(str(error))
            continue
        rows.append(
            {
                "id": utterance.name,
                "path": Path(os.path.relpath(utterance.path, folder)).as_posix(),
                "speaker": utterance.speaker,
                "language": utterance.language,
                "text": utterance.text,
                "samples": facts.samples,
                "sample_rate": facts.sample_rate,
            }
        )
    if bad:
        message = f"{root}: {len(bad)} of {len(utterances)} files are damaged: {'; '.join(bad[:_SHOWN])}"
        if strict or not rows:
            raise ValueError(message)
        _LOG.warning("%s", message)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomic(folder / MANIFEST_NAME, lambda file: file.write(text.encode()))
    return {
        "corpus": str(corpus_home(root, kind)),
        "utterances": len(rows),
        "speakers": len({row["speaker"] for row in rows if row["speaker"]}),
        "languages": len({row["language"] for row in rows if row["language"]}),
        "hours": round(sum(row["samples"] / row["sample_rate"] for row in rows) / 3600, 3),
        "without_text": sum(not row["text"] for row in rows),
        "bad": len(bad),
    }


def main(kind: CorpusKind, description: str, archives: str, arguments: Sequence[str] | None = None) -> None:
    """Command line of the scripts: `prepare` with its options; exits with 1 and one line on a faulty corpus."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("sources", nargs="+", type=Path, help=f"the corpus folder, or its archives ({archives})")
    parser.add_argument("--output", type=Path, help="folder for the unpacked corpus and manifest.jsonl")
    parser.add_argument("--strict", action="store_true", help="fail on damaged files instead of leaving them out")
    options = vars(parser.parse_args(arguments))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    try:
        facts = prepare(kind, **options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(*(f"{key}: {value}" for key, value in facts.items()), sep="\n")
