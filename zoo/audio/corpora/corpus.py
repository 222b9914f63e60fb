"""Corpora: mono clips at one sample rate, and the selection of clips by file lists, companion files and length."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from zoo.audio.io import files
from zoo.common.foreign_files import read_lines

CACHES = "runs/cache"
PEAK = 0.95  # of full scale, of normalized training clips
MAX_EXAMPLES = 5  # names in a message
_LOG = logging.getLogger(__name__)
MAX_HELD_OUT_SHARE = 0.75


@dataclass(frozen=True)
class CorpusOptions:
    """Options of a datamodule for its corpus.

    Args:
        cache: folder of the corpus caches.
        max_bad_share: share of unreadable files above which the run stops; below it they are named and left out.
        embedded_if_missing: use the embedded corpus, with a message, when `root` does not exist.
        embedded_utterances: size of the embedded corpus.
    """

    cache: str = CACHES
    max_bad_share: float = 0.1
    embedded_if_missing: bool = False
    embedded_utterances: int = 24


class Corpus(Protocol):
    """Mono clips at one sample rate, by number."""

    @property
    def names(self) -> Sequence[str]:
        """File names."""

    @property
    def lengths(self) -> np.ndarray:
        """Samples per clip (N,)."""

    @property
    def peaks(self) -> np.ndarray:
        """Largest absolute sample per clip (N,)."""

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Samples (T,) float32."""


class MemoryCorpus:
    """Clips (T,) float32 in memory."""

    def __init__(self, names: Sequence[str], clips: Sequence[np.ndarray]) -> None:
        self._clips = clips
        self.names = names
        self.lengths = np.array([len(clip) for clip in clips])
        self.peaks = np.array([np.abs(clip).max() for clip in clips])

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Samples (T,) float32."""
        return self._clips[index][start : None if samples < 0 else start + samples]


class TrimmedCorpus:
    """A part of every clip, from `begin` to `end` as shares of it, such as the last fifth of each noise recording.

    It holds a sample at least.
    """

    def __init__(self, corpus: Corpus, begin: float, end: float) -> None:
        self._corpus = corpus
        self._starts = np.minimum((corpus.lengths * begin).astype(np.int64), corpus.lengths - 1)
        self.names = corpus.names
        self.lengths = np.maximum((corpus.lengths * end).astype(np.int64) - self._starts, 1)
        self.peaks = corpus.peaks

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Samples (T,) float32."""
        available = max(int(self.lengths[index]) - start, 0)
        count = available if samples < 0 else min(samples, available)
        return self._corpus.read(index, int(self._starts[index]) + start, count)


def cache_dir(
    cache: str | os.PathLike[str],
    root: str | os.PathLike[str],
    sample_rate: int,
    lists: tuple[str | None, str | None] = (None, None),
) -> Path:
    """Name the folder below `cache` of a corpus' cache, for preparing and training; `lists` as of `corpus_files`."""
    root = Path(root).resolve()
    resolved = tuple(name and str(Path(name).resolve()) for name in lists)
    digest = hashlib.blake2b(f"{root}/{resolved}".encode(), digest_size=4).hexdigest()
    return Path(cache) / f"{root.name}-{sample_rate}-{digest}"


def check_apart(root: Path, val_root: Path | None, option: str) -> None:
    """Refuse a folder of validation that lies within the one of training, whose files would be trained on, too."""
    if val_root is not None and val_root.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{option} {val_root} lies in root {root}, which would train on it: name folders side by side")


def corpus_files(
    root: str | os.PathLike[str],
    lists: tuple[str | None, str | None] = (None, None),
    without: str | None = None,
) -> list[Path]:
    """List the audio files below a folder, or those that file lists choose of them, sorted.

    Args:
        lists: of files for training and for validation; without the first, all files below `root`.
        without: a list of files to leave out.
    """
    root = os.path.abspath(root)
    paths = list(map(str, files.find_audio_files(root)))
    selected = set(paths if lists[0] is None else ())
    selected.update(path for name in lists if name for path in _match_paths(Path(name), root, paths))
    selected.difference_update(_match_paths(Path(without), root, paths) if without else ())
    return sorted(map(Path, selected))


