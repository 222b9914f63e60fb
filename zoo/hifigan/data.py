"""Corpora for vocoders: crops for training, whole clips for validation, from files, lists or the embedded corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.audio.analysis.features import open_features
from zoo.audio.corpora.cache import CorpusCache, build
from zoo.audio.corpora.corpus import (
    CACHES,
    Corpus,
    EmbeddedCorpus,
    cache_folder,
    corpus_files,
    last_items,
    part_of,
    read_list,
    scaled,
)
from zoo.common.folders import data_folder
from zoo.training.data import Key, ZooDataModule, item_seed


class Features:
    """Conditioning made elsewhere, memory-mapped: `<clip>.npy`, (C, F) or (1, C, F), in the corpus' tree or flat.

    Args:
        folder: of the .npy files (teacher-forced mels, SSL features).
        hop_samples: audio samples per frame.
    """

    def __init__(self, folder: Path, hop_samples: int) -> None:
        data_folder("features", str(folder), False)
        self.folder = folder
        self.hop_samples = hop_samples

    def open(self, name: str) -> np.ndarray:
        """The features (C, F) of a clip."""
        path = self.folder / Path(name).with_suffix(".npy")
        if not path.is_file():  # other projects put all of them into one folder
            path = self.folder / path.name
        if not path.is_file():
            raise FileNotFoundError(f"no features for {name}: {path} does not exist")
        return open_features(path)


@dataclass(eq=False)
class Crops(Dataset[dict[str, Tensor]]):
    """Random crops, keyed by (epoch, item): the same whatever worker or rank draws them."""

    corpus: Corpus
    indices: Sequence[int] | np.ndarray
    segment_samples: int  # length of a crop; shorter clips are padded with zeros on the right
    seed: int
    normalize: bool = True  # scale each clip's peak to 0.95 (the original does, except when fine-tuning)
    features: Features | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key) -> dict[str, Tensor]:
        epoch, item = key
        index = int(self.indices[item])
        generator = torch.Generator().manual_seed(item_seed(self.seed, epoch, item))
        if self.features is not None:
            return self._with_features(index, generator)
        room = max(int(self.corpus.lengths[index]) - self.segment_samples, 0)
        start = int(torch.randint(room + 1, (1,), generator=generator))
        return {"audio": self._audio(index, start, self.segment_samples)}

    def _with_features(self, index: int, generator: torch.Generator) -> dict[str, Tensor]:
        assert self.features is not None
        array = self.features.open(self.corpus.names[index])
        hop = self.features.hop_samples
        wanted = self.segment_samples // hop
        frames = min(array.shape[1], int(self.corpus.lengths[index]) // hop)
        start = int(torch.randint(max(frames - wanted, 0) + 1, (1,), generator=generator))
        crop = torch.from_numpy(np.array(array[:, start : start + min(wanted, frames)], dtype=np.float32))
        crop = torch.nn.functional.pad(crop, (0, wanted - crop.shape[1]), mode="constant", value=float(crop.min()))
        return {"audio": self._audio(index, start * hop, wanted * hop), "features": crop}

    def _audio(self, index: int, start: int, samples: int) -> Tensor:
        crop = scaled(self.corpus, index, self.normalize, start, samples)
        return torch.nn.functional.pad(crop, (0, samples - len(crop)))


@dataclass(eq=False)
class Clips(Dataset[dict[str, Tensor]]):
    """Whole clips for evaluation, trimmed to full frames of their features."""

    corpus: Corpus
    indices: Sequence[int] | np.ndarray
    max_samples: int  # longest excerpt from a clip's beginning
    normalize: bool = True
    features: Features | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        index = int(self.indices[item])
        audio = scaled(self.corpus, index, self.normalize, 0, self.max_samples)
        if self.features is None:
            return {"audio": audio}
        array = self.features.open(self.corpus.names[index])
        frames = min(array.shape[1], len(audio) // self.features.hop_samples)
        features = torch.from_numpy(np.array(array[:, :frames], dtype=np.float32))
        return {"audio": audio[: frames * self.features.hop_samples], "features": features}


class VocoderData(ZooDataModule):
    """Training crops and validation clips.

    The first use of a corpus writes a memory-mapped cache (int16, mono, resampled), later ones open it.

    Args:
        root: folder of audio files (LJSpeech's layout or any tree); null for the embedded corpus.
        sample_rate: Hz.
        segment_samples: length of a training crop, a multiple of the hop.
        train_list: files to train on: lines `id|anything` or paths below `root`, or JSONL with `path`; all when null.
        val_list: files to validate on, likewise; the last `val_items` of the sorted corpus when null.
        val_items: number of validation clips when there is no list.
        val_seconds: longest excerpt of a validation clip.
        features: folder of conditioning `<stem>.npy` (teacher-forced mels, SSL features); the audio is then not scaled.
        feature_hop_samples: audio samples per feature frame.
        cache: folder of the corpus caches.
        max_bad_share: share of unreadable files above which the run stops; below it they are named and left out.
        embedded_if_missing: use the embedded corpus, with a message, when `root` does not exist.
        embedded_utterances: size of the embedded corpus.
        batch_size: crops per batch and process.
        num_workers: loader processes.
        seed: of order and crops.
    """

    def __init__(
        self,
        root: str | None = None,
        sample_rate: int = 22050,
        segment_samples: int = 8192,
        train_list: str | None = None,
        val_list: str | None = None,
        val_items: int = 8,
        val_seconds: float = 10.0,
        features: str | None = None,
        feature_hop_samples: int = 256,
        cache: str = CACHES,
        max_bad_share: float = 0.1,
        embedded_if_missing: bool = False,
        embedded_utterances: int = 48,
        batch_size: int = 16,
        num_workers: int = 0,
        seed: int = 1234,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        if features is not None and segment_samples % feature_hop_samples:
            raise ValueError(
                f"data.segment_samples ({segment_samples}) is not a multiple of "
                f"feature_hop_samples ({feature_hop_samples})"
            )
        self.root = data_folder("root", root, embedded_if_missing, "the embedded corpus")
        self.sample_rate = sample_rate
        self.segment_samples = segment_samples
        self.lists = (train_list, val_list)
        self.val_items = val_items
        self.val_samples = int(val_seconds * sample_rate)
        self.features = None if features is None else (Path(features), feature_hop_samples)
        self.cache = Path(cache)
        self.max_bad_share = max_bad_share
        self.embedded_utterances = embedded_utterances

    def prepare_data(self) -> None:
        """Write the corpus cache, once per machine."""
        if self.root is not None:
            build(self._files(), self._cache_folder(), self.sample_rate, max_bad_share=self.max_bad_share)

    def setup(self, stage: str) -> None:
        """Open the corpus and split it."""
        corpus: Corpus
        if self.root is None:
            corpus = EmbeddedCorpus(self.embedded_utterances, self.sample_rate)
        else:
            corpus = CorpusCache(self._cache_folder())
        features = None if self.features is None else Features(*self.features)
        train, val = self._split(corpus)
        normalize = features is None
        self.train_set = Crops(corpus, train, self.segment_samples, self.seed, normalize, features)
        self.val_set = Clips(corpus, val, self.val_samples, normalize, features)
        self.contents = (part_of(corpus.lengths, train),)

    def _cache_folder(self) -> Path:
        assert self.root is not None
        return cache_folder(self.cache, self.root, self.sample_rate, self.lists)

    def _files(self) -> Sequence[Path]:
        assert self.root is not None
        found = corpus_files(self.root, self.lists if self.lists[0] else (None, None))
        if not found:
            raise ValueError(f"data.init_args.root: no audio file below {self.root}")
        return found

    def _split(self, corpus: Corpus) -> tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]:
        count = len(corpus.lengths)
        if self.lists[1] is None or self.root is None:
            return last_items(count, self.val_items)
        wanted = {path.stem for path in read_list(Path(self.lists[1]), self.root)}
        assert isinstance(corpus, CorpusCache)
        return corpus.split(lambda name: PurePosixPath(name).stem in wanted)
