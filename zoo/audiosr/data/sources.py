"""Where recordings come from: folders in the layouts that are known, decoded into caches, memory, or file by file."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.audio.corpora.cache import CorpusCache, from_int16, relative_names
from zoo.audio.corpora.corpus import PEAK, Corpus, corpus_files
from zoo.audio.io import files
from zoo.audio.io.files import AudioFileError
from zoo.common.checks import check_unreadable_share

log = logging.getLogger(__name__)

HIGH, LOW = "high", "low"
_SHOWN = 5  # names in a message
_MISMATCH_SECONDS = 0.1  # by which counterparts may differ in length without a word: a codec's padding


@dataclass(frozen=True)
class Part:
    """The files of training or of validation."""

    folder: Path  # of the full-band files
    high: Sequence[Path]  # full-band files
    low: Sequence[Path]  # their band-limited counterparts, in the same order; empty where they are simulated
    low_folder: Path  # of the counterparts
    lists: tuple[str | None, str | None] = (None, None)  # the file lists that chose them, which tell caches apart


def find_parts(
    root: Path,
    paired: bool,
    valid_root: Path | None = None,
    lists: tuple[str | None, str | None] = (None, None),
) -> tuple[Part, Part | None]:
    """Find the files for training and, where the layout, `valid_root` or a list names any, for validation.

    Args:
        root: `{train,valid}/{high,low}`, `{high,low}`, or any other tree of audio, LJSpeech's among them.
        paired: read `low` too.
        valid_root: another folder for validation, laid out likewise (`{high,low}` or a tree).
        lists: files to train on and to validate on, see `zoo.audio.corpora.corpus.corpus_files`; null for all.

    Raises:
        FileNotFoundError: a folder or a listed file is missing.
        ValueError: no audio, or in `paired` a file without counterpart.
    """
    root = Path(os.path.abspath(root))
    train_home = root / "train" if (root / "train" / HIGH).is_dir() else root
    valid_home, beside = valid_root and Path(os.path.abspath(valid_root)), root / "valid"
    if valid_home is None and train_home != root and (beside / HIGH).is_dir() and files.find_audio_files(beside / HIGH):
        valid_home = beside
    high = corpus_files(_high(train_home), (lists[0], None), without=lists[1])
    train = _part(train_home, paired, high, lists)
    if lists[1] is not None:
        return train, _part(train_home, paired, corpus_files(_high(train_home), (lists[1], None)), ("", lists[1]))
    if valid_home is None:
        return train, None
    return train, _part(valid_home, paired, corpus_files(_high(valid_home)), (None, None))


def _high(home: Path) -> Path:
    return home / HIGH if (home / HIGH).is_dir() else home


def _part(home: Path, paired: bool, high: Sequence[Path], lists: tuple[str | None, str | None]) -> Part:
    folder = _high(home)
    if not high:
        raise ValueError(f"data: no audio file ({', '.join(files.AUDIO_SUFFIXES)}) of {folder} to use")
    if not paired:
        return Part(folder, high, [], home / LOW, lists)
    if folder == home or not (home / LOW).is_dir():
        raise FileNotFoundError(f"data.init_args.mode paired: expected the folders {home / HIGH} and {home / LOW}")
    return Part(folder, high, _counterparts(folder, high, home / LOW), home / LOW, lists)


def _counterparts(folder: Path, high: Sequence[Path], low: Path) -> list[Path]:
    """The counterpart of each file: the same path below its folder, whatever the suffix."""
    found = files.find_audio_files(low)
    stems = [path.relative_to(low).with_suffix("").as_posix() for path in found]
    wanted = [path.relative_to(folder).with_suffix("").as_posix() for path in high]
    twice = [stem for names in (stems, wanted) for stem, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{low} and {folder}: {twice[0]} is there twice, with two suffixes; remove one of them")
    by_stem = dict(zip(stems, found, strict=True))
    if missing := [stem for stem in wanted if stem not in by_stem]:
        raise ValueError(
            f"data.init_args.mode paired: {len(missing)} of {len(high)} files of {folder} have no counterpart of their "
            f"name in {low}: {', '.join(missing[:_SHOWN])}"
        )
    return [by_stem[stem] for stem in wanted]


class RamCorpus:
    """A corpus cache read into memory as one block of 16-bit samples, which forked and spawned workers share."""

    def __init__(self, cache: CorpusCache) -> None:
        self.names = list(cache.names)
        self.channels = None if cache.channels is None else np.array(cache.channels)
        self.lengths = np.array(cache.lengths)
        self.peaks = np.array(cache.peaks)
        self._starts = np.array(cache.offsets)
        self._exponents = np.array(cache.exponents)
        # torch hands tensors to spawned workers through shared memory, arrays would be copied into each of them
        self._audio = torch.from_numpy(np.fromfile(cache.folder / "audio.i16", dtype="<i2"))

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Samples (T,) float32."""
        room = max(int(self.lengths[index]) - start, 0)
        first = int(self._starts[index]) + start
        block = self._audio[first : first + (room if samples < 0 else min(samples, room))]
        return from_int16(block.numpy(), int(self._exponents[index]))


