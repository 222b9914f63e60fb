"""Corpora for vocoders: crops for training, whole clips for validation, from files, lists or the embedded corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.audio import EmbeddedCorpus
from zoo.audio.analysis.features import check_features, load_features, read_frames
from zoo.audio.corpora.cache import CorpusCache, build_cache
from zoo.audio.corpora.corpus import (
    MAX_EXAMPLES,
    Corpus,
    CorpusOptions,
    cache_dir,
    corpus_files,
    drop_short_clips,
    match_companions,
    match_list,
    read_normalized,
    select,
    split_last_recordings,
    without_suffix,
)
from zoo.common.checks import check_positive, find_data_folder
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import Key, item_seed

Indices = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class ValidationSplit:
    """Which clips are for training and which for validation.

    Args:
        train_list: files to train on: lines `id|anything` or paths below `root`, or JSONL with `path`; all when null.
            An entry is a path relative to `root`, with or without suffix, or the end of one clip's path alone.
        val_list: files to validate on, likewise; the last `items` of the sorted corpus when null.
        items: number of validation clips when there is no list; a tenth of a corpus for which it is too large.
        seconds: longest excerpt of a validation clip.
    """

    train_list: str | None = None
    val_list: str | None = None
    items: int = 8
    seconds: float = 10.0


@dataclass(frozen=True)
class FeatureOptions:
    """Conditioning made elsewhere: teacher-forced mels, SSL features.

    Args:
        folder: of `<path below root without suffix>.npy`, or flat where stems are unique; the audio is then not scaled.
            Clips shorter than a frame are left out. Null for none.
        hop_samples: audio samples per frame.
    """

    folder: str | None = None
    hop_samples: int = 256


DEFAULT_SPLIT, DEFAULT_FEATURES, DEFAULT_CORPUS = ValidationSplit(), FeatureOptions(), CorpusOptions()


class FeatureFolder:
    """Features of a corpus' clips, memory-mapped: `<path of the clip without suffix>.npy`, (C, F) or (1, C, F).

    Files may lie flat where stems are unique.
    """

    def __init__(self, folder: Path, hop_samples: int, corpus: Corpus) -> None:
        find_data_folder("features.folder", str(folder), False)
        self.hop_samples = hop_samples
        self._corpus = corpus
        files = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.npy"))
        matches = match_companions(corpus.names, files)
        names = [
            name if name in each else each[0] if each else without_suffix(name)
            for name, each in zip(corpus.names, ([files[number] for number in found] for found in matches), strict=True)
        ]
        self.paths = [folder / f"{name}.npy" for name in names]  # of each clip, whether it is there or not

    def check(self, indices: Iterable[int], channels: int | None) -> None:
        """Compare the files' shapes with the audio and the net's input channels (None: any).

        FileNotFoundError or ValueError when a clip has no file, or one that does not fit.
        """
        errors: list[OSError | ValueError] = []
        for index in indices:
            path, frames = self.paths[index], int(self._corpus.lengths[index]) // self.hop_samples
            try:
                check_features(path, load_features(path).shape, frames, channels)
            except (OSError, ValueError) as error:
                errors.append(error)
        if errors:
            examples = "; ".join(map(str, errors[:MAX_EXAMPLES]))
            cause = FileNotFoundError if isinstance(errors[0], FileNotFoundError) else ValueError
            raise cause(f"data.init_args.features: {len(errors)} clips lack fitting features, such as {examples}")


@dataclass(eq=False)
class _ClipSet(Dataset[dict[str, Tensor]]):
    corpus: Corpus
    indices: Indices
    features: FeatureFolder | None  # without, each clip's peak is scaled to 0.95, as in the original

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(eq=False)
class Crops(_ClipSet):
    """Random crops, keyed by (epoch, item): the same in any worker and on any rank."""

    segment_samples: int  # length of a crop; shorter clips are padded with zeros on the right
    seed: int

    def __getitem__(self, key: Key) -> dict[str, Tensor]:
        epoch, item = key
        index, features = int(self.indices[item]), self.features
        hop, frames = 1, int(self.corpus.lengths[index])
        if features is not None:
            hop = features.hop_samples
            frames = min(load_features(features.paths[index]).shape[1], frames // hop)
        segment_frames = self.segment_samples // hop
        generator = torch.Generator().manual_seed(item_seed(self.seed, epoch, item))
        start = int(torch.randint(max(frames - segment_frames, 0) + 1, (1,), generator=generator))
        samples = min(segment_frames, frames) * hop
        audio = read_normalized(self.corpus, index, features is None, start * hop, samples)
        crop = {"audio": torch.nn.functional.pad(audio, (0, segment_frames * hop - len(audio)))}
        if features is not None:
            values = torch.from_numpy(read_frames(features.paths[index], start, start + min(segment_frames, frames)))
            missing = segment_frames - values.shape[1]
            crop["features"] = torch.nn.functional.pad(values, (0, missing), value=float(values.min()))
        return crop


@dataclass(eq=False)
class Clips(_ClipSet):
    """Whole clips for evaluation, trimmed to full frames of their features."""

    max_samples: int  # longest excerpt from a clip's beginning

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        index = int(self.indices[item])
        audio = read_normalized(self.corpus, index, self.features is None, 0, self.max_samples)
        if self.features is None:
            return {"audio": audio}
        hop = self.features.hop_samples
        features = torch.from_numpy(read_frames(self.features.paths[index], 0, len(audio) // hop))
        return {"audio": audio[: features.shape[1] * hop], "features": features}


class VocoderData(ZooDataModule):
    """Training crops and validation clips.

    The first use of a corpus writes a memory-mapped cache (int16, mono, resampled), later ones open it.

    Args:
        root: folder of audio files (LJSpeech's layout or any tree); null for the embedded corpus.
        sample_rate: Hz.
        segment_samples: length of a training crop, a multiple of the hop.
        split: clips for training and for validation.
        features: conditioning made elsewhere.
        corpus: cache, unreadable files and the embedded corpus.
        batch_size: crops per batch and process.
        num_workers: loader processes.
        seed: of order and crops.
    """

    def __init__(
        self,
        root: str | None = None,
        sample_rate: int = 22050,
        segment_samples: int = 8192,
        split: ValidationSplit = DEFAULT_SPLIT,
        features: FeatureOptions = DEFAULT_FEATURES,
        corpus: CorpusOptions = DEFAULT_CORPUS,
        batch_size: int = 16,
        num_workers: int = 0,
        seed: int = 1234,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        check_positive(**{"segment_samples": segment_samples, "split.seconds": split.seconds})
        hop = features.hop_samples
        if features.folder is not None and segment_samples % hop:
            raise ValueError(
                f"data.segment_samples {segment_samples} is not a multiple of data.features.hop_samples {hop}"
            )
        if features.folder is not None and split.seconds * sample_rate < hop:
            raise ValueError(f"data.split.seconds {split.seconds} is shorter than a frame of {hop} samples")
        self.root = find_data_folder("root", root, corpus.embedded_if_missing, "the embedded corpus")
        self.sample_rate = sample_rate
        self.segment_samples = segment_samples
        self.split, self.features, self.corpus = split, features, corpus
        self.lists = split.train_list, split.val_list
        if root is None and any(self.lists):
            raise ValueError("data.split.train_list and val_list need data.root")

    def prepare_data(self) -> None:
        """Write the corpus cache, once per machine."""
        if self.root is not None:
            for folder in (self.root, *self.root.iterdir()) if self.split.train_list is None else ():
                if (folder / "high").is_dir() and (folder / "low").is_dir():  # as AudioSR's pairs are laid out
                    raise ValueError(f"data.init_args.root: {folder} has high and low folders; name {folder / 'high'}")
            paths = corpus_files(self.root, self.lists)
            if not paths:
                raise ValueError(f"data.init_args.root: no audio file below {self.root}")
            share = self.corpus.max_bad_share
            build_cache(paths, self._cache_folder(self.root), self.sample_rate, max_bad_share=share, root=self.root)

    def setup(self, stage: str) -> None:
        """Open the corpus and split it."""
        corpus, (train, val) = self._open()
        features = None
        if self.features.folder is not None:
            hop = self.features.hop_samples
            features = FeatureFolder(Path(self.features.folder), hop, corpus)
            train, val = (drop_short_clips(corpus.lengths, corpus.names, numbers, hop) for numbers in (train, val))
            features.check(chain(train, val), self._input_channels())
        self.train_set = Crops(corpus, train, features, self.segment_samples, self.seed)
        self.val_set = Clips(corpus, val, features, int(self.split.seconds * self.sample_rate))
        self.file_facts = (select(corpus.lengths, train),)

    def _open(self) -> tuple[Corpus, tuple[Indices, Indices]]:
        """Open the corpus, and number its clips for training and for validation."""
        if self.root is None:
            embedded = EmbeddedCorpus(self.corpus.embedded_utterances, self.sample_rate)
            return embedded, split_last_recordings(embedded, self.split.items)
        corpus = CorpusCache(self._cache_folder(self.root))
        if self.split.val_list is None:
            return corpus, split_last_recordings(corpus, self.split.items)
        names = [*corpus.names, *corpus.unreadable]
        held_out = {names[number] for number in match_list(Path(self.split.val_list), self.root, names)}
        return corpus, corpus.split(held_out.__contains__)

    def _cache_folder(self, root: Path) -> Path:
        return cache_dir(self.corpus.cache, root, self.sample_rate, self.lists)

    def _input_channels(self) -> int | None:
        """Return the channels of the trainer's net, whose frames must be those of the features; None without one."""
        generator = getattr(getattr(self.trainer, "lightning_module", None), "generator", None)
        if not isinstance(generator, WaveformGenerator):
            return None
        hop = round(generator.hop_length * getattr(getattr(generator, "conditioner", None), "scale", 1.0))
        if hop != self.features.hop_samples:
            raise ValueError(
                f"data.init_args.features.hop_samples is {self.features.hop_samples}, expected {hop}, the samples that "
                "model.init_args.generator makes of a frame"
            )
        return generator.in_channels
