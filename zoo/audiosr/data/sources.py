"""Sources of recordings: folders in known layouts, read from caches on disk or in memory."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo.audio.corpora.cache import relative_names
from zoo.audio.corpora.corpus import MAX_EXAMPLES, Corpus, check_apart, clip_gain, corpus_files, without_suffix
from zoo.audio.io import files

log = logging.getLogger(__name__)

Lists = tuple[str | None, str | None]

HIGH, LOW = "high", "low"
_MISMATCH_SECONDS = 0.1  # by which counterparts may differ in length without a warning: a codec's padding


@dataclass(frozen=True)
class Part:
    """The files for training or for validation."""

    folder: Path  # of the full-band files
    high: Sequence[Path]  # full-band files
    low: Sequence[Path]  # their band-limited counterparts, in the same order; empty where they are simulated
    low_folder: Path  # of the counterparts
    lists: Lists = (None, None)  # the file lists that chose them: caches differ by them


def find_parts(root: Path, paired: bool, valid_root: Path | None, lists: Lists) -> list[Part]:
    """Find the files for training and, where the layout, `valid_root` or a list names any, for validation.

    `paired` reads `low` too; `lists` are files to train on and to validate on, see `corpus_files`.
    """
    root = Path(os.path.abspath(root))
    train_root = root / "train" if (root / "train" / HIGH).is_dir() else root
    if valid_root is not None and lists[1] is not None:
        raise ValueError("data.split: give root or val_list, the latter of files below data.root, not both")
    divided = [path.parent.name for path in sorted(root.glob(f"*/{LOW}")) if (path.parent / HIGH).is_dir()]
    if divided and train_root == root and not (root / HIGH).is_dir():
        raise ValueError(
            f"data: {root} has neither train/{HIGH} nor {HIGH}, but {divided[0]}/{HIGH} and {divided[0]}/{LOW}, which "
            f"would be trained on, too: name one of {', '.join(divided)} as data.root, or move their files together"
        )
    val_root = valid_root and Path(os.path.abspath(valid_root))
    layout_root = root / "valid"
    if val_root is None and train_root != root and (layout_root / HIGH).is_dir():
        val_root = layout_root if files.find_audio_files(layout_root / HIGH) else None
    check_apart(train_root, val_root, "data.split.root")
    high = corpus_files(_high_folder(train_root), (lists[0], None), without=lists[1])
    train = _part(train_root, paired, high, lists)
    if lists[1] is not None:
        held_out = corpus_files(_high_folder(train_root), (lists[1], None))
        return [train, _part(train_root, paired, held_out, ("", lists[1]))]
    if val_root is None:
        return [train]
    return [train, _part(val_root, paired, corpus_files(_high_folder(val_root)), (None, None))]


def _high_folder(root: Path) -> Path:
    return root / HIGH if (root / HIGH).is_dir() else root


def _part(root: Path, paired: bool, high: Sequence[Path], lists: Lists) -> Part:
    folder = _high_folder(root)
    if not high:
        raise ValueError(f"data: no audio file ({', '.join(files.AUDIO_SUFFIXES)}) of {folder} to use")
    if not paired:
        return Part(folder, high, [], root / LOW, lists)
    low_folder = root / LOW
    if folder == root or not low_folder.is_dir():
        raise FileNotFoundError(f"data.init_args.mode paired: expected the folders {root / HIGH} and {low_folder}")
    low = files.find_audio_files(low_folder)
    counterparts: dict[str, list[Path]] = {}
    for path, name in zip(low, relative_names(low, low_folder), strict=True):
        counterparts.setdefault(without_suffix(name), []).append(path)
    names = relative_names(high, folder)
    keys = [without_suffix(name) for name in names]
    uses = Counter(keys)
    misfits = [
        name for name, key in zip(names, keys, strict=True) if len(counterparts.get(key, ())) != 1 or uses[key] > 1
    ]
    if misfits:
        raise ValueError(
            f"data.init_args.mode paired: {len(misfits)} of {len(high)} files of {folder} have no counterpart of their "
            f"name in {low_folder}, several, or one in common: {', '.join(misfits[:MAX_EXAMPLES])}"
        )
    return Part(folder, high, [counterparts[key][0] for key in keys], low_folder, lists)


@dataclass(eq=False)
class Recordings:
    """Full-band clips and, in paired data, their band-limited counterparts at the same gain."""

    high: Corpus
    low: Corpus | None = None
    counterparts: np.ndarray | None = None  # of full-band clips: their numbers in `low`, -1 for none
    normalize: bool = True  # scale the peak of each full-band clip to 0.95, and its counterpart with it

    @property
    def usable_clips(self) -> Sequence[int] | np.ndarray:
        """Numbers of the clips that have what they need."""
        return range(len(self.high.lengths)) if self.counterparts is None else np.flatnonzero(self.counterparts >= 0)

    def length(self, index: int) -> int:
        """Samples of a clip; of a pair, those that both have."""
        samples = int(self.high.lengths[index])
        if self.low is None or self.counterparts is None:
            return samples
        return min(samples, int(self.low.lengths[self.counterparts[index]]))

    def read(self, index: int, start: int, samples: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Read a piece (T,) float32 of a clip and of its counterpart; T is less than `samples` at the clip's end."""
        samples = min(samples, self.length(index) - start)
        gain = np.float32(clip_gain(self.high, index, self.normalize))
        high = self.high.read(index, start, samples) * gain
        if self.low is None or self.counterparts is None:
            return high, None
        return high, self.low.read(int(self.counterparts[index]), start, samples) * gain


def match_pairs(part: Part, high: Corpus, low: Corpus, sample_rate: int, normalize: bool) -> Recordings:
    """Match counterparts; a pair with an unreadable file is left out, pairs of unequal length are named."""
    low_names = dict(
        zip(relative_names(part.high, part.folder), relative_names(part.low, part.low_folder), strict=True)
    )
    numbers = {name: number for number, name in enumerate(low.names)}
    counterparts = np.array([numbers.get(low_names[name], -1) for name in high.names])
    recordings = Recordings(high, low, counterparts, normalize)
    uneven = [
        high.names[index]
        for index in recordings.usable_clips
        if abs(int(high.lengths[index]) - int(low.lengths[counterparts[index]])) > _MISMATCH_SECONDS * sample_rate
    ]
    if uneven:
        log.warning(
            "%d of %d pairs below %s differ by more than %g s in length; the shorter counts: %s",
            len(uneven), len(counterparts), os.path.commonpath([part.folder, part.low_folder]), _MISMATCH_SECONDS,
            ", ".join(uneven[:MAX_EXAMPLES]),
        )  # fmt: skip
    return recordings