class ChannelCorpus:
    """The channels of a cache's files as clips of their own, those of a file side by side.

    Attributes:
        files: number of the file of each clip (N,).
        places: which of its channels a clip is (N,), from 0.
        counts: channels of the file of each clip (N,).
    """

    def __init__(self, cache: CorpusCache | RamCorpus) -> None:
        channels = np.asarray(cache.channels)
        self._cache = cache
        self.files = np.repeat(np.arange(len(channels)), channels)
        self.places = np.arange(len(self.files)) - (np.cumsum(channels) - channels)[self.files]
        self.counts = channels[self.files]
        self.lengths = np.asarray(cache.lengths)[self.files] // self.counts
        self.peaks = np.asarray(cache.peaks)[self.files]
        self.file_names = cache.names
        self.names = [
            cache.names[file] if count == 1 else f"{cache.names[file]}#{place + 1}"
            for file, place, count in zip(self.files.tolist(), self.places.tolist(), self.counts.tolist(), strict=True)
        ]

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Samples (T,) float32."""
        length = int(self.lengths[index])
        room = max(length - start, 0)
        wanted = room if samples < 0 else min(samples, room)
        return self._cache.read(int(self.files[index]), int(self.places[index]) * length + start, wanted)


class FileCorpus:
    """Files decoded whole whenever they are asked for; nothing is written, and nothing but the last one is kept.

    Headers are checked at once. A file that turns out broken later is
    named by an AudioFileError from then on.

    Args:
        paths: of the files.
        max_bad_share: share of broken files above which a ValueError ends the run.
        root: folder that the names are relative to; None takes the deepest one that holds all files.
        option: the option that sets `max_bad_share`, for the message; None where there is none.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        sample_rate: int,
        max_bad_share: float,
        root: Path | None = None,
        option: str | None = "max_bad_share",
    ) -> None:
        self.sample_rate = sample_rate
        self.max_bad_share = max_bad_share
        self._option = option
        self._count = len(paths)
        self._bad: dict[Path, str] = {}
        self._last: tuple[int, np.ndarray] | None = None
        lengths = np.array([self._length(path) for path in paths])
        sound = lengths >= 0
        self._paths = list(compress(paths, sound))
        self.names = list(compress(relative_names(paths, root), sound))
        self.lengths = lengths[sound]

    def _length(self, path: Path) -> int:
        """Samples at the corpus' rate; -1 for a broken file."""
        try:
            facts = files.info(path)
        except AudioFileError as error:
            self._note(path, error)
            return -1
        return int(facts.samples * self.sample_rate / facts.sample_rate + 0.5)  # soxr's own count

    @property
    def peaks(self) -> Any:
        """Largest absolute sample per clip, found by decoding it."""
        return _Peaks(self)

    def read(self, index: int, start: int = 0, samples: int = -1) -> np.ndarray:
        """Samples (T,) float32."""
        return self._decoded(index)[start : None if samples < 0 else start + samples]

    def _decoded(self, index: int) -> np.ndarray:
        path = self._paths[index]
        if path in self._bad:
            raise AudioFileError(self._bad[path])
        if self._last is None or self._last[0] != index:
            try:
                audio = files.read_mono(path, self.sample_rate)
            except AudioFileError as error:
                self._note(path, error)
                raise
            self._last = (index, audio / max(1.0, float(np.abs(audio).max())))
        return self._last[1]

    def _note(self, path: Path, error: AudioFileError) -> None:
        self._bad[path] = str(error)
        log.warning("left out: %s", error)
        check_unreadable_share(self._bad.values(), self._count, self.max_bad_share, option=self._option)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


class _Peaks:
    def __init__(self, corpus: FileCorpus) -> None:
        self._corpus = corpus

    def __getitem__(self, index: int) -> float:
        return float(np.abs(self._corpus.read(index)).max())