def _match_paths(path: Path, root: str, below: Sequence[str]) -> list[str]:
    """Find the paths of a list's files, also outside of `root` or behind links; `below` are the files below it."""
    entries = _relative_entries(path, root)
    others = (os.path.join(root, entry) + suffix for entry in entries for suffix in ("", *files.AUDIO_SUFFIXES))
    paths = list(dict.fromkeys([*below, *filter(os.path.isfile, others)]))
    return [paths[number] for number in match_entries(entries, [relative_name(each, root) for each in paths], path)]


def match_list(path: Path, root: Path, names: Sequence[str]) -> list[int]:
    """Find the clips of a corpus, of names relative to `root`, that a file list names; see `match_entries`."""
    return match_entries(_relative_entries(path, os.path.abspath(root)), names, path)


def _relative_entries(path: Path, root: str) -> list[str]:
    return [relative_name(os.path.normpath(os.path.join(root, entry)), root) for entry in read_file_list(path)]


def read_file_list(path: Path) -> list[str]:
    """Read a list of lines `id|anything` (LJSpeech, HiFi-GAN), of paths (Vocos), or of JSON objects with `path`."""
    if not path.is_file():
        raise FileNotFoundError(f"no file list {path}")
    entries = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            entries.append(str(json.loads(line)["path"]) if line.startswith("{") else line.split("|")[0].strip())
        except (ValueError, KeyError) as error:
            raise ValueError(f'{path}:{number}: expected JSON with the key "path", found {line[:60]!r}') from error
    return entries


def match_entries(entries: Sequence[str], names: Sequence[str], source: Path) -> list[int]:
    """Find the clip that each entry of a list names, by number; FileNotFoundError for none, ValueError for several.

    An entry is the path of a clip relative to the corpus' root, POSIX, with or without its suffix. Where no clip has
    that path, it may be the end of one (`LJ001-0001` of `wavs/LJ001-0001.wav`), if of one clip alone.
    """
    by_stem: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        by_stem.setdefault(_stem(name), []).append(number)
    numbers, misfits, is_ambiguous = [], [], False
    for entry in entries:
        candidates = by_stem.get(_stem(entry), [])
        spellings = {number: (names[number], without_suffix(names[number])) for number in candidates}
        matches = [number for number in candidates if entry in spellings[number]] or [
            number for number in candidates if any(name.endswith(f"/{entry}") for name in spellings[number])
        ]
        if len(matches) == 1:
            numbers.append(matches[0])
        else:
            is_ambiguous |= bool(matches)
            examples = ", ".join(sorted(names[number] for number in matches)[:MAX_EXAMPLES])
            misfits.append(f"{entry!r} ({f'{len(matches)} clips: {examples}' if matches else 'no such clip'})")
    if misfits:
        raise (ValueError if is_ambiguous else FileNotFoundError)(
            f"{source}: {len(misfits)} of {len(entries)} entries do not name one clip: "
            f"{'; '.join(misfits[:MAX_EXAMPLES])} (expected paths relative to the corpus' root)"
        )
    return numbers


def relative_name(path: str, root: str) -> str:
    """Name a file by its path relative to a folder, both absolute; a file outside keeps its absolute path."""
    for resolve in (os.path.normpath, os.path.realpath):  # a list may name files by the target of a link
        below = os.path.relpath(resolve(path), resolve(root))
        if below.partition(os.sep)[0] != os.pardir:
            return below.replace(os.sep, "/")
    return path


def without_suffix(name: str) -> str:
    """Remove the suffix of an audio file from a path; other dots stay."""
    suffix = PurePosixPath(name).suffix
    return name[: -len(suffix)] if suffix.lower() in files.AUDIO_SUFFIXES else name


def _stem(name: str) -> str:
    return PurePosixPath(without_suffix(name)).name


def unique_stems(names: Iterable[str]) -> dict[str, int]:
    """Number the file stems of POSIX paths that no second name has."""
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        numbers.setdefault(_stem(name), []).append(number)
    return {stem: each[0] for stem, each in numbers.items() if len(each) == 1}


def match_companions(names: Sequence[str], others: Sequence[str]) -> list[list[int]]:
    """Find for each clip the files of another tree that belong to it, by their numbers.

    They have the same path without suffix. Where none has, it is the file of the same stem, if neither tree has a
    second one of that stem.
    """
    groups: dict[str, list[int]] = {}
    for number, other in enumerate(others):
        groups.setdefault(without_suffix(other), []).append(number)
    paths = list(groups)
    own_stems, other_stems = unique_stems(names), unique_stems(paths)
    by_stem = {stem: groups[paths[number]] for stem, number in other_stems.items() if stem in own_stems}
    return [groups.get(without_suffix(name)) or by_stem.get(_stem(name), []) for name in names]


