"""Speech corpora as lists of utterances: LJSpeech, LibriTTS-R, JVS, FLEURS-R and plain folders of audio."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from zoo.audio.corpora.corpus import MAX_EXAMPLES, unique_stems, without_suffix
from zoo.audio.io import files
from zoo.common.checks import check_one_of
from zoo.common.foreign_files import read_lines

CorpusKind = Literal["auto", "ljspeech", "libritts_r", "jvs", "fleurs_r", "tree"]
LIBRITTS_SPLITS = (
    *("train-clean-100", "train-clean-360", "train-other-500"),
    *("dev-clean", "dev-other", "test-clean", "test-other"),
)
_JVS_FOLDERS = "jvs[0-9][0-9][0-9]/*/wav24kHz16bit"
_TEXT_SUFFIXES = (".normalized.txt", ".txt", ".lab")  # LibriTTS's, the usual one, forced aligners'
_FLEURS_LISTS = "data/*_*/*.tsv"
_LOG = logging.getLogger(__name__)
_UNSAFE = re.compile(r"[\\:\x00-\x1f\x7f]|(?<![^/])\.")  # also dots that begin a part of the path


@dataclass(frozen=True)
class Utterance:
    """One recording of a corpus; texts are empty where the corpus lacks them."""

    path: Path
    speaker: str  # unique in the corpus
    text: str
    name: str  # unique in the corpus: a relative POSIX path without suffix, whose last part has no dot
    language: str  # `en`, `ja`, or FLEURS's locale (`ja_jp`)


def list_utterances(root: str | os.PathLike[str], kind: CorpusKind = "auto", with_text: bool = True) -> list[Utterance]:
    """List the utterances of a corpus folder, or of the folder around it, sorted by name.

    A "tree" is any folder of audio: the first folder below it is the speaker; transcripts stand in
    `<name>.normalized.txt`, `.txt` or `.lab` beside the audio, or in a `metadata.csv` like LJSpeech's in the folder or
    beside it. "auto" takes the kind whose layout is found. Listed files that are missing are named in a warning.

    Raises:
        FileNotFoundError: there is no such folder, or it has not the layout of that kind.
        ValueError: unknown kind, a malformed list, no audio, or two files of one name.
    """
    root = Path(root)
    check_one_of(get_args(CorpusKind), kind=kind)
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    kind = detect_layout(root) if kind == "auto" else kind
    reader, layout, _ = _LAYOUTS[kind]
    corpus_root = find_corpus_root(root, kind)
    if corpus_root is None:
        raise FileNotFoundError(f"{root}: not laid out like {kind}, expected {layout}")
    utterances = sorted(reader(corpus_root, with_text), key=lambda utterance: utterance.name)
    if not utterances:
        raise ValueError(f"{corpus_root}: no audio of a {kind} corpus here, expected {layout}")
    for first, second in pairwise(utterances):
        if first.name == second.name:
            raise ValueError(f"{first.path} and {second.path} are both called {first.name!r}; rename one of them")
    return utterances


def detect_layout(root: str | os.PathLike[str]) -> CorpusKind:
    """Find the kind of a corpus folder, or of the folder around it; "tree" when no other layout fits."""
    special = (kind for kind in get_args(CorpusKind) if kind not in ("auto", "tree"))
    return next((kind for kind in special if find_corpus_root(Path(root), kind)), "tree")


def find_corpus_root(root: Path, kind: CorpusKind) -> Path | None:
    """Find the folder of a layout: `root`, the only folder in it (an unpacked archive), or None."""
    has_layout = _LAYOUTS[kind][2]
    if has_layout(root):
        return root
    inner = [child for child in root.iterdir() if child.is_dir() and not child.name.startswith((".", "__"))]
    return inner[0] if len(inner) == 1 and has_layout(inner[0]) else None


def _safe(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return _UNSAFE.sub("_", folder + slash) + _UNSAFE.sub("_", last).replace(".", "_")


def _read_ljspeech(root: Path, with_text: bool) -> list[Utterance]:
    texts = read_texts(root / "metadata.csv", "|") if with_text else {}
    paths = files.find_audio_files(root / "wavs")
    _warn_of_missing(root, sorted(texts.keys() - {path.stem for path in paths}))
    return [Utterance(path, "LJ", texts.get(path.stem, ""), _safe(path.stem), "en") for path in paths]


def _warn_of_missing(root: Path, missing: list[str]) -> None:
    if missing:
        _LOG.warning("%s: %d listed files are missing: %s", root, len(missing), ", ".join(missing[:MAX_EXAMPLES]))


def _read_libritts(root: Path, with_text: bool) -> list[Utterance]:
    chapters = [folder for split in LIBRITTS_SPLITS for folder in (root / split).glob("*/*") if folder.is_dir()]
    utterances: list[Utterance] = []
    for folder in chapters:
        speaker, chapter = folder.parts[-2:]
        lines = folder / f"{speaker}_{chapter}.trans.tsv"
        utterances += _read_folder(folder, lines if with_text else None, "\t", speaker, chapter, "en")
    return utterances


def _read_jvs(root: Path, with_text: bool) -> list[Utterance]:
    utterances: list[Utterance] = []
    for folder in root.glob(_JVS_FOLDERS):
        speaker, subset = folder.parts[-3:-1]
        lines = folder.with_name("transcripts_utf8.txt") if with_text else None
        utterances += _read_folder(folder, lines, ":", speaker, subset, "ja")
    return utterances


def _read_folder(
    folder: Path, lines: Path | None, separator: str, speaker: str, group: str, language: str
) -> Iterator[Utterance]:
    texts = read_texts(lines, separator) if lines is not None and lines.is_file() else {}
    for path in files.find_audio_files(folder):
        name = _safe(f"{speaker}/{group}/{path.stem}")
        yield Utterance(path, speaker, texts.get(path.stem, ""), name, language)


def _read_fleurs(root: Path, with_text: bool) -> list[Utterance]:
    utterances: dict[str, Utterance] = {}
    missing = []
    for lines in sorted(root.glob(_FLEURS_LISTS)):
        locale, split = lines.parent.name, lines.stem
        audio = lines.parent / "audio" / split
        for fields in _read_rows(lines, "\t", 3):
            candidates = [folder / os.path.basename(fields[1]) for folder in (audio / split, audio)]
            path = next(filter(Path.is_file, candidates), None)
            if path is None:
                missing.append(f"{locale}/{split}/{fields[1]}")
                continue
            name = _safe(f"{locale}/{split}/{path.stem}")
            utterances[name] = Utterance(path, "", fields[2], name, locale)
    _warn_of_missing(root, missing)
    return list(utterances.values())


def _read_tree(root: Path, with_text: bool) -> list[Utterance]:
    texts = _read_metadata(root) if with_text else {}
    paths = [path.relative_to(root) for path in files.find_audio_files(root)]
    names = Counter(_safe(path.with_suffix("").as_posix()) for path in paths)
    unique = unique_stems({path.with_suffix("").as_posix() for path in paths})
    utterances = []
    unreadable: list[str] = []
    for path in paths:
        name = _safe(path.with_suffix("").as_posix())
        if names[name] > 1:  # a.wav beside a.flac: both keep their suffix
            name = _safe(path.as_posix())
        speaker = path.parts[0] if len(path.parts) > 1 else ""
        by_stem = texts.get(path.stem, "") if path.stem in unique else ""
        text = texts.get(path.with_suffix("").as_posix(), by_stem)
        if with_text:
            text = _read_transcript_file(root / path, unreadable) or text
        utterances.append(Utterance(root / path, speaker, text, name, ""))
    if unreadable:
        _LOG.warning("%s: %d transcripts are left out, the first: %s", root, len(unreadable), unreadable[0])
    return utterances


def _read_transcript_file(audio: Path, unreadable: list[str]) -> str:
    """Read the text file of the same name as the audio; `unreadable` gets the cause where it is not UTF-8."""
    texts = (audio.with_suffix(suffix) for suffix in _TEXT_SUFFIXES)
    path = next((path for path in texts if path.is_file()), None)
    try:
        return "" if path is None else " ".join(" ".join(read_lines(path)).split())
    except ValueError as error:
        unreadable.append(str(error))
        return ""


def _read_metadata(root: Path) -> dict[str, str]:
    """Read transcripts by the audio's name from a list like LJSpeech's in the folder or in the one above."""
    for path in (root / "metadata.csv", root.resolve().parent / "metadata.csv"):
        if path.is_file():
            try:
                return read_texts(path, "|")
            except ValueError as error:  # a list of another kind
                _LOG.warning("no transcripts taken: %s", error)
    return {}


def read_texts(path: Path, separator: str) -> dict[str, str]:
    """Read the last field of each line of a list by the first, an id without audio suffix."""
    return {fields[0]: fields[-1] for fields in _read_rows(path, separator, 2)}


def _read_rows(path: Path, separator: str, min_fields: int) -> list[list[str]]:
    """Split a list's lines into fields, the first an id without audio suffix; `:` separates but once."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        fields = line.split(separator, 1 if separator == ":" else -1)
        if len(fields) < min_fields or not fields[0].strip():
            expected = f"{min_fields} fields separated by {separator!r}"
            raise ValueError(f"{path}:{number}: expected {expected}, found {line[:60]!r}")
        name, *others = (field.strip() for field in fields)
        rows.append([without_suffix(name), *others])
    return rows


# kind -> reader, description of its layout, test for its layout
_LAYOUTS: dict[str, tuple[Callable[[Path, bool], list[Utterance]], str, Callable[[Path], bool]]] = {
    "ljspeech": (
        _read_ljspeech,
        "metadata.csv and wavs/",
        lambda root: (root / "metadata.csv").is_file() and (root / "wavs").is_dir(),
    ),
    "libritts_r": (
        _read_libritts,
        "<split>/<speaker>/<chapter>/*.wav, e.g. train-clean-100/",
        lambda root: any((root / split).is_dir() for split in LIBRITTS_SPLITS),
    ),
    "jvs": (_read_jvs, "jvsNNN/<subset>/wav24kHz16bit/*.wav", lambda root: any(root.glob(_JVS_FOLDERS))),
    "fleurs_r": (
        _read_fleurs,
        "data/<locale>/<split>.tsv and data/<locale>/audio/<split>/",
        lambda root: any((path.parent / "audio").is_dir() for path in root.glob(_FLEURS_LISTS)),
    ),
    "tree": (_read_tree, f"files ending in {', '.join(files.AUDIO_SUFFIXES)}", lambda root: True),
}
