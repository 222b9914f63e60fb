"""Corpora for vocoders: crops for training, whole clips for validation, from files, lists or the embedded corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    CACHES,
    MAX_EXAMPLES,
    Corpus,
    cache_dir,
    corpus_files,
    drop_short_clips,
    match_list,
    read_normalized,
    select,
    split_last_items,
    unique_stems,
    without_suffix,
)
from zoo.common.checks import find_data_folder
from zoo.hifigan.nets.base import WaveformGenerator
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import Key, item_seed


class FeatureFolder:
    """Conditioning made elsewhere, memory-mapped: `<path of the clip without suffix>.npy`, (C, F) or (1, C, F).

    A clip whose stem no other clip has may have its file flat in the folder.

    Args:
        folder: of the .npy files (teacher-forced mels, SSL features).
        hop_samples: audio samples per frame.
        corpus: whose clips they belong to.
    """

    def __init__(self, folder: Path, hop_samples: int, corpus: Corpus) -> None:
        find_data_folder("features", str(folder), False)
        self.folder = folder
        self.hop_samples = hop_samples
        self._corpus = corpus

    @cached_property
    def _unique_stems(self) -> frozenset[str]:
        return frozenset(unique_stems(self._corpus.names))

    def path(self, index: int) -> Path:
        """Find the file of a clip.

        Raises:
            FileNotFoundError: there is none.
        """
        name = self._corpus.names[index]
        path = self.folder / f"{without_suffix(name)}.npy"
        if path.is_file():
            return path
        flat = self.folder / path.name
        if flat.is_file() and path.stem in self._unique_stems:
            return flat
        reason = f" ({flat} is not used: several clips are called {path.stem})" if flat.is_file() else ""
        raise FileNotFoundError(f"no features for {name}: {path} does not exist{reason}")

    def check(self, indices: Iterable[int], channels: int | None) -> None:
        """Compare the shapes of files with the audio and the net.

        Args:
            indices: of the clips.
            channels: input channels of the net; None accepts any number.

        Raises:
            FileNotFoundError: a clip has no file.
            ValueError: a file does not fit.
        """
        errors: list[OSError | ValueError] = []
        count = 0
        for index in indices:
            count += 1
            try:
                path = self.path(index)
                frames = int(self._corpus.lengths[index]) // self.hop_samples
                check_features(path, load_features(path).shape, frames, channels)
            except (OSError, ValueError) as error:
                errors.append(error)
        if errors:
            shown = "; ".join(map(str, errors[:MAX_EXAMPLES]))
            more = f"; and {len(errors) - MAX_EXAMPLES} more" if len(errors) > MAX_EXAMPLES else ""
            cause = FileNotFoundError if isinstance(errors[0], FileNotFoundError) else ValueError
            raise cause(f"data.init_args.features: {len(errors)} of {count} clips lack fitting features: {shown}{more}")


@dataclass(eq=False)
class Crops(Dataset[dict[str, Tensor]]):
    """Random crops, keyed by (epoch, item): the same whatever worker or rank draws them."""

    corpus: Corpus
    indices: Sequence[int] | np.ndarray
    segment_samples: int  # length of a crop; shorter clips are padded with zeros on the right
    seed: int
    normalize: bool = True  # scale each clip's peak to 0.95 (the original does, except when fine-tuning)
    features: FeatureFolder | None = None

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
        path = self.features.path(index)
        hop = self.features.hop_samples
        segment_frames = self.segment_samples // hop
        frames = min(load_features(path).shape[1], int(self.corpus.lengths[index]) // hop)
        start = int(torch.randint(max(frames - segment_frames, 0) + 1, (1,), generator=generator))
        crop = torch.from_numpy(read_frames(path, start, start + min(segment_frames, frames)))
        crop = torch.nn.functional.pad(crop, (0, segment_frames - crop.shape[1]), value=float(crop.min()))
        return {"audio": self._audio(index, start * hop, segment_frames * hop), "features": crop}

    def _audio(self, index: int, start: int, samples: int) -> Tensor:
        crop = read_normalized(self.corpus, index, self.normalize, start, samples)
        return torch.nn.functional.pad(crop, (0, samples - len(crop)))


@dataclass(eq=False)
class Clips(Dataset[dict[str, Tensor]]):
    """Whole clips for evaluation, trimmed to full frames of their features."""

    corpus: Corpus
    indices: Sequence[int] | np.ndarray
    max_samples: int  # longest excerpt from a clip's beginning
    normalize: bool = True
    features: FeatureFolder | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        index = int(self.indices[item])
        audio = read_normalized(self.corpus, index, self.normalize, 0, self.max_samples)
        if self.features is None:
            return {"audio": audio}
        hop = self.features.hop_samples
        path = self.features.path(index)
        features = torch.from_numpy(read_frames(path, 0, len(audio) // hop))
        return {"audio": audio[: features.shape[1] * hop], "features": features}


class VocoderData(ZooDataModule):
    """Training crops and validation clips.

    The first use of a corpus writes a memory-mapped cache (int16, mono, resampled), later ones open it.

    Args:
        root: folder of audio files (LJSpeech's layout or any tree); null for the embedded corpus.
        sample_rate: Hz.
        segment_samples: length of a training crop, a multiple of the hop.
        train_list: files to train on: lines `id|anything` or paths below `root`, or JSONL with `path`; all when null.
            An entry is a path relative to `root`, with or without suffix, or the end of one clip's path alone.
        val_list: files to validate on, likewise; the last `val_items` of the sorted corpus when null.
        val_items: number of validation clips when there is no list.
        val_seconds: longest excerpt of a validation clip.
        features: folder of conditioning, `<path below root without suffix>.npy` (teacher-forced mels, SSL features), or
            flat where stems are unique; the audio is then not scaled. Clips shorter than a frame are left out.
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
        if features is not None and val_seconds * sample_rate < feature_hop_samples:
            raise ValueError(
                f"data.val_seconds {val_seconds} is shorter than a frame of feature_hop_samples ({feature_hop_samples})"
            )
        self.root = find_data_folder("root", root, embedded_if_missing, "the embedded corpus")
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
            files, folder = self._files(), self._cache_folder()
            build_cache(files, folder, self.sample_rate, max_bad_share=self.max_bad_share, root=self.root)

    def setup(self, stage: str) -> None:
        """Open the corpus and split it."""
        corpus: Corpus
        if self.root is None:
            corpus = EmbeddedCorpus(self.embedded_utterances, self.sample_rate)
        else:
            corpus = CorpusCache(self._cache_folder())
        train, val = self._split(corpus)
        features = None
        if self.features is not None:
            features = FeatureFolder(*self.features, corpus)
            hop_samples = features.hop_samples
            train, val = (drop_short_clips(corpus.lengths, corpus.names, part, hop_samples) for part in (train, val))
            features.check(chain(train, val), self._input_channels(hop_samples))
        normalize = features is None
        self.train_set = Crops(corpus, train, self.segment_samples, self.seed, normalize, features)
        self.val_set = Clips(corpus, val, self.val_samples, normalize, features)
        self.file_facts = (select(corpus.lengths, train),)

    def _input_channels(self, hop_samples: int) -> int | None:
        """Return the channels of the trainer's net, whose frames must be those of the features; None without one."""
        generator = getattr(getattr(self.trainer, "lightning_module", None), "generator", None)
        if not isinstance(generator, WaveformGenerator):
            return None
        scale = getattr(getattr(generator, "conditioner", None), "scale", 1.0)
        if round(generator.hop_length * scale) != hop_samples:
            raise ValueError(
                f"data.init_args.feature_hop_samples is {hop_samples}, expected {round(generator.hop_length * scale)}, "
                "what model.init_args.generator makes of a frame"
            )
        return generator.in_channels

    def _cache_folder(self) -> Path:
        assert self.root is not None
        return cache_dir(self.cache, self.root, self.sample_rate, self.lists)

    def _files(self) -> Sequence[Path]:
        assert self.root is not None
        found = corpus_files(self.root, self.lists)
        if not found:
            raise ValueError(f"data.init_args.root: no audio file below {self.root}")
        return found

    def _split(self, corpus: Corpus) -> tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]:
        count = len(corpus.lengths)
        if self.lists[1] is None or self.root is None:
            return split_last_items(count, self.val_items)
        assert isinstance(corpus, CorpusCache)
        names = [*corpus.names, *corpus.unreadable]
        held_out = {names[number] for number in match_list(Path(self.lists[1]), self.root, names)}
        return corpus.split(held_out.__contains__)