@dataclass(eq=False)
class Recordings:
    """Full-band clips and, in paired data, their band-limited counterparts at the same gain."""

    high: Corpus
    low: Corpus | None = None
    counterparts: np.ndarray | None = None  # of full-band clips: their numbers in `low`, -1 for none
    normalize: bool = True  # bring the peak of each full-band clip to 0.95, and its counterpart along

    @property
    def usable(self) -> Sequence[int] | np.ndarray:
        """Numbers of the clips that can be used, of a file's channels the first."""
        usable = range(len(self.high.lengths)) if self.counterparts is None else np.flatnonzero(self.counterparts >= 0)
        if not isinstance(self.high, ChannelCorpus):
            return usable
        clips = np.asarray(usable, np.int64)
        return clips[self.high.places[clips] == 0]

    def with_channels(self, clips: Sequence[int] | np.ndarray) -> Sequence[int] | np.ndarray:
        """Clips of first channels with the other channels of their files, side by side."""
        if not isinstance(self.high, ChannelCorpus) or not len(clips):
            return clips
        return np.concatenate([np.arange(clip, clip + self.high.counts[clip]) for clip in np.asarray(clips)])

    def channel(self, index: int) -> int:
        """Which channel of its file a clip is, from 0."""
        return int(self.high.places[index]) if isinstance(self.high, ChannelCorpus) else 0

    def sibling(self, index: int, channel: int) -> int:
        """The clip of the same file that is this channel, or its last one."""
        if not isinstance(self.high, ChannelCorpus):
            return index
        return index - self.channel(index) + min(channel, int(self.high.counts[index]) - 1)

    def loudness(self, index: int, start: int, high: np.ndarray) -> np.ndarray:
        """What tells whether a piece (T,) is silent: itself, or the RMS over the channels of its file."""
        if not isinstance(self.high, ChannelCorpus) or self.high.counts[index] == 1:
            return high
        first = index - self.channel(index)
        pieces = [self.high.read(first + place, start, len(high)) for place in range(int(self.high.counts[index]))]
        return np.sqrt(np.mean(np.square(pieces, dtype=np.float64), axis=0)) * self._gain(index)

    def _gain(self, index: int) -> np.float32:
        peak = float(self.high.peaks[index]) if self.normalize else 0.0
        return np.float32(PEAK / peak if peak > 0 else 1.0)

    def length(self, index: int) -> int:
        """Samples of a clip; of a pair, those that both have."""
        samples = int(self.high.lengths[index])
        if self.low is None or self.counterparts is None:
            return samples
        return min(samples, int(self.low.lengths[self.counterparts[index]]))

    def read(self, index: int, start: int, samples: int) -> tuple[np.ndarray, np.ndarray | None]:
        """A piece (T,) float32 of a clip and of its counterpart; T is less than `samples` at the clip's end."""
        samples = min(samples, self.length(index) - start)
        gain = self._gain(index)
        high = self.high.read(index, start, samples) * gain
        if self.low is None or self.counterparts is None:
            return high, None
        return high, self.low.read(int(self.counterparts[index]), start, samples) * gain


def _places(corpus: Corpus) -> list[tuple[str, int]]:
    """File and channel of each clip."""
    if isinstance(corpus, ChannelCorpus):
        return [
            (corpus.file_names[file], place) for file, place in zip(corpus.files, corpus.places.tolist(), strict=True)
        ]
    return [(name, 0) for name in corpus.names]


def pair(part: Part, high: Corpus, low: Corpus, sample_rate: int, normalize: bool) -> Recordings:
    """Bring counterparts together; pairs of which one is broken are left out, uneven ones are named."""
    low_names = dict(
        zip(relative_names(part.high, part.folder), relative_names(part.low, part.low_folder), strict=True)
    )
    numbers = {place: number for number, place in enumerate(_places(low))}
    counterparts = np.array([numbers.get((low_names[name], place), -1) for name, place in _places(high)])
    if isinstance(high, ChannelCorpus) and isinstance(low, ChannelCorpus):
        of_low = dict(zip(low.file_names, np.bincount(low.files).tolist(), strict=True))
        of_high = zip(high.file_names, np.bincount(high.files).tolist(), strict=True)
        other = [name for name, count in of_high if of_low.get(low_names[name], count) != count]
        if other:
            raise ValueError(
                f"data.init_args.channels: {len(other)} pairs below {part.folder} are stereo in one file and mono in "
                f"the other: {', '.join(other[:_SHOWN])}; take channels: mono"
            )
    recordings = Recordings(high, low, counterparts, normalize)
    uneven = [
        high.names[index]
        for index in recordings.usable
        if abs(int(high.lengths[index]) - int(low.lengths[counterparts[index]])) > _MISMATCH_SECONDS * sample_rate
    ]
    if uneven:
        log.warning(
            "%d of %d pairs below %s differ by more than %g s in length; the shorter counts: %s",
            len(uneven), len(counterparts), os.path.commonpath([part.folder, part.low_folder]), _MISMATCH_SECONDS,
            ", ".join(uneven[:_SHOWN]),
        )  # fmt: skip
    return recordings
