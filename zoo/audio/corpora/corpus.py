"""Corpora: mono clips at one sample rate, from a cache or made in code; and the file lists of other projects."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from zoo.audio.corpora.selection import match_entries, relative_name
from zoo.audio.corpora.synthetic import SyntheticSpeech
from zoo.audio.io import files
from zoo.common.configs import read_lines

CACHES = "runs/cache"
PEAK = 0.95  # of full scale, of normalized training clips


class Corpus(Protocol):
    """Mono clips at one sample rate, by number."""

    @property
    def names(self) -> Sequence[str]:
        """File names."""
        ...

    @property
    def lengths(self) -> np.ndarray:
        """Samples per clip (N,)."""
        ...

    @property
    def peaks(self) -> np.ndarray:
        """Largest absolute sample per clip (N,)."""
        ...

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Samples (T,) float32."""
        ...


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


class EmbeddedCorpus(MemoryCorpus):
    """The speech-like corpus made in code, in memory.

    Args:
        utterances: how many there are, >= 1.
        sample_rate: that they are made at, in Hz.
        seed: equal arguments give equal clips.
    """

    def __init__(self, utterances: int, sample_rate: int, seed: int = 0) -> None:
        speech = SyntheticSpeech(sample_rate=sample_rate, seed=seed)
        clips = [speech.utterance(index) for index in range(utterances)]
        super().__init__([f"embedded{index:04d}" for index in range(utterances)], clips)


class TrimmedCorpus:
    """A part of every clip, from `begin` to `end` as shares of it, such as the last fifth of each noise recording."""

    def __init__(self, corpus: Corpus, begin: float, end: float) -> None:
        self._corpus = corpus
        self._starts = (corpus.lengths * begin).astype(np.int64)
        self.names = corpus.names
        self.lengths = (corpus.lengths * end).astype(np.int64) - self._starts
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
    """Name the folder below `cache` of a corpus' cache, so that preparing and training agree on it.

    Args:
        lists: file lists that choose from the corpus; (None, None) for all of its files.
    """
    root = Path(root).resolve()
    digest = hashlib.blake2b(f"{root}/{lists}".encode(), digest_size=4).hexdigest()
    return Path(cache) / f"{root.name}-{sample_rate}-{digest}"


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
    everything = files.find_audio_files(root)
    if not any((*lists, without)):
        return everything
    paths = list(map(str, everything))
    selected = set(paths if lists[0] is None else ())
    selected.update(path for name in lists if name for path in _match_paths(Path(name), root, paths))
    selected.difference_update(_match_paths(Path(without), root, paths) if without else ())
    return sorted(map(Path, selected))


def _match_paths(path: Path, root: str, everything: Sequence[str]) -> list[str]:
    """Find the paths of a list's files; `everything` are the audio files below `root`."""
    entries = _relative_entries(path, root)
    below = set(everything)
    paths = [os.path.join(root, entry) for entry in entries]
    others = (name + suffix for name in paths if name not in below for suffix in ("", *files.AUDIO_SUFFIXES))
    candidates = list(dict.fromkeys([*everything, *filter(os.path.isfile, others)]))  # also outside, or behind links
    names = [relative_name(candidate, root) for candidate in candidates]
    return [candidates[number] for number in match_entries(entries, names, str(path))]


def match_list(path: Path, root: Path, names: Sequence[str]) -> list[int]:
    """Find the clips of a corpus that a file list names, see `match_entries`.

    Args:
        names: of the clips, relative to `root`.
    """
    return match_entries(_relative_entries(path, os.path.abspath(root)), names, str(path))


def _relative_entries(path: Path, root: str) -> list[str]:
    return [relative_name(os.path.normpath(os.path.join(root, entry)), root) for entry in read_entries(path)]


def read_entries(path: Path) -> list[str]:
    """Read the entries of a file list.

    Args:
        path: lines `id|anything` (LJSpeech, HiFi-GAN), one path a line (Vocos), or JSONL with `path`.
    """
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


def split_last_items(count: int, items: int) -> tuple[range, range]:
    """Number the clips for training and, the last ones, for validation.

    Raises:
        ValueError: one of the sets would be empty.
    """
    held_out = min(max(items, 0), count)
    if not 0 < held_out < count:
        raise ValueError(f"{held_out} of {count} clips are for validation: both sets need at least one")
    return range(count - held_out), range(count - held_out, count)


def select(values: np.ndarray, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Select values by index; of a range without a copy, so that a mapped file stays mapped."""
    return values[indices.start : indices.stop] if isinstance(indices, range) else values[np.asarray(indices)]


def read_normalized(corpus: Corpus, index: int, normalize: bool, start: int, samples: int) -> Tensor:
    """Read a piece of a clip (T,); with `normalize` the peak of the full clip becomes 0.95, silence stays silence."""
    audio = torch.from_numpy(np.array(corpus.read(index, start, samples), dtype=np.float32))
    peak = float(corpus.peaks[index])
    return audio * (PEAK / peak) if normalize and peak > 0 else audio
