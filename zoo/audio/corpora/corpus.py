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

from zoo.audio.corpora.synthetic import SpeechLike
from zoo.audio.io import files
from zoo.audio.io.resample import resample_array

CACHES = "runs/cache"
PEAK = 0.95  # of full scale, what training clips are brought to


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
    """The speech-like corpus made in code, in memory."""

    def __init__(self, utterances: int, sample_rate: int, seed: int = 0) -> None:
        speech = SpeechLike(sample_rate=sample_rate, seed=seed)
        clips = [speech.utterance(index) for index in range(utterances)]
        super().__init__([f"embedded{index:04d}" for index in range(utterances)], clips)


class ResampledCorpus(MemoryCorpus):
    """A small corpus at another rate, in memory."""

    def __init__(self, corpus: Corpus, source_rate: int, target_rate: int) -> None:
        clips = [resample_array(corpus.read(index), source_rate, target_rate) for index in range(len(corpus.lengths))]
        super().__init__(corpus.names, clips)


class ClippedCorpus:
    """A part of every clip, from `begin` to `end` as shares of it, such as the last fifth of each noise recording."""

    def __init__(self, corpus: Corpus, begin: float, end: float) -> None:
        self._corpus = corpus
        self._starts = (corpus.lengths * begin).astype(np.int64)
        self.names = corpus.names
        self.lengths = (corpus.lengths * end).astype(np.int64) - self._starts
        self.peaks = corpus.peaks

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Samples (T,) float32."""
        room = max(int(self.lengths[index]) - start, 0)
        wanted = room if samples < 0 else min(samples, room)
        return self._corpus.read(index, int(self._starts[index]) + start, wanted)


def cache_folder(
    cache: str | os.PathLike[str],
    root: str | os.PathLike[str],
    sample_rate: int,
    lists: tuple[str | None, str | None] = (None, None),
) -> Path:
    """Where below `cache` the cache of a corpus lies, so that preparing and training agree on it.

    Args:
        lists: file lists that choose from the corpus; (None, None) for all of its files.
    """
    root = Path(root).resolve()
    digest = hashlib.blake2b(f"{root}/{lists}".encode(), digest_size=4).hexdigest()
    return Path(cache) / f"{root.name}-{sample_rate}-{digest}"


def read_list(path: Path, root: Path) -> list[Path]:
    """Read a file list; all files exist.

    Args:
        path: lines `id|anything` (LJSpeech, HiFi-GAN), one path a line (Vocos), or JSONL with `path`.
        root: where relative paths and ids are looked up, `wavs/` included.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file list {path}")
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        name = json.loads(line)["path"] if line.startswith("{") else line.split("|")[0].strip()
        found.append(_locate(name, root, path))
    return found


def _locate(name: str, root: Path, where: Path) -> Path:
    suffixes = ("",) if Path(name).suffix.lower() in files.AUDIO_SUFFIXES else files.AUDIO_SUFFIXES
    for folder in (root, root / "wavs"):
        for suffix in suffixes:
            candidate = folder / (name + suffix)
            if candidate.is_file():
                return candidate
    raise FileNotFoundError(f"{where} names {name}, which is not below {root}")


def prefetch(corpus: Corpus, numbers: Sequence[int]) -> None:
    """Let a corpus that lies elsewhere read the clips of a batch in one go."""
    if (ahead := getattr(corpus, "prefetch", None)) is not None:
        ahead(numbers)


def scaled(corpus: Corpus, index: int, normalize: bool, start: int, samples: int) -> Tensor:
    """A piece of a clip (T,), its whole clip's peak at 0.95 with `normalize`; silence stays silence."""
    audio = torch.from_numpy(np.array(corpus.read(index, start, samples), dtype=np.float32))
    peak = float(corpus.peaks[index])
    return audio * (PEAK / peak) if normalize and peak > 0 else audio
