"""Crops of full-band audio and their band-limited counterparts: random for training, a fixed grid for validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.audio.corpora.corpus import PEAK
from zoo.audio.io.files import AudioFileError
from zoo.audio.io.resample import match_array_length
from zoo.audiosr.data.cutoff import estimate_cutoff
from zoo.audiosr.data.simulate import Simulation
from zoo.audiosr.data.sources import Recordings
from zoo.common.checks import check_within
from zoo.training.resume import Key, item_seed

Item = dict[str, Tensor]
Clips = Sequence[int] | np.ndarray  # numbers of clips
Pair = tuple[np.ndarray, np.ndarray | None]

OWN_TRIES = 4  # crops of the item's own clip, before those of other clips
OTHER_TRIES = 4


@dataclass(frozen=True)
class SilenceFilter:
    """Which crops are too silent; after 8 tries, half of them in other clips, the least silent one is taken.

    Args:
        max_share: largest share of silent hops in a crop, 0 to 1; 1 accepts everything.
        hop_seconds: length of a hop.
        threshold: RMS of full scale below which a hop is silent.
    """

    max_share: float = 0.3
    hop_seconds: float = 1.0
    threshold: float = 1e-4

    def __post_init__(self) -> None:
        check_within(0, 1, max_share=self.max_share)

    def silent_share(self, audio: np.ndarray, sample_rate: int) -> float:
        """Compute the share of silent hops of a signal (T,), T >= 1."""
        starts = np.arange(0, len(audio), max(1, round(self.hop_seconds * sample_rate)))
        energy = np.add.reduceat(np.square(audio, dtype=np.float64), starts)
        lengths = np.diff(np.append(starts, len(audio)))
        return float(np.mean(np.sqrt(energy / lengths) < self.threshold))


@dataclass(eq=False)
class _Excerpts(Dataset[Item]):
    """Clips, and which excerpts of them are taken."""

    recordings: Recordings
    indices: Clips
    sample_rate: int
    samples: int  # length of an excerpt
    silence: SilenceFilter
    simulation: Simulation  # makes the counterparts where the data has none

    def choose(self, candidates: Iterable[tuple[int, int]]) -> Pair:
        """Take the first candidate (clip and first sample) that is not silent, or else the least silent one.

        Zeros are appended to a shorter clip and do not count as silence. AudioFileError where none could be read.
        """
        best: Pair | None = None
        least, failure = 2.0, AudioFileError("no crop to choose from")
        for index, start in candidates:
            try:
                high, low = self.recordings.read(index, start, self.samples)
            except AudioFileError as error:
                failure = error
                continue
            share = self.silence.silent_share(high, self.sample_rate)
            if share < least:
                least, best = share, (high, low)
            if share <= self.silence.max_share:
                break
        if best is None:
            raise failure
        high, low = best
        return match_array_length(high, self.samples), None if low is None else match_array_length(low, self.samples)


@dataclass(eq=False)
class Crops(_Excerpts):
    """Random crops with fresh degradations, keyed by (epoch, item): independent of workers and ranks."""

    seed: int
    max_gain_db: float | None = None  # by which a crop is raised to the level of restoring

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key) -> Item:
        epoch, item = key
        rng = np.random.default_rng(item_seed(self.seed, epoch, item))
        high, low = self.choose(self._candidates(int(self.indices[item]), rng))
        if low is None:
            low, cutoff_hz = self.simulation.degrade(high, self.sample_rate, rng)
        else:
            cutoff_hz = estimate_cutoff(low, self.sample_rate)
        if self.max_gain_db is not None:
            gain = np.float32(PEAK / max(float(np.abs(low).max()), PEAK * 10 ** (-self.max_gain_db / 20)))
            high, low = gain * high, gain * low
        return to_item(high, low, cutoff_hz)

    def _candidates(self, clip: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        for attempt in range(OWN_TRIES + OTHER_TRIES):
            index = clip
            if attempt >= OWN_TRIES:
                index = int(self.indices[int(rng.integers(len(self.indices)))])
            room = max(self.recordings.length(index) - self.samples, 0)
            if 0 < attempt < OWN_TRIES and room == 0:
                continue
            yield index, int(rng.integers(room + 1))


@dataclass(eq=False)
class ValidationGrid(_Excerpts):
    """Every validation clip at every cut-off: in every run the same crop (the first not silent), filter and order.

    Rows have the number of the `item` and the `samples` of the clip, before zeros, besides.
    """

    cutoffs_hz: Sequence[float]  # Hz; not used where the data has counterparts: one item a clip then

    def __post_init__(self) -> None:
        """Use recorded pairs as they are."""
        self.cutoffs_hz = list(self.cutoffs_hz) if self.recordings.low is None else [0.0]

    def __len__(self) -> int:
        return len(self.indices) * len(self.cutoffs_hz)

    def __getitem__(self, item: int) -> Item:
        clip, column = divmod(item, len(self.cutoffs_hz))
        index = int(self.indices[clip])
        room = max(self.recordings.length(index) - self.samples, 0)
        starts = np.unique(np.linspace(0, room, OWN_TRIES + OTHER_TRIES).astype(int))
        high, low = self.choose((index, int(start)) for start in starts)
        cutoff_hz = self.cutoffs_hz[column]
        if low is None:
            low = self.simulation.limit_band(high, self.sample_rate, cutoff_hz, number=clip + column)
        else:
            cutoff_hz = estimate_cutoff(low, self.sample_rate)
        samples = torch.tensor(min(self.recordings.length(index), self.samples))
        return to_item(high, low, cutoff_hz) | {"item": torch.tensor(item), "samples": samples}


def to_item(high: np.ndarray, low: np.ndarray, cutoff_hz: float) -> Item:
    """Make a row of a batch: `high` and `low` (1, T) float32, `cutoff_hz` () float32."""
    return {
        "high": torch.from_numpy(np.ascontiguousarray(high, np.float32))[None],
        "low": torch.from_numpy(np.ascontiguousarray(low, np.float32))[None],
        "cutoff_hz": torch.tensor(cutoff_hz, dtype=torch.float32),
    }
