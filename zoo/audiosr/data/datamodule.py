"""The datamodule of AudioSR: full-band crops with band-limited counterparts, simulated or recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from zoo.audio import EmbeddedCorpus
from zoo.audio.corpora.cache import CorpusCache, build_cache
from zoo.audio.corpora.corpus import (
    Corpus,
    CorpusOptions,
    MemoryCorpus,
    cache_dir,
    recording_numbers,
    select,
    split_last_items,
    warn_of_recordings,
)
from zoo.audiosr.data.crops import Clips, Crops, SilenceFilter, ValidationGrid
from zoo.audiosr.data.simulate import Simulation, max_cutoff_hz
from zoo.audiosr.data.sources import Part, Recordings, find_parts, match_pairs
from zoo.common.checks import check_at_least, check_one_of, check_within, find_data_folder
from zoo.training.datamodule import ZooDataModule

SEGMENT_SAMPLES = 491_520  # 10.24 s at 48 kHz: 1024 frames of 480 samples
VAL_CUTOFFS_HZ = (2000.0, 4000.0, 8000.0, 12000.0, 16000.0)


@dataclass(frozen=True)
class ValidationSplit:
    """Which clips are for validation, and how they are band-limited.

    Args:
        root: folder of validation clips, laid out `{high,low}` or as a tree; null takes clips of the training folder.
        train_list: files to train on: lines `id|anything` or paths, or JSONL with `path`; all when null.
        val_list: files to validate on, likewise.
        ratio: share of the clips where neither folder nor list names them, 0 to 1, chosen at random; null takes the
            last `items` by name, as `zoo.hifigan.VocoderData` does. Copies of a recording stay together.
        seed: of that choice.
        items: most clips; all when null. Needed where `ratio` is null; there a tenth of the clips is taken if it would
            leave less than a quarter of them for training.
        samples: length of an excerpt; as in training when null.
        cutoffs_hz: cut-offs in Hz; 2, 4, 8, 12 and 16 kHz, as far as the sample rate allows, when null.
    """

    root: str | None = None
    train_list: str | None = None
    val_list: str | None = None
    ratio: float | None = 0.05
    seed: int = 1337
    items: int | None = None
    samples: int | None = None
    cutoffs_hz: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_within(0, 1, ratio=self.ratio or 0.0)
        check_at_least(1, samples=self.samples or 1, items=1 if self.items is None else self.items)

    def split(self, clips: Clips, corpus: Corpus) -> tuple[Clips, Clips]:
        """Split clips into those for training and those for validation, the latter in random order with `ratio`."""
        clips = np.asarray(clips)
        if self.ratio is None:
            count = len(split_last_items(len(clips), self.items or 0)[1])
        else:
            count = max(1, round(self.ratio * len(clips)))
        if not 0 < count < len(clips):
            raise ValueError(
                f"data.init_args.split: ratio {self.ratio} and items {self.items} leave {count} of {len(clips)} clips "
                "for validation; both sets need at least one"
            )
        is_random = self.ratio is not None
        order = np.random.default_rng(self.seed).permutation(clips) if is_random else clips[::-1]
        numbers = recording_numbers(corpus)[order]
        recordings = np.array(list(dict.fromkeys(numbers.tolist())))
        needed = int(np.searchsorted(np.bincount(numbers)[recordings].cumsum(), count)) + 1
        is_held_out = np.isin(numbers, recordings[: min(needed, len(recordings) - 1)])
        train, val = np.sort(order[~is_held_out]), order[is_held_out]
        warn_of_recordings(len(val), count)
        return train, val if is_random else np.sort(val)

    def grid(self, sample_rate: int) -> tuple[float, ...]:
        """Return the cut-offs in Hz at a sample rate."""
        if self.cutoffs_hz is None:
            return default_cutoffs(sample_rate)
        if not self.cutoffs_hz or not all(0 < cutoff < sample_rate / 2 for cutoff in self.cutoffs_hz):
            raise ValueError(
                f"data.init_args.split.cutoffs_hz is {list(self.cutoffs_hz)}; expected frequencies above 0 and below "
                f"half the sample rate of {sample_rate} Hz"
            )
        return tuple(float(cutoff) for cutoff in self.cutoffs_hz)


DEFAULT_SPLIT, DEFAULT_SILENCE, DEFAULT_CORPUS = ValidationSplit(), SilenceFilter(), CorpusOptions()


class SuperResolutionData(ZooDataModule):
    """Batches `high` and `low` (B, 1, T), equally long and aligned, and `cutoff_hz` (B,) float32.

    Crops, filters and all else are sampled for every epoch from (seed, epoch, item) alone. Validation is the same in
    every run: each clip at each cut-off, the filter type by the item's number.
    The first run, or `zoo cache` before it, decodes each file once into a cache; a killed build is resumed.

    Args:
        root: folder laid out `{train,valid}/{high,low}` or `{high,low}`, or any tree of audio such as LJSpeech's, which
            then is all `high`; null for the embedded speech-like corpus.
        mode: `simulate` makes the low clips; `paired` reads those of `low`, files of the same relative name, of which
            `cutoff_hz` is estimated. Where counterparts differ in length the shorter counts.
        split: the validation clips.
        sample_rate: Hz.
        segment_samples: length of a training crop; shorter clips are padded with zeros at the end.
        simulation: how counterparts are made; with its defaults when null.
        normalize: scale each clip to a peak of 0.95, and its counterpart with it.
        max_gain_db: raise training crops with their counterparts until the counterpart's peak is 0.95, by no more than
            this. Restoring raises its input to that peak, and a filter leaves noise up to 14 dB below its target.
            Null leaves the level.
        silence: which crops are too silent.
        cache_mode: `memmap` reads a 16-bit cache on disk, `ram` loads it into memory as float32, once per rank.
        corpus: caches, unreadable files, the embedded corpus.
        batch_size: crops per batch and process.
        num_workers: loader processes.
        seed: of order, crops and degradations.
    """

    def __init__(
        self,
        root: str | None = None,
        mode: Literal["simulate", "paired"] = "simulate",
        split: ValidationSplit = DEFAULT_SPLIT,
        sample_rate: int = 48000,
        segment_samples: int = SEGMENT_SAMPLES,
        simulation: Simulation | None = None,
        normalize: bool = True,
        max_gain_db: float | None = None,
        silence: SilenceFilter = DEFAULT_SILENCE,
        cache_mode: Literal["memmap", "ram"] = "memmap",
        corpus: CorpusOptions = DEFAULT_CORPUS,
        batch_size: int = 8,
        num_workers: int = 0,
        seed: int = 1234,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        check_one_of(("memmap", "ram"), cache_mode=cache_mode)
        check_at_least(0, max_gain_db=max_gain_db or 0.0)
        check_at_least(1, segment_samples=segment_samples)
        self.root = find_data_folder("root", root, corpus.embedded_if_missing)
        self.val_root = None if self.root is None else find_data_folder("split.root", split.root, False)
        self.mode = mode
        self.split = split
        self.sample_rate = sample_rate
        self.segment_samples = segment_samples
        self.simulation = Simulation() if simulation is None else simulation
        self.normalize = normalize
        self.max_gain_db = max_gain_db
        self.silence = silence
        self.cache_mode = cache_mode
        self.corpus = corpus
        self.val_cutoffs_hz = split.grid(sample_rate)
        if mode == "simulate":
            self.simulation.band(sample_rate)
        elif self.root is None:
            raise ValueError("data.init_args.mode paired needs a root with the folders high and low")

    def prepare_data(self) -> None:
        """Write the corpus caches, once per machine."""
        for part in self._parts():
            for paths, folder, root in self._corpora(part):
                share, full_band = self.corpus.max_bad_share, paths is part.high
                build_cache(paths, folder, self.sample_rate, share, root, full_band)

    def setup(self, stage: str) -> None:
        """Open the corpora and split them."""
        if self.root is None:
            embedded = EmbeddedCorpus(self.corpus.embedded_utterances, self.sample_rate)
            recordings = [Recordings(embedded, normalize=self.normalize)]
        else:
            recordings = [self._recordings(part) for part in self._parts()]
        train, valid = recordings[0], recordings[-1]
        if len(recordings) == 1:
            train_clips, val_clips = self.split.split(train.usable_clips, train.high)
        else:
            train_clips, val_clips = train.usable_clips, valid.usable_clips
        self.train_set: Crops = Crops(
            train, train_clips, self.sample_rate, self.segment_samples, self.silence, self.simulation,
            self.seed, self.max_gain_db,
        )  # fmt: skip
        self.file_facts = (select(train.high.lengths, train_clips),)
        self.val_set: ValidationGrid = ValidationGrid(
            valid, val_clips[: self.split.items], self.sample_rate, self.split.samples or self.segment_samples,
            self.silence, self.simulation, self.val_cutoffs_hz,
        )  # fmt: skip

    def _parts(self) -> list[Part]:
        if self.root is None:
            return []
        lists = (self.split.train_list, self.split.val_list)
        return find_parts(self.root, self.mode == "paired", self.val_root, lists)

    def _corpora(self, part: Part) -> list[tuple[Sequence[Path], Path, Path]]:
        """Return files, cache folder and root of a part's high and, in paired data, low clips."""
        high, low = (
            cache_dir(self.corpus.cache, root, self.sample_rate, part.lists) for root in (part.folder, part.low_folder)
        )
        high = high.with_name(f"{high.name}-full")  # a vocoder's has files of a lower rate, too
        return [(part.high, high, part.folder), *([(part.low, low, part.low_folder)] if part.low else [])]

    def _recordings(self, part: Part) -> Recordings:
        high, *low = (self._open(folder) for _, folder, _ in self._corpora(part))
        if not low:
            return Recordings(high, normalize=self.normalize)
        return match_pairs(part, high, low[0], self.sample_rate, self.normalize)

    def _open(self, folder: Path) -> Corpus:
        cache = CorpusCache(folder)
        if self.cache_mode == "memmap":
            return cache
        return MemoryCorpus(cache.names, [cache.read(index) for index in range(len(cache.lengths))])


def default_cutoffs(sample_rate: int) -> tuple[float, ...]:
    """Return the cut-offs of validation in Hz, as far as a sample rate allows."""
    return tuple(cutoff for cutoff in VAL_CUTOFFS_HZ if cutoff <= max_cutoff_hz(sample_rate))