def split_last_items(count: int, items: int) -> tuple[range, range]:
    """Number the clips for training and, the last ones, for validation.

    A tenth is held out, with a message, where `items` would leave less than a quarter of the clips for training.

    Raises:
        ValueError: there are fewer than two clips, or no item is asked for.
    """
    if items < 1 or count < 2:
        raise ValueError(f"data.split.items is {items} for {count} clips; expected 1 or more for each of both sets")
    held_out = items
    if items > count * MAX_HELD_OUT_SHARE:
        held_out = max(1, count // 10)
        _LOG.info("data.split.items is %d for %d clips: the last %d are for validation", items, count, held_out)
    return range(count - held_out), range(count - held_out, count)


def recording_numbers(corpus: Corpus) -> np.ndarray:
    """Number the recordings of clips (N,): copies `x_0.wav`, `x_1.wav`, ..., equally long, are of one.

    Where all clips would be of one, each is its own: they are pieces, not copies.
    """
    numbers: dict[tuple[str, int], int] = {}
    keys = (
        (re.sub(r"_\d+$", "", without_suffix(name)), int(length))
        for name, length in zip(corpus.names, corpus.lengths, strict=True)
    )
    result = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    return result if len(numbers) > 1 else np.arange(len(result))


def split_last_recordings(corpus: Corpus, items: int) -> tuple[range, range]:
    """Number the clips as `split_last_items` does; those of a recording, see `recording_numbers`, stay together.

    The first held-out clip moves forward to where its recording begins.
    """
    numbers = recording_numbers(corpus)
    held_out = len(split_last_items(len(numbers), items)[0])
    requested = len(numbers) - held_out
    while held_out > 1 and numbers[held_out - 1] == numbers[held_out]:
        held_out -= 1
    warn_of_recordings(len(numbers) - held_out, requested)
    return range(held_out), range(held_out, len(numbers))


def warn_of_recordings(held_out: int, requested: int) -> None:
    """Warn where clips of one recording, which stay together, hold out more than twice the clips requested."""
    if held_out > 2 * requested:
        _LOG.warning(
            "%d clips are for validation in place of %d: equally long clips whose names differ in a number at the end, "
            "such as x_1.wav and x_2.wav, count as copies of a recording, which stay together",
            held_out, requested,
        )  # fmt: skip


def drop_short_clips(
    lengths: np.ndarray, names: Sequence[str], numbers: Sequence[int] | np.ndarray, min_samples: int
) -> Sequence[int] | np.ndarray:
    """Leave out those clips, by number, that are shorter than one frame, with a warning; ValueError if none is left."""
    is_short = np.asarray(lengths[np.asarray(numbers)] < min_samples)
    if not is_short.any():
        return numbers
    short = np.asarray(numbers)[is_short]
    examples = ", ".join(names[int(number)] for number in short[:MAX_EXAMPLES])
    message = f"{len(short)} of {len(numbers)} clips are shorter than a frame of {min_samples} samples: {examples}"
    if len(short) == len(numbers):
        raise ValueError(f"{message}; none is left")
    _LOG.warning("left out: %s", message)
    return np.asarray(numbers)[~is_short]


def select(values: np.ndarray, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Select values by index; of a range without a copy, so that a mapped file stays mapped."""
    return values[indices.start : indices.stop] if isinstance(indices, range) else values[np.asarray(indices)]


def read_normalized(corpus: Corpus, index: int, normalize: bool, start: int, samples: int) -> Tensor:
    """Read a piece of a clip (T,) at the level of `clip_gain`."""
    audio = torch.from_numpy(np.array(corpus.read(index, start, samples), dtype=np.float32))
    return audio * clip_gain(corpus, index, normalize)


def clip_gain(corpus: Corpus, index: int, normalize: bool) -> float:
    """Return the factor that brings the peak of a full clip to 0.95, or without `normalize` to 1 where it is above."""
    peak = float(corpus.peaks[index])
    if normalize:
        return PEAK / peak if peak > 0 else 1.0
    return 1 / max(peak, 1.0)
