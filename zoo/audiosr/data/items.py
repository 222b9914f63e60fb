"""Crops of full-band audio and the same band-limited: random ones for training, a fixed grid for validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.audio.augment.effects import match_length
from zoo.audio.corpora.corpus import PEAK, Corpus
from zoo.audio.io.files import AudioFileError
from zoo.audiosr.data.cutoff import band_end
from zoo.audiosr.data.simulate import Simulation
from zoo.audiosr.data.sources import Recordings
from zoo.training.resume import Key, item_seed

Item = dict[str, Tensor]
Clips = Sequence[int] | np.ndarray  # numbers of clips
Pair = tuple[np.ndarray, np.ndarray | None]

OWN_TRIES = 4  # crops of the item's own clip, before others are looked at
OTHER_TRIES = 4


@dataclass(frozen=True)
class Silence:
    """What counts as silence."""

    ratio_max: float  # largest share of silent hops that a crop may have, 0 to 1; 1 takes everything
    hop_samples: int  # length of a hop
    threshold: float  # RMS of full scale below which a hop is silent

    def share(self, audio: np.ndarray) -> float:
        """Share of silent hops of a signal (T,), T >= 1."""
        starts = np.arange(0, len(audio), self.hop_samples)
        energy = np.add.reduceat(np.square(audio, dtype=np.float64), starts)
        lengths = np.diff(np.append(starts, len(audio)))
        return float(np.mean(np.sqrt(energy / lengths) < self.threshold))


def choose(recordings: Recordings, candidates: Iterable[tuple[int, int]], samples: int, silence: Silence) -> Pair:
    """Take the first of the candidates (clip and first sample) that is not silent, or else the least silent one.

    Zeros are appended to a shorter clip and do not count as silence. Raises AudioFileError where none could be read.
    """
    best: Pair | None = None
    least, failure = 2.0, AudioFileError("no crop to choose from")
    for index, start in candidates:
        try:
            high, low = recordings.read(index, start, samples)
        except AudioFileError as error:
            failure = error
            continue
        share = silence.share(recordings.loudness(index, start, high))
        if share < least:
            least, best = share, (high, low)
        if share <= silence.ratio_max:
            break
    if best is None:
        raise failure
    high, low = best
    return match_length(high, samples), None if low is None else match_length(low, samples)


@dataclass(eq=False)
class Crops(Dataset[Item]):
    """Random crops with fresh degradations, keyed by (epoch, item): the same whatever worker or rank draws them."""

    recordings: Recordings
    indices: Clips
    sample_rate: int
    segment_samples: int  # length of a crop
    silence: Silence  # which crops to pass over; after a few tries other clips are looked at
    simulation: Simulation  # makes the counterparts where the data has none
    noises: Corpus | None
    seed: int
    most_gain_db: float | None = None  # by which a crop is raised to where restoring brings its counterpart

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key) -> Item:
        epoch, item = key
        own = int(self.indices[item])
        # all channels of a file draw what its first one draws
        rng = np.random.default_rng(item_seed(self.seed, epoch, item - self.recordings.channel(own)))
        candidates = self._candidates(own, rng)
        high, low = choose(self.recordings, candidates, self.segment_samples, self.silence)
        if low is None:
            low, cutoff_hz = self.simulation.degrade(high, self.sample_rate, rng, self.noises)
        else:
            cutoff_hz = band_end(low, self.sample_rate)
        if self.most_gain_db is not None:
            gain = np.float32(PEAK / max(float(np.abs(low).max()), PEAK * 10 ** (-self.most_gain_db / 20)))
            high, low = gain * high, gain * low
        return as_item(high, low, cutoff_hz)

    def _candidates(self, own: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        for attempt in range(OWN_TRIES + OTHER_TRIES):
            index = own
            if attempt >= OWN_TRIES:
                other = int(self.indices[int(rng.integers(len(self.indices)))])
                index = self.recordings.sibling(other, self.recordings.channel(own))
            room = max(self.recordings.length(index) - self.segment_samples, 0)
            if 0 < attempt < OWN_TRIES and room == 0:
                continue
            yield index, int(rng.integers(room + 1))


@dataclass(eq=False)
class Grid(Dataset[Item]):
    """Every validation clip at every cut-off: the same crop, filter type and order in every run.

    Rows carry the number of the `item` besides.
    """

    recordings: Recordings
    indices: Clips
    sample_rate: int
    samples: int  # length of the excerpt, the first that is not silent
    silence: Silence
    simulation: Simulation  # its filter types; neither noise nor codecs
    cutoffs_hz: Sequence[float]  # Hz; where the data has counterparts they are taken as they are, one item a clip

    def __post_init__(self) -> None:
        """Take recorded pairs as they are."""
        self.cutoffs_hz = list(self.cutoffs_hz) if self.recordings.low is None else [0.0]

    def __len__(self) -> int:
        return len(self.indices) * len(self.cutoffs_hz)

    def __getitem__(self, item: int) -> Item:
        clip, column = divmod(item, len(self.cutoffs_hz))
        index = int(self.indices[clip])
        room = max(self.recordings.length(index) - self.samples, 0)
        starts = np.unique(np.linspace(0, room, OWN_TRIES + OTHER_TRIES).astype(int))
        high, low = choose(self.recordings, [(index, int(start)) for start in starts], self.samples, self.silence)
        if low is not None:
            return as_item(high, low, band_end(low, self.sample_rate)) | {"item": torch.tensor(item)}
        cutoff_hz = self.cutoffs_hz[column]
        low = self.simulation.limited(high, self.sample_rate, cutoff_hz, number=clip + column)
        return as_item(high, low, cutoff_hz) | {"item": torch.tensor(item)}


def as_item(high: np.ndarray, low: np.ndarray, cutoff_hz: float) -> Item:
    """One row of a batch: `high` and `low` (1, T) float32, `cutoff_hz` () float32."""
    return {
        "high": torch.from_numpy(np.ascontiguousarray(high, np.float32))[None],
        "low": torch.from_numpy(np.ascontiguousarray(low, np.float32))[None],
        "cutoff_hz": torch.tensor(cutoff_hz, dtype=torch.float32),
    }
