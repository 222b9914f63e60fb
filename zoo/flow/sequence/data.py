"""The datamodules of sequences: log-mels of speech degraded on the spot, or features from files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from zoo.audio.analysis.features import load_features
from zoo.audio.analysis.mel import LogMel
from zoo.audio.augment.degrade import Degrader
from zoo.audio.augment.rooms import load_noises, load_rirs
from zoo.audio.corpora.cache import CorpusCache, build_cache
from zoo.audio.corpora.corpus import CACHES, Corpus, EmbeddedCorpus, cache_dir, read_normalized
from zoo.audio.io.files import find_audio_files
from zoo.common.folders import data_folder
from zoo.common.ranges import at_least
from zoo.flow.data.items import EVALUATION_EPOCH
from zoo.flow.sequence.restore import FEATURE_SUFFIX
from zoo.training.data import Key, ZooDataModule, item_seed

SEED_LIMIT = 2**62


class Sequences(Dataset[dict[str, Any]]):
    """Base of the datasets, keyed by (epoch, item) in training and by the item in evaluation."""

    seed: int  # of everything random

    def pair(self, item: int, rng: np.random.Generator, training: bool) -> tuple[Tensor, Tensor]:
        """A clean sequence (C, T) and the degraded one (C', T), float32; evaluation crops from the beginning."""
        raise NotImplementedError(f"{type(self).__name__} defines no pair()")

    def __getitem__(self, key: Key | int) -> dict[str, Any]:
        """Clean `x1` and degraded `condition` (C, T), float32; `x0`, noise like `x1`; `seed` of the task's draws."""
        epoch, item = key if isinstance(key, tuple) else (EVALUATION_EPOCH, key)
        rng = np.random.default_rng(item_seed(self.seed, epoch, item))
        x1, condition = self.pair(item, rng, epoch != EVALUATION_EPOCH)
        noise = rng.standard_normal(tuple(x1.shape), dtype=np.float32)
        seed = int(rng.integers(SEED_LIMIT))
        return {"x1": x1, "x0": torch.from_numpy(noise), "condition": condition, "seed": seed}


@dataclass(eq=False)
class DegradedMels(Sequences):
    """Log-mels of clean clips (or crops of long ones) and of the same after degradation."""

    corpus: Corpus  # clean, at the mel's rate
    indices: np.ndarray
    mel: LogMel
    max_samples: int
    degrader: Degrader
    noises: Corpus
    rirs: Sequence[np.ndarray]  # room impulse responses (N,) at the mel's rate
    seed: int  # of crops, degradation and noise

    def __len__(self) -> int:
        return len(self.indices)

    def pair(self, item: int, rng: np.random.Generator, training: bool) -> tuple[Tensor, Tensor]:
        """The mels of a crop whose clip has its peak at 0.95, and of the crop degraded."""
        index = int(self.indices[item])
        room = max(int(self.corpus.lengths[index]) - self.max_samples, 0)
        start = int(rng.integers(room + 1)) if training else 0
        clean = read_normalized(self.corpus, index, True, start, self.max_samples).numpy()
        degraded = self.degrader.degrade(clean, self.mel.sample_rate, rng, self.noises, self.rirs).audio
        with torch.no_grad():
            mels = self.mel(torch.from_numpy(np.stack([clean, degraded])))
        return mels[0], mels[1]


@dataclass(eq=False)
class FeaturePairs(Sequences):
    """Crops of feature files."""

    paths: Sequence[tuple[Path, Path]]  # the clean and the degraded file of each item
    max_frames: int
    seed: int  # of crops and noise

    def __len__(self) -> int:
        return len(self.paths)

    def pair(self, item: int, rng: np.random.Generator, training: bool) -> tuple[Tensor, Tensor]:
        """The same frames of both files."""
        clean, degraded = (load_features(path) for path in self.paths[item])
        frames = min(clean.shape[1], degraded.shape[1])
        start = int(rng.integers(max(frames - self.max_frames, 0) + 1)) if training else 0
        part = slice(start, min(start + self.max_frames, frames))
        x1, condition = (torch.from_numpy(np.array(each[:, part], np.float32)) for each in (clean, degraded))
        return x1, condition


log = logging.getLogger(__name__)

MOST_SHIFT = 2  # frames by which two files of features may differ in length


class SequenceData(ZooDataModule):
    """Base of the datamodules: padded batches, and examples for the statistics of the features.

    A batch has `x1`, `x0` (B, C, T) and `condition` (B, C', T), zero beyond `lengths` (B,), and `seeds` as a list.

    Args:
        val_items: items for validation, from the end of the sorted corpus.
        statistics_items: training items, evenly from all, whose first crops give the statistics of the features.
        batch_size: items per batch and process, of similar length.
        seed: of order, crops, degradation and noise.
    """

    def __init__(
        self,
        val_items: int = 16,
        statistics_items: int = 256,
        batch_size: int = 16,
        num_workers: int = 0,
        seed: int = 1234,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        at_least(1, statistics_items=statistics_items)
        self.val_items = val_items
        self.statistics_items = statistics_items

    def examples(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Some training sequences (C, T) with their conditions (C', T), the same in every process."""
        size = len(self.train_set)  # type: ignore[arg-type]
        for index in np.linspace(0, size - 1, min(size, self.statistics_items)).round().astype(int):
            item = self.train_set[0, int(index)]
            yield item["x1"], item["condition"]

    def split(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the items for training and for validation, of which neither may be empty."""
        if not 0 < self.val_items < count:
            raise ValueError(
                f"data.init_args.val_items: {self.val_items} of {count} items are for validation, both sets need one"
            )
        return np.arange(count - self.val_items), np.arange(count - self.val_items, count)

    def collate(self, items: Sequence[Any]) -> dict[str, Any]:
        """Join items, shorter ones padded with zeros; the seeds stay plain numbers."""
        lengths = [item["x1"].shape[1] for item in items]
        batch: dict[str, Any] = {
            key: torch.stack([pad(item[key], (0, max(lengths) - item[key].shape[1])) for item in items])
            for key in ("x1", "x0", "condition")
        }
        return {**batch, "lengths": torch.tensor(lengths), "seeds": [item["seed"] for item in items]}


class MelData(SequenceData):
    """Log-mels of clean speech, and of the same speech degraded on the spot.

    The first use of a corpus writes a memory-mapped cache (int16, mono, resampled), later ones open it. Clips are
    scaled to a peak of 0.95. Validation has parts of the noises that training has not.

    Args:
        mel: waveform to log-mel; equal to the model's.
        degrader: how to degrade.
        root: folder of clean speech, LJSpeech's layout or any tree; null for the embedded corpus.
        noise: folder of noise; null for noise made in code.
        rir: folder of room impulse responses; null for some made in code.
        max_seconds: longest training crop.
        val_seconds: longest excerpt of a validation clip.
        cache: folder of the corpus caches.
        max_bad_share: share of unreadable files above which the run stops; below it they are named and left out.
        embedded_if_missing: use what is made in code, with a message, where a folder does not exist.
        embedded_utterances: size of the embedded corpus.
    """

    def __init__(
        self,
        mel: LogMel,
        degrader: Degrader,
        *,
        root: str | None = None,
        noise: str | None = None,
        rir: str | None = None,
        max_seconds: float = 6.0,
        val_seconds: float = 6.0,
        cache: str = CACHES,
        max_bad_share: float = 0.1,
        embedded_if_missing: bool = False,
        embedded_utterances: int = 24,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mel = mel
        self.degrader = degrader
        self.root = data_folder("root", root, embedded_if_missing)
        self.noise = data_folder("noise", noise, embedded_if_missing)
        self.rir = data_folder("rir", rir, embedded_if_missing)
        self.max_samples, self.val_samples = (
            self._samples(key, seconds) for key, seconds in (("max_seconds", max_seconds), ("val_seconds", val_seconds))
        )
        self.cache = Path(cache)
        self.max_bad_share = max_bad_share
        self.embedded_utterances = embedded_utterances

    def prepare_data(self) -> None:
        """Write the corpus caches, once per machine."""
        for folder in (self.root, self.noise):
            if folder is not None:
                paths = find_audio_files(folder)
                if not paths:
                    raise ValueError(f"no audio file below {folder}")
                build_cache(
                    paths, self._cache_of(folder), self.mel.sample_rate, max_bad_share=self.max_bad_share, root=folder
                )

    def setup(self, stage: str) -> None:
        """Open the corpora and split them."""
        rate = self.mel.sample_rate
        speech: Corpus
        if self.root is None:
            speech = EmbeddedCorpus(self.embedded_utterances, rate)
        else:
            speech = CorpusCache(self._cache_of(self.root))
        rirs = load_rirs(self.rir, rate)
        noises = (load_noises(self.noise, self.cache, rate, training) for training in (True, False))
        train, val = self.split(len(speech.lengths))
        self.train_set, self.val_set = (
            DegradedMels(speech, indices, self.mel, samples, self.degrader, noise, rirs, self.seed)
            for indices, samples, noise in zip((train, val), (self.max_samples, self.val_samples), noises, strict=True)
        )
        self.lengths = np.minimum(speech.lengths[train], self.max_samples)

    def _samples(self, key: str, seconds: float) -> int:
        """Samples of whole frames in so many seconds."""
        frames = int(seconds * self.mel.sample_rate) // self.mel.hop_length
        if frames < 1:
            raise ValueError(f"data.init_args.{key}: {seconds} s are less than a frame of the mel")
        return frames * self.mel.hop_length

    def _cache_of(self, folder: Path) -> Path:
        return cache_dir(self.cache, folder, self.mel.sample_rate)


class FeatureData(SequenceData):
    """Features made elsewhere, as `zoo predict` of another system writes them: two folders of `.npy` (C, F).

    Args:
        root: folder of clean features, any tree.
        degraded: folder of the degraded ones, the tree mirrored.
        max_frames: longest training crop.
        val_frames: longest excerpt of a validation item.
    """

    def __init__(
        self, root: str, degraded: str, *, max_frames: int = 300, val_frames: int = 300, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        at_least(1, max_frames=max_frames, val_frames=val_frames)
        self.folders = [Path(root), Path(degraded)]
        for key, folder in zip(("root", "degraded"), self.folders, strict=True):
            data_folder(key, str(folder), False)
        self.max_frames = max_frames
        self.val_frames = val_frames

    def setup(self, stage: str) -> None:
        """List the files, compare their shapes and split them."""
        names = [path.relative_to(self.folders[0]) for path in find_audio_files(self.folders[0], (FEATURE_SUFFIX,))]
        clean, degraded = ([folder / name for name in names] for folder in self.folders)
        if lacking := [path for path in degraded if not path.is_file()]:
            raise ValueError(
                f"data.init_args.degraded: {len(lacking)} of {len(names)} files of {self.folders[0]} have no "
                f"counterpart of their name, among them {lacking[0]}"
            )
        pairs = list(zip(clean, degraded, strict=True))
        frames = np.array([_frames_of(pair) for pair in pairs])
        train, val = self.split(len(pairs))
        self.train_set = FeaturePairs([pairs[i] for i in train], self.max_frames, self.seed)
        self.val_set = FeaturePairs([pairs[i] for i in val], self.val_frames, self.seed)
        self.lengths = np.minimum(frames[train], self.max_frames)
        self.contents = (frames[train], [names[i].as_posix() for i in train])


def _frames_of(pair: tuple[Path, Path]) -> int:
    """Frames of a pair, which may differ by the rounding of two front ends."""
    counts = [load_features(path).shape[1] for path in pair]
    if abs(counts[0] - counts[1]) > MOST_SHIFT:
        raise ValueError(
            f"{pair[0]} has {counts[0]} frames, its counterpart {pair[1]} has {counts[1]}: they must be aligned"
        )
    return min(counts)
