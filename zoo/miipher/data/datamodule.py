"""The datamodules of Miipher-2's stages: corpora, noise, rooms and the split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zoo.audio import EmbeddedCorpus
from zoo.audio.augment.degrade import Degrader
from zoo.audio.augment.rooms import load_noises, load_rirs
from zoo.audio.corpora.cache import CorpusCache, build_cache, relative_names
from zoo.audio.corpora.corpus import (
    MAX_EXAMPLES,
    Corpus,
    CorpusOptions,
    MemoryCorpus,
    cache_dir,
    check_apart,
    corpus_files,
    drop_short_clips,
    match_companions,
    select,
    split_last_recordings,
)
from zoo.audio.corpora.layouts import CorpusKind, list_utterances
from zoo.audio.io.resample import resample_array
from zoo.common.checks import check_at_least, check_positive, check_within, find_data_folder
from zoo.miipher.data.clips import Clips, Degradation, Item, Pairs, Segments, Versions
from zoo.miipher.nets.families import SAMPLE_RATE
from zoo.training.datamodule import ZooDataModule

FRAME_SAMPLES = SAMPLE_RATE // 50  # of most encoders, 20 ms

Indices = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class SpeakerSplit:
    """Which clips are for validation.

    Args:
        speakers: whose clips they are; none takes the last `items` of the sorted corpus.
        items: number of validation clips when no speakers are named; a tenth of a corpus for which it is too large.
        seconds: longest excerpt of a validation clip.
    """

    speakers: tuple[str, ...] = ()
    items: int = 8
    seconds: float = 10.0


@dataclass(frozen=True)
class DegradationOptions:
    """Degradation on the spot.

    Args:
        degrader: how to degrade; null leaves the input clean.
        noise: folder of noise; null for noise made in code.
        rir: folder of room impulse responses; null for some made in code.
    """

    degrader: Degrader | None = None
    noise: str | None = None
    rir: str | None = None


DEFAULT_SPLIT, DEFAULT_DEGRADATION, DEFAULT_CORPUS = SpeakerSplit(), DegradationOptions(), CorpusOptions()


class CorpusPart(NamedTuple):
    """The clips of training or validation: corpora at the rates of the data, which clips, and their degradation."""

    corpora: list[Corpus]
    indices: Indices
    degradation: Degradation


class SpeechData(ZooDataModule):
    """Clean speech with degraded versions, for the cleaner and for training a backbone.

    Corpora are decoded once into memory-mapped caches. Clips are scaled to a peak of 0.95; those shorter than 20 ms are
    left out, with a warning. Validation is the same in every run of one seed: the first `split.seconds` of clips of
    held-out speakers or of the corpus' end, with noise that training does not have, where they are degraded on line.

    Args:
        root: folder of clean speech; null for the embedded corpus.
        kind: its layout; auto detects it.
        degraded: folder of degraded versions, the tree mirrored, as `zoo degrade` writes it, or flat where stems are
            unique; of the clean clip's length within 20 ms. Null degrades on the spot.
        degradation: on the spot; not used where `degraded` is given and read.
        val_root: folder of clean speech for validation, such as `val/clean` of `zoo degrade`; `root` is then for
            training alone.
        val_degraded: folder of its degraded versions.
        max_seconds: longest training crop.
        split: clips for validation.
        corpus: caches, unreadable files and the embedded corpus.
        batch_size: clips per batch and process, of similar length.
        num_workers: loader processes.
        seed: of order, crops and degradation.

    Raises:
        FileNotFoundError: when a folder does not exist.
    """

    def __init__(
        self,
        root: str | None = None,
        kind: CorpusKind = "auto",
        degraded: str | None = None,
        degradation: DegradationOptions = DEFAULT_DEGRADATION,
        val_root: str | None = None,
        val_degraded: str | None = None,
        max_seconds: float = 10.0,
        split: SpeakerSplit = DEFAULT_SPLIT,
        corpus: CorpusOptions = DEFAULT_CORPUS,
        batch_size: int = 8,
        num_workers: int = 0,
        seed: int = 1234,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        check_positive(**{"max_seconds": max_seconds, "split.seconds": split.seconds})
        self.rates = [SAMPLE_RATE]  # of the clean corpus, in Hz
        self.frame_samples = FRAME_SAMPLES  # shorter clips are left out
        optional = corpus.embedded_if_missing
        self.root = find_data_folder("root", root, optional)
        is_embedded = self.root is None
        self.kind: CorpusKind = kind
        self.degraded = None if is_embedded else find_data_folder("degraded", degraded, False)
        if self.degraded is not None:
            degradation = DEFAULT_DEGRADATION
        self.degrader = degradation.degrader
        self.noise = find_data_folder("degradation.noise", degradation.noise, optional)
        self.rir = find_data_folder("degradation.rir", degradation.rir, optional)
        self.val_root = None if is_embedded else find_data_folder("val_root", val_root, False)
        self.val_degraded = None if is_embedded else find_data_folder("val_degraded", val_degraded, False)
        if (self.val_root is None or self.degraded is None) != (self.val_degraded is None):
            raise ValueError("data: expected val_degraded where both val_root and degraded are given, and only there")
        if self.root is not None:
            check_apart(self.root, self.val_root, "data.val_root")
        if self.root is not None and {"clean", "degraded"} <= {path.name for path in self.root.iterdir()}:
            raise ValueError(f"data.init_args.root: {root} holds pairs: root is its folder clean, degraded its other")
        self.max_samples = int(max_seconds * SAMPLE_RATE)
        self.split, self.val_samples = split, int(split.seconds * SAMPLE_RATE)
        self.corpus = corpus

    def prepare_data(self) -> None:
        """Write the corpus caches, once per machine."""
        for root in (self.root, self.val_root):
            if root is not None:
                # in the order of `VocoderData`, which has the same cache
                paths = sorted(utterance.path for utterance in list_utterances(root, self.kind, with_text=False))
                for sample_rate in self.rates:
                    self._build(paths, root, sample_rate)
        for folder in (self.degraded, self.val_degraded, self.noise):
            if folder is not None:
                self._build(corpus_files(folder), folder, SAMPLE_RATE)

    def setup(self, stage: str) -> None:
        """Open the corpora and split them."""
        train, val = self.parts()
        (speech,) = train.corpora
        self.train_set = Clips(speech, train.indices, train.degradation, self.max_samples, self.seed)
        self.val_set = Clips(val.corpora[0], val.indices, val.degradation, self.val_samples, self.seed)
        self.lengths = np.minimum(select(speech.lengths, train.indices), self.max_samples)
        self.file_facts = self._facts(train)

    def parts(self) -> tuple[CorpusPart, CorpusPart]:
        """Open the corpora of training and of validation."""
        corpora = self._open(self.root)
        versions = self._match_versions(corpora[0], self.root, self.degraded)
        if self.val_root is None:
            train, val = self._split(corpora[0])
            val_corpora, val_versions = corpora, versions
        else:
            val_corpora = self._open(self.val_root)
            val_versions = self._match_versions(val_corpora[0], self.val_root, self.val_degraded)
            train, val = (range(len(each[0].lengths)) for each in (corpora, val_corpora))
        train, val = (
            drop_short_clips(speech.lengths, speech.names, indices, self.frame_samples)
            for speech, indices in ((corpora[0], train), (val_corpora[0], val))
        )
        return (
            CorpusPart(corpora, train, self._degradation(True, versions)),
            CorpusPart(val_corpora, val, self._degradation(False, val_versions)),
        )

    def _degradation(self, training: bool, versions: Versions | None) -> Degradation:
        """Make the degradation of training or of validation, whose noises differ."""
        if versions is not None or self.degrader is None:
            return Degradation(None, versions=versions)
        noises = load_noises(self.noise, Path(self.corpus.cache), SAMPLE_RATE, training)
        return Degradation(self.degrader, noises, load_rirs(self.rir, SAMPLE_RATE))

    def _split(self, corpus: Corpus) -> tuple[Indices, Indices]:
        """Number the clips for training and for validation."""
        if not self.split.speakers or self.root is None:
            return split_last_recordings(corpus, self.split.items)
        assert isinstance(corpus, CorpusCache)
        utterances = list_utterances(self.root, self.kind, with_text=False)
        names = relative_names([utterance.path for utterance in utterances], self.root)
        speakers = dict(zip(names, (utterance.speaker for utterance in utterances), strict=True))
        if unknown := set(self.split.speakers) - set(speakers.values()):
            raise ValueError(f"data.init_args.split.speakers: no {', '.join(sorted(unknown))} in {self.root}")
        return corpus.split(lambda name: speakers[name] in self.split.speakers)

    def collate(self, items: Sequence[Item]) -> Item:
        """Join items, shorter ones padded with zeros; plain values stay on the host, as lists."""
        return {key: _join([item[key] for item in items]) for key in items[0]}

    def _facts(self, train: CorpusPart) -> tuple[Any, ...]:
        """Return what shows at a resume that clips, or their degraded versions, have changed."""
        facts = [select(train.corpora[0].lengths, train.indices)]
        versions = train.degradation.versions
        return (*facts, *((versions[0].lengths, versions[0].peaks) if versions else ()))

    def _build(self, paths: Sequence[Path], root: Path, sample_rate: int) -> None:
        if not paths:
            raise ValueError(f"no audio file below {root}")
        folder = cache_dir(self.corpus.cache, root, sample_rate)
        build_cache(paths, folder, sample_rate, max_bad_share=self.corpus.max_bad_share, root=root)

    def _open(self, root: Path | None) -> list[Corpus]:
        """Open a clean corpus at each of the rates."""
        rates = self.rates
        if root is None:
            embedded = EmbeddedCorpus(self.corpus.embedded_utterances, rates[-1])
            clips = [embedded.read(index) for index in range(self.corpus.embedded_utterances)]
            return [
                MemoryCorpus(embedded.names, [resample_array(clip, rates[-1], rate) for clip in clips])
                for rate in rates
            ]
        caches = [CorpusCache(cache_dir(self.corpus.cache, root, rate)) for rate in rates]
        if any(cache.names != caches[0].names for cache in caches[1:]):
            raise ValueError(f"the caches of {root} at {rates} Hz differ: delete them below {self.corpus.cache}")
        return [*caches]

    def _match_versions(self, corpus: Corpus, root: Path | None, folder: Path | None) -> Versions | None:
        """Open the degraded corpus, and number the versions of each clean clip."""
        if folder is None:
            return None
        degraded = CorpusCache(cache_dir(self.corpus.cache, folder, SAMPLE_RATE))
        versions = match_companions(corpus.names, degraded.names)
        if missing := [name for name, numbers in zip(corpus.names, versions, strict=True) if not numbers]:
            raise ValueError(
                f"data.init_args.degraded: {len(missing)} clips of {root} have no degraded version of their path "
                f"in {folder}: {', '.join(missing[:MAX_EXAMPLES])}"
            )
        uneven = [
            f"{degraded.names[number]} ({degraded.lengths[number]} samples, expected {length})"
            for length, numbers in zip(corpus.lengths, versions, strict=True)
            for number in numbers
            if abs(int(degraded.lengths[number]) - int(length)) > FRAME_SAMPLES
        ]
        if uneven:
            raise ValueError(
                f"data.init_args.degraded: {len(uneven)} files of {folder} differ from their clean clip by more than "
                f"{FRAME_SAMPLES} samples at {SAMPLE_RATE} Hz: {', '.join(uneven[:MAX_EXAMPLES])}"
            )
        return degraded, versions


class VocoderSegments(SpeechData):
    """Segments with context for training the vocoder on features computed on the spot.

    Args:
        sample_rate: of the vocoder in Hz.
        segment_frames: of a training segment.
        context_frames: input on either side of it, for the encoder.
        frame_rate: frames a second of the encoder; clips shorter than a frame are left out.
        clean_share: share of training items whose input is clean (for a cleaner: mixed fine-tuning).
        kwargs: of SpeechData; without degrader and degraded versions the input is clean (pre-training).
    """

    def __init__(
        self,
        sample_rate: int = 22050,
        *,
        segment_frames: int = 50,
        context_frames: int = 50,
        frame_rate: int = 50,
        clean_share: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if sample_rate % frame_rate or SAMPLE_RATE % frame_rate:
            raise ValueError(f"data: {frame_rate} frames a second do not divide {sample_rate} and {SAMPLE_RATE} Hz")
        check_at_least(1, segment_frames=segment_frames)
        check_at_least(0, context_frames=context_frames)
        check_within(0, 1, clean_share=clean_share)
        self.sample_rate, self.rates = sample_rate, [SAMPLE_RATE, sample_rate]
        self.segment_frames = segment_frames
        self.context_frames = context_frames
        self.hops = SAMPLE_RATE // frame_rate, sample_rate // frame_rate
        self.frame_samples = self.hops[0]
        self.clean_share = clean_share

    def setup(self, stage: str) -> None:
        """Open the corpora and split them."""
        train, val = self.parts()
        speech, audio = train.corpora
        self.train_set = Segments(
            (speech, audio), train.indices, train.degradation, self.segment_frames, self.context_frames,
            self.hops, self.clean_share, self.seed,
        )  # fmt: skip
        self.file_facts = self._facts(train)
        speech, audio = val.corpora
        self.val_set = Pairs(Clips(speech, val.indices, val.degradation, self.val_samples, self.seed), audio, self.hops)


def _join(values: Sequence[Any]) -> Any:
    if not isinstance(values[0], Tensor):
        return list(values)
    return pad_sequence(list(values), batch_first=True) if values[0].ndim else torch.stack(list(values))
